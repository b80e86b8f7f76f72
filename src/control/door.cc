// SPDX-License-Identifier: Apache-2.0
#include "control/door.h"

#include <pwd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/io/message_socket.h"
#include "base/log.h"

namespace vrun::control {
namespace {

constexpr int64_t kTokenMicros = 60'000'000;
constexpr int64_t kPauseMicros = 1'000'000;

// Only a user with a name is a person: whoever has a range of ids for user namespaces (subuid) would be 65536 people,
// and a user whose name is not found for a while somebody else.
Result<std::string> NameOf(uint32_t uid) {
  passwd entry{};
  passwd* found = nullptr;
  char buffer[16384];
  if (::getpwuid_r(uid, &entry, buffer, sizeof buffer, &found) == 0 && found != nullptr) return found->pw_name;
  return Error(Code::kDenied, "uid " + std::to_string(uid) + ": this machine knows no user of this number: ask the " +
                                  "cluster's administrator for an invitation");
}

}  // namespace

Result<std::unique_ptr<Door>> Door::Open(EventLoop* loop, const people::Members* members, const std::string& path,
                                         const std::string& controller, const std::string& ca) {
  std::unique_ptr<Door> door(new Door(loop, members, path));
  door->controller_ = controller;
  door->authority_ = people::AuthorityDigest(ca);
  VRUN_ASSIGN(door->listener_, ListenUnix(path, 0666));
  VRUN_TRY(loop->Add(door->listener_.get(), EPOLLIN, [d = door.get()](uint32_t) { d->OnConnection(); }));
  return door;
}

Door::~Door() {
  if (!listener_) return;
  loop_->Remove(listener_.get());
  ::unlink(path_.c_str());
}

Result<std::string> Door::TokenFor(uint32_t uid) {
  VRUN_ASSIGN(const std::string name, NameOf(uid));
  Given& given = given_[uid];
  const int64_t now = MonotonicMicros();
  if (given.at_us != 0 && now - given.at_us < kPauseMicros) {
    return Error(Code::kExhausted, "a token was given a moment ago: try again");
  }
  given.at_us = now;
  members_->Withdraw(given.secret);
  v1::Invitation invitation;
  invitation.set_role("home");
  invitation.set_name(name);
  invitation.set_most_gpus(-1);
  invitation.set_expires_us(WallMicros() + kTokenMicros);
  VRUN_TRY(members_->Admit("home", invitation.name()));
  VRUN_ASSIGN(given.secret, members_->Invite(invitation));
  members_->Audit({"", "uid " + std::to_string(uid), "here", "invite", "home " + invitation.name(), "ok"});
  return people::Token{controller_, authority_, given.secret}.Text();
}

void Door::OnConnection() {
  const UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!socket) return;
  const auto peer = UnixPeer(socket.get());
  if (!peer) return LogWarning("door: {}", peer.error().message());
  const Result<std::string> token = TokenFor(peer->uid);
  // A frame of this size fits into the socket's buffer, whether it is read or not.
  (void)SendFrame(socket.get(), token ? "ok " + *token : "error " + token.error().message());
}

}  // namespace vrun::control
