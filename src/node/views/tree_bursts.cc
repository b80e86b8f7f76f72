// SPDX-License-Identifier: Apache-2.0
#include "node/views/tree_bursts.h"

#include <fcntl.h>

#include <chrono>
#include <cstdio>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/escape.h"
#include "base/files.h"
#include "base/log.h"
#include "base/thread/mutex.h"
#include "node/source/content_source.h"
#include "store/store.h"
#include "tree/codec.h"
#include "tree/diff.h"
#include "tree/rules.h"
#include "tree/unread.h"
#include "vfs/content/backend.h"
#include "vfs/content/directory_cache.h"
#include "vfs/frozen/lazy_root.h"

namespace vrun::node {
namespace {

constexpr auto kAdvanceWaitsForBurst = std::chrono::milliseconds(200);
// Up to this many directories are requested individually; beyond it, requesting everything is faster.
constexpr size_t kMostAsked = 1000;
constexpr int64_t kFollowMicros = 1'000'000;  // interval of checks for new trees from home

// Completes `tree`, starting from the complete `have`, one level at a time, because a directory names those below it.
// False: too much is missing, or there is no base.
Result<bool> WalkTree(vfs::Backend& backend, const Digest& have, const Digest& tree) {
  struct Place {
    std::string path;
    Digest was, now;  // zero: not a directory
  };
  const auto blob = backend.store()->GetBlob(have);
  const auto before = blob ? tree::DecodeRoot(*blob, have) : Result<tree::Entry>(blob.error());
  if (!before) return false;
  VRUN_ASSIGN(const tree::Entry root, vfs::FetchRootEntry(backend, tree));
  vfs::DirectoryCache& directories = backend.directories();
  std::vector<Place> level;
  if (before->child != root.child) level.push_back({"/", before->child, root.child});
  std::unordered_set<Digest, DigestHash> seen;  // many are equal: empty ones
  size_t asked = 0;
  bool unread = false;
  while (!level.empty()) {
    std::vector<std::pair<Digest, std::string>> wanted;
    for (const Place& place : level) {
      asked += directories.Has(place.now) ? 0 : 1;
      wanted.emplace_back(place.now, place.path);
    }
    if (asked > kMostAsked) return false;
    vfs::DirectoryCache::Loaded loaded;
    VRUN_TRY(directories.GetAll(tree, wanted, &loaded));
    std::vector<Place> below;
    for (const Place& place : level) {
      const tree::Directory& now = *loaded.at(place.now)->directory;
      const auto was = place.was.is_zero() ? nullptr : directories.Find(place.was);
      const auto visit = [&](size_t index, size_t old_index) {
        const tree::Entry entry = now.At(index);
        if (!entry.is_directory()) return;
        if (tree::IsUnread(entry.child)) {
          unread = true;
          return;
        }
        const bool has = was && old_index < was->directory->size();
        const tree::Entry old = has ? was->directory->At(old_index) : tree::Entry();
        if (old.child == entry.child || !seen.insert(entry.child).second) return;
        below.push_back({tree::JoinPath(place.path, entry.name), old.child, entry.child});
      };
      if (was) {
        tree::VisitChanged(*was->directory, now, visit);
      } else {
        for (size_t i = 0; i < now.size(); ++i) visit(i, 0);
      }
    }
    level = std::move(below);
  }
  if (unread) return Error(Code::kUnavailable, "home is still reading its root");
  return true;
}

}  // namespace

// A burst in progress; the thread that wants to advance a view may wait for it briefly.
class TreeBursts::Burst {
 public:
  void Done() {
    MutexLock lock(mu_);
    done_ = true;
    cv_.notify_all();
  }
  void Wait() {
    MutexLock lock(mu_);
    cv_.wait_for(lock, kAdvanceWaitsForBurst, [&]() VRUN_REQUIRES(mu_) { return done_; });
  }

