// SPDX-License-Identifier: Apache-2.0
// ContentSource for live views: receives every state of home's root, and sends writes home. Also what home hides.
#include <cstdint>
#include <optional>
#include <utility>

#include "base/thread/mutex.h"
#include "node/source/content_decode.h"
#include "node/source/content_request.h"
#include "node/source/content_source.h"
#include "proto/content.pb.h"
#include "tree/codec.h"

namespace vrun::node {
namespace {

constexpr size_t kMostAtOnce = 256;  // directory objects delivered together
constexpr uint64_t kMostEditedBytes = 1u << 20;
// A new request queues behind these writes: 10 ms on a link of 1 Gbit/s.
constexpr size_t kMostQueuedWrites = 1u << 20;

}  // namespace

uint64_t ContentSource::WatchTree(const Digest& have, uint64_t view, TreeWatch watch) {
  class WatchAnswer final : public Answer {
   public:
    explicit WatchAnswer(TreeWatch watch) : watch_(std::move(watch)) {}
    Status Take(const v1::ContentReply& reply) override {
      if (reply.has_pack() && parts_.between_objects()) {
        VRUN_ASSIGN(auto objects, DecodePack(reply.pack()));
        for (vfs::FetchedDirectory& object : objects) batch_.push_back(std::move(object));
      } else if (reply.has_directory()) {
        VRUN_ASSIGN(auto object, parts_.Add(reply.directory(), nullptr));
        if (object) batch_.push_back(std::move(*object));
      } else if (reply.has_ping()) {
        watch_.ping();
        return {};
      } else if (reply.has_delta() && parts_.between_objects()) {
        const auto digest = Digest::FromBytes(reply.delta().base());
        const vfs::LoadedDirectoryPtr base = digest ? watch_.find(*digest) : nullptr;
        // Without the base, the object is fetched when it is looked up.
        if (!base) return {};
        VRUN_ASSIGN(auto object, DecodeDelta(reply.delta(), *base));
        batch_.push_back(std::move(object));
      } else if (reply.has_edited()) {
        return TakeEdited(reply.edited());
      } else if (reply.has_tree_now() && parts_.between_objects()) {
        const auto tree = Digest::FromBytes(reply.tree_now().tree());
        if (!tree) return Error(Code::kCorrupt, "home sent an unexpected reply instead of a tree");
        VRUN_ASSIGN(tree::Entry root, tree::DecodeRoot(reply.tree_now().root(), *tree));
        Flush();
        watch_.now({*tree, std::move(root), reply.tree_now().serial(), reply.tree_now().included()});
        return {};
      } else {
        return Error(Code::kCorrupt, "home sent an unexpected reply instead of a tree");
      }
      if (batch_.size() >= kMostAtOnce) Flush();
      return {};
    }
    bool whole() const override { return false; }
    void Deliver() override {}

   private:
    Status TakeEdited(const v1::EditedFile& file) {
      const auto& v = file.version();
      const tree::FileVersion version{v.dev(), v.ino(), v.ctime_ns(), v.size()};
      if (version.size == 0 || version.size > kMostEditedBytes)
        return Error(Code::kCorrupt, "home sent too large a file");
      RangeAssembler content(version.size, 0, version.size);
      VRUN_TRY(content.Add(file.units()));
      if (!content.complete()) return Error(Code::kCorrupt, "home sent a part of a file");
      watch_.edited(version, content.Take());
      return {};
    }
    void Flush() {
      if (!batch_.empty()) watch_.arrived(std::exchange(batch_, {}));
    }
    TreeWatch watch_;
    DirectoryAssembler parts_;
    std::vector<vfs::FetchedDirectory> batch_;
  };
  auto request = std::make_shared<Request>();
  request->message.mutable_watch_tree()->set_have(std::string(have.view()));
  request->message.mutable_watch_tree()->set_view(view);
  request->message.mutable_watch_tree()->set_pings(true);
  request->message.mutable_watch_tree()->set_deltas(true);
  request->begin = [watch] { return std::make_unique<WatchAnswer>(watch); };
  request->fail = [over = watch.over](const Error& error) { over(error); };
  return Add(std::move(request));
}

void ContentSource::SendHeard(bool shown, bool look) {
  v1::ContentRequest request;
  request.mutable_heard()->set_shown(shown);
  request.mutable_heard()->set_look(look);
  MutexLock lock(mu_);
  (void)SendDirectLocked(request.SerializeAsString(), SIZE_MAX);
}

void ContentSource::Unwatch(uint64_t id) {
  MutexLock lock(mu_);
  const RequestPtr request = RemoveLocked(id);
  if (!request || !request->sent || active_ == nullptr) return;
  SendCancelLocked(id);
}

void ContentSource::WatchHidden(std::function<void(HiddenNames)> changed, std::function<void()> over) {
  class HiddenAnswer final : public Answer {
   public:
    explicit HiddenAnswer(std::function<void(HiddenNames)> changed) : changed_(std::move(changed)) {}
    Status Take(const v1::ContentReply& reply) override {
      if (!reply.has_hidden())
        return Error(Code::kCorrupt, "home sent an unexpected reply instead of a list of hidden names");
      const v1::Hidden& hidden = reply.hidden();
      VRUN_ASSIGN(HiddenNames names, HiddenNames::From(hidden.salt(), {hidden.tag().begin(), hidden.tag().end()},
                                                       {hidden.path().begin(), hidden.path().end()}));
      changed_(std::move(names));
      return {};
    }
    bool whole() const override { return false; }
    void Deliver() override {}

   private:
    const std::function<void(HiddenNames)> changed_;
  };
  auto request = std::make_shared<Request>();
  request->message.mutable_watch_hidden();
  request->begin = [changed = std::move(changed)] { return std::make_unique<HiddenAnswer>(changed); };
  request->fail = [over = std::move(over)](const Error&) { over(); };
  Add(std::move(request));
}

void ContentSource::SendMissed(const std::string& path) {
  v1::ContentRequest request;
  request.mutable_missed()->set_path(path);
  MutexLock lock(mu_);
  (void)SendDirectLocked(request.SerializeAsString(), SIZE_MAX);
}

uint64_t ContentSource::BeginWrites(uint64_t view, Writes writes) {
  class WritesAnswer final : public Answer {
   public:
    explicit WritesAnswer(Writes writes) : writes_(std::move(writes)) {}
    Status Take(const v1::ContentReply& reply) override {
      if (!reply.has_live_ack())
        return Error(Code::kCorrupt, "home sent an unexpected reply instead of acknowledgements");
      writes_.heard(reply.live_ack());
      return {};
    }
    bool whole() const override { return false; }
    void Deliver() override {}

   private:
    const Writes writes_;
  };
  auto request = std::make_shared<Request>();
  request->message.mutable_begin_writes()->set_view(view);
  request->begin = [writes] { return std::make_unique<WritesAnswer>(writes); };
  request->fail = [over = writes.over](const Error& error) { over(error); };
  return Add(std::move(request));
}

ContentSource::Sent ContentSource::SendWrite(uint64_t id, const std::string& write) {
  MutexLock lock(mu_);
  const auto it = requests_.find(id);
  if (it == requests_.end() || !it->second->sent) return Sent::kAway;
  return SendDirectLocked(write, kMostQueuedWrites);
}

void ContentSource::EndWrites(uint64_t view) {
  v1::ContentRequest request;
  request.mutable_end_writes()->set_view(view);
  MutexLock lock(mu_);
  (void)SendDirectLocked(request.SerializeAsString(), SIZE_MAX);
}

}  // namespace vrun::node
