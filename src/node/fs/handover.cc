// SPDX-License-Identifier: Apache-2.0
#include "node/fs/handover.h"

#include <dirent.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/mount.h>
#include <sys/socket.h>

#include <cstdlib>

#include "base/escape.h"
#include "base/log.h"

namespace vrun::node {
namespace {

std::string Name(bool apart, uint64_t slot) {
  return std::string("view/") + (apart ? "apart/" : "whole/") + std::to_string(slot);
}

std::string LiveName(uint64_t id) { return "live/" + std::to_string(id); }

vfs::ViewHandle HandleOf(std::vector<UniqueFd>* fds) {
  return {std::move((*fds)[0]), std::move((*fds)[1]), std::move((*fds)[2])};
}

}  // namespace

Result<std::unique_ptr<Handover>> Handover::Start(UniqueFd keeper, Left* left) {
  auto state = std::make_unique<Handover>();
  KeeperLink::Items items;
  VRUN_ASSIGN(state->link_, KeeperLink::Start(std::move(keeper), &items));
  for (auto& [name, item] : items) {
    v1::HandoverView view;
    v1::HandoverLiveView live;
    v1::HandoverRuns runs;
    v1::HandoverPort port;
    if (name == "port" && port.ParseFromString(item.value)) {
      left->port = static_cast<int>(port.port());
    } else if (name == "runs" && runs.ParseFromString(item.value)) {
      left->runs.assign(runs.runs().begin(), runs.runs().end());
    } else if (name.starts_with("view/") && view.ParseFromString(item.value) && item.fds.size() == 3) {
      state->views_.emplace(view.apart(), view.slot());
      left->views.push_back({std::move(view), HandleOf(&item.fds)});
    } else if (name.starts_with("live/") && live.ParseFromString(item.value) && item.fds.size() == 3) {
      state->live_.insert(live.view());
      left->live.push_back({std::move(live), HandleOf(&item.fds)});
    } else {
      LogError("the keeper has an unknown item: {}", Escape(name));
      state->link_->Drop(name);
    }
  }
  return state;
}

void Handover::SaveView(bool apart, uint64_t slot, const vfs::FrozenView* view, const std::set<uint64_t>& leases) {
  v1::HandoverView kept;
  kept.set_apart(apart);
  kept.set_slot(slot);
  kept.mutable_leases()->Add(leases.begin(), leases.end());
  const bool done = Keep(Name(apart, slot), kept.SerializeAsString(), views_.contains({apart, slot}),
                         [view]() -> Result<vfs::ViewHandle> {
                           if (view == nullptr) return Error(Code::kInternal, "the view does not exist");
                           return view->Handle();
                         });
  if (done) views_.emplace(apart, slot);
}

void Handover::SaveLiveView(uint64_t id, const vfs::LiveView* view, const std::set<uint64_t>& leases) {
  v1::HandoverLiveView kept;
  kept.set_view(id);
  kept.mutable_leases()->Add(leases.begin(), leases.end());
  const bool done = Keep(LiveName(id), kept.SerializeAsString(), live_.contains(id),
                         [view]() -> Result<vfs::ViewHandle> { return view->Handle(); });
  if (done) live_.insert(id);
}

void Handover::DropLive(uint64_t id) {
  if (live_.erase(id) > 0) link_->Drop(LiveName(id));
}

bool Handover::Keep(const std::string& name, std::string value, bool known,
                    const std::function<Result<vfs::ViewHandle>()>& handle_of) {
  if (!has_keeper()) return false;
  if (known) {
    link_->Keep(name, std::move(value));
    return true;
  }
  const auto handle = handle_of();
  if (!handle) {
    if (std::exchange(complete_, false)) {
      LogWarning("views end with this server: {}", Escape(handle.error().message()));
    }
    return false;
  }
  link_->Keep(name, std::move(value), {handle->device.get(), handle->mount.get(), handle->state.get()});
  return true;
}

void Handover::DropView(bool apart, uint64_t slot) {
  if (views_.erase({apart, slot}) > 0) link_->Drop(Name(apart, slot));
}

void Handover::UnmountStrays(const std::string& directory, bool apart) const {
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir(directory.c_str()), ::closedir);
  while (const dirent* entry = dir ? ::readdir(dir.get()) : nullptr) {
    const std::string name = entry->d_name;
    if (name.empty() || name.find_first_not_of("0123456789") != std::string::npos) continue;
    if (views_.contains({apart, std::strtoull(name.c_str(), nullptr, 10)})) continue;
    while (::umount2((directory + "/" + name).c_str(), MNT_DETACH | UMOUNT_NOFOLLOW) == 0) {
    }
  }
}

void Handover::SaveRuns(const std::vector<v1::AllowToken>& runs) {
  v1::HandoverRuns kept;
  kept.mutable_runs()->Add(runs.begin(), runs.end());
  link_->Keep("runs", kept.SerializeAsString());
}

Result<int> Handover::ReservePort(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (const int rc = ::getaddrinfo(host.c_str(), "0", &hints, &found); rc != 0) {
    return Error(Code::kInvalid, Escape(host) + ": " + ::gai_strerror(rc));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(found, ::freeaddrinfo);
  UniqueFd fd(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return ErrnoError("socket");
  const int on = 1;  // otherwise nobody could listen on it later
  if (::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0) return ErrnoError("SO_REUSEADDR");
  if (::bind(fd.get(), found->ai_addr, found->ai_addrlen) != 0) return ErrnoError("bind " + Escape(host));
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0) return ErrnoError("getsockname");
  port_ = std::move(fd);
  return ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                           : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
}

void Handover::SavePort(int port) {
  if (!port_) return;
  v1::HandoverPort kept;
  kept.set_port(static_cast<uint32_t>(port));
  link_->Keep("port", kept.SerializeAsString(), {port_.get()});
  port_.Reset();
}

}  // namespace vrun::node
