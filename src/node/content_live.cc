// SPDX-License-Identifier: Apache-2.0
// ContentSource: being told of every state of home's root.
#include <optional>
#include <utility>

#include "node/content_decode.h"
#include "node/content_request.h"
#include "node/content_source.h"
#include "proto/content.pb.h"
#include "tree/codec.h"

namespace vrun::node {
namespace {

constexpr size_t kMostAtOnce = 256;  // directory objects handed on together

}  // namespace

uint64_t ContentSource::WatchTree(const Digest& have, TreeWatch watch) {
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
      } else if (reply.has_tree_now() && parts_.between_objects()) {
        const auto tree = Digest::FromBytes(reply.tree_now().tree());
        if (!tree) return Error(Code::kCorrupt, "home sent something else than a tree");
        VRUN_ASSIGN(const tree::Entry root, tree::DecodeRoot(reply.tree_now().root(), *tree));
        Flush();
        watch_.now(*tree, root);
        return {};
      } else {
        return Error(Code::kCorrupt, "home sent something else than a tree");
      }
      if (batch_.size() >= kMostAtOnce) Flush();
      return {};
    }
    bool whole() const override { return false; }
    void Deliver() override {}

   private:
    void Flush() {
      if (!batch_.empty()) watch_.arrived(std::exchange(batch_, {}));
    }
    TreeWatch watch_;
    DirectoryAssembler parts_;
    std::vector<vfs::FetchedDirectory> batch_;
  };
  auto request = std::make_shared<Request>();
  request->message.mutable_watch_tree()->set_have(std::string(have.view()));
  request->begin = [watch] { return std::make_unique<WatchAnswer>(watch); };
  request->fail = [over = watch.over](const Error& error) { over(error); };
  return Add(std::move(request));
}

void ContentSource::Unwatch(uint64_t id) {
  std::lock_guard lock(mu_);
  const RequestPtr request = RemoveLocked(id);
  if (!request || !request->sent || active_ == nullptr) return;
  SendCancelLocked(id);
}

}  // namespace vrun::node
