// SPDX-License-Identifier: Apache-2.0
// LiveRoot: names that home makes, because others work in the directory too (live_claims.h).
#include <sys/stat.h>

#include <cerrno>
#include <memory>
#include <optional>
#include <utility>

#include "vfs/live/root/live_root.h"

namespace vrun::vfs {

bool LiveRoot::WantsClaimLocked(LiveNode* parent, const NewName& made, uint64_t source) {
  if (parent == nullptr || !claims_.MayWantLocked(*parent)) return false;
  if (parent->attributes.nlink == 0 || made.name.empty()) return false;
  if (source != 0) {
    const LiveNode* node = tree_.Find(source);
    if (node == nullptr || node->is_directory() || node->names.empty()) return false;
  } else if (S_ISCHR(made.mode) || S_ISBLK(made.mode)) {
    return false;  // home gets no devices
  }
  const std::string name(made.name);
  return tree_.Child(parent, name) == nullptr && claims_.WantsLocked(parent, name);
}

int LiveRoot::AddClaimLocked(const Request& request, LiveNode* parent, const NewName& made, uint64_t source) {
  if (parent == nullptr) return ESTALE;
  if (const int error = tree_.ChangeLocked(); error != 0) return error;
  const std::string path = tree_.PathOf(*parent, made.name);
  uint64_t operation = 0;
  if (source != 0) {
    LiveNode* node = tree_.Find(source);
    if (node == nullptr || node->names.empty()) return ESTALE;
    if (const int error = publisher_.PublishLocked(node); error != 0) return error;
    operation = teller_.ClaimLocked(Kind::kLink, node, path, tree_.PathOf(*node));
  } else {
    // A node without a name, for the attributes that the thing will have.
    NewName nameless = made;
    nameless.name = {};
    LiveNode* node = nullptr;
    if (const int error = MakeNodeLocked(request, parent, nameless, nullptr, &node); error != 0) return error;
    const Kind kind = S_ISDIR(made.mode)   ? Kind::kDirectory
                      : S_ISLNK(made.mode) ? Kind::kSymlink
                      : S_ISREG(made.mode) ? Kind::kPut
                                           : Kind::kSpecial;
    operation = teller_.ClaimLocked(kind, node, path, {});
    tree_.Drop(node);
  }
  claims_.AddLocked(DoneRequests::UniqueOf(request.unique), operation, parent, std::string(made.name));
  return 0;
}

void LiveRoot::Exclusively(const Request& request, const NewName& made, uint64_t source, Reply reply, Claimed then) {
  const uint64_t unique = DoneRequests::UniqueOf(request.unique);
  bool claims = false;
  {
    const TreeLock lock(tree_);
    claims = claims_.IsKnownLocked(unique) || WantsClaimLocked(directories_.FindLocked(request.nodeid), made, source);
  }
  if (!claims) return then(std::move(reply), false);
  reply.Suspend();
  const auto shared = std::make_shared<Reply>(std::move(reply));
  const auto answered = tree_.Guarded([this, request, shared, then = std::move(then)](bool is_made) {
    AnswerClaim(request, std::move(*shared), is_made, then);
  });
  int error = 0;
  std::optional<bool> known;
  {
    const TreeLock lock(tree_);
    if (!claims_.IsKnownLocked(unique)) {
      error = AddClaimLocked(request, directories_.FindLocked(request.nodeid), made, source);
    }
    if (error == 0) known = claims_.WaitLocked(unique, answered);
  }
  if (error != 0) {
    shared->Error(error);
  } else if (known) {
    answered(*known);
  }
}

void LiveRoot::AnswerClaim(const Request& request, Reply reply, bool made, const Claimed& then) {
  if (made) {
    // A tree that was merged meanwhile may have another state of the directory.
    directories_.With(request.nodeid, std::move(reply), [then](Reply loaded) { then(std::move(loaded), true); });
  } else {
    {
      const TreeLock lock(tree_);
      claims_.OverLocked(DoneRequests::UniqueOf(request.unique));
      DidLocked(request, DoneRequests::kExists);
    }
    reply.Error(EEXIST);
  }
  bool owes = false;
  {
    const TreeLock lock(tree_);
    owes = claims_.OwesLocked();
  }
  if (owes) tree_.Released();
}

LiveNode* LiveRoot::TakeClaimedLocked(const Request& request, LiveNode* parent, std::string_view name, uint32_t mode) {
  claims_.OverLocked(DoneRequests::UniqueOf(request.unique));
  LiveNode* node = parent != nullptr ? tree_.Child(parent, name) : nullptr;
  if (node == nullptr || ((node->attributes.mode ^ mode) & S_IFMT) != 0) return nullptr;
  if (node->is_directory()) node->directory->shared.reset();  // its time is that of our own work
  return node;
}

void LiveRoot::Unclaim(uint64_t directory, const std::string& name, bool is_directory) {
  const TreeLock lock(tree_);
  if (LiveNode* parent = directories_.FindLocked(directory)) (void)RemoveLocked(parent, name, is_directory);
}

// The kernel has sent again at once what the previous server did not answer. What comes later never comes: its caller
// was killed.
void LiveRoot::DropUnclaimed() {
  backend_.timers().After(LiveClaims::kResentMicros, tree_.Guarded([this] {
    std::vector<LiveSavedClaim> made;
    bool again = false;
    {
      const TreeLock lock(tree_);
      claims_.DropUnclaimedLocked(&made);
      again = claims_.IsWaitingForResentLocked();
    }
    for (const LiveSavedClaim& claim : made) {
      directories_.With(claim.directory, Reply(), [this, claim](Reply) {
        const TreeLock lock(tree_);
        LiveNode* parent = directories_.FindLocked(claim.directory);
        const LiveNode* node = parent != nullptr ? tree_.Child(parent, claim.name) : nullptr;
        if (node != nullptr) (void)RemoveLocked(parent, claim.name, node->is_directory());
      });
    }
    if (again) DropUnclaimed();
  }));
}

}  // namespace vrun::vfs