 private:
  Mutex mu_;
  CondVar cv_;
  bool done_ VRUN_GUARDED_BY(mu_) = false;
};

TreeBursts::TreeBursts(EventLoop* loop, ContentSource* home, vfs::Backend* backend, std::string directory)
    : loop_(loop), home_(home), backend_(backend), directory_(std::move(directory)) {
  for (auto [apart, known] : {std::pair(false, &known_tree_), std::pair(true, &known_apart_)}) {
    if (auto tree = ReadFile(NoteOf(apart), 32)) {
      if (auto digest = Digest::FromBytes(*tree)) *known = *digest;
    }
  }
}

std::string TreeBursts::NoteOf(bool apart) const { return directory_ + (apart ? "/last-apart" : "/last-tree"); }

void TreeBursts::Start(const Digest& tree, bool apart) {
  const Digest& known = apart ? known_apart_ : known_tree_;
  if (tree != known && Begin(tree, apart)) Ask(tree, apart, known);
}

bool TreeBursts::Begin(const Digest& tree, bool apart) {
  {
    MutexLock lock(mu_);
    if (!bursts_.emplace(tree, std::make_shared<Burst>()).second) return false;
  }
  if (!apart) ++whole_;
  return true;
}

void TreeBursts::Ask(const Digest& tree, bool apart, const Digest& have) {
  home_->FetchTree(
      tree, have, [this](std::vector<vfs::FetchedDirectory> directories) { backend_->Preload(std::move(directories)); },
      [this, tree, apart, have](const Status& status) {
        if (!status && status.error().code() == Code::kNotFound && !have.is_zero()) {
          worker_.Post([this, tree, apart, have] { Walk(tree, apart, have); });
        } else {
          Over(tree, apart, status);
        }
      });
}

void TreeBursts::Walk(const Digest& tree, bool apart, const Digest& have) {
  const Result<bool> all = WalkTree(*backend_, have, tree);
  if (all && !*all) return Ask(tree, apart, Digest());
  Over(tree, apart, all ? Status() : Status(all.error()));
}

void TreeBursts::Over(const Digest& tree, bool apart, const Status& status) {
  {
    MutexLock lock(mu_);
    if (auto it = bursts_.find(tree); it != bursts_.end()) it->second->Done();
  }
  loop_->Post([this, tree, apart, status] { Done(tree, apart, status); });
}

void TreeBursts::Told(const Digest& tree) {
  loop_->Post([this, tree] {
    told_ = tree;
    Follow();
  });
}

// One at a time: each is compared with the previous one.
void TreeBursts::Follow() {
  if (told_.is_zero() || whole_ > 0 || resting_) return;
  const Digest tree = std::exchange(told_, Digest());
  if (tree == known_tree_ || !Begin(tree, false)) return;
  resting_ = true;
  loop_->After(kFollowMicros, [this] {
    resting_ = false;
    Follow();
  });
  worker_.Post([this, tree, have = known_tree_] { Walk(tree, false, have); });
}

void TreeBursts::Wait(const Digest& tree) {
  std::shared_ptr<Burst> burst;
  {
    MutexLock lock(mu_);
    if (auto it = bursts_.find(tree); it != bursts_.end()) burst = it->second;
  }
  if (burst) burst->Wait();
}

void TreeBursts::Done(const Digest& tree, bool apart, const Status& status) {
  {
    MutexLock lock(mu_);
    bursts_.erase(tree);
  }
  if (!apart) --whole_;
  if (status) {
    Know(tree, apart);
  } else {
    LogInfo("cannot fetch the directories of a tree in advance: {}", Escape(status.error().message()));
  }
  Follow();
}

void TreeBursts::Know(const Digest& tree, bool apart) {
  (apart ? known_apart_ : known_tree_) = tree;
  // Only a hint for the next start, so no fsync.
  const std::string path = NoteOf(apart);
  auto fd = OpenFile(path + ".new", O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (fd && WriteAll(fd->get(), tree.view())) (void)::rename((path + ".new").c_str(), path.c_str());
}

}  // namespace vrun::node
