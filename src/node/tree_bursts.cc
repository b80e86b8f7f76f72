// SPDX-License-Identifier: Apache-2.0
#include "node/tree_bursts.h"

#include <fcntl.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <utility>
#include <vector>

#include "base/escape.h"
#include "base/files.h"
#include "base/log.h"
#include "node/content_source.h"
#include "vfs/backend.h"

namespace vrun::node {
namespace {

constexpr auto kAdvanceWaitsForBurst = std::chrono::milliseconds(200);

}  // namespace

// One GetTree that is under way; the thread that wants to advance a view may wait for it a little.
class TreeBursts::Burst {
 public:
  void Done() {
    std::lock_guard lock(mu_);
    done_ = true;
    cv_.notify_all();
  }
  void Wait() {
    std::unique_lock lock(mu_);
    cv_.wait_for(lock, kAdvanceWaitsForBurst, [&] { return done_; });
  }

 private:
  std::mutex mu_;
  std::condition_variable cv_;
  bool done_ = false;
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
  if (tree == known) return;
  {
    std::lock_guard lock(mu_);
    if (!bursts_.emplace(tree, std::make_shared<Burst>()).second) return;
  }
  home_->FetchTree(
      tree, known,
      [this](std::vector<vfs::FetchedDirectory> directories) { backend_->Preload(std::move(directories)); },
      [this, tree, apart](Status status) {
        {
          std::lock_guard lock(mu_);
          if (auto it = bursts_.find(tree); it != bursts_.end()) it->second->Done();
        }
        loop_->Post([this, tree, apart, status] { Done(tree, apart, status); });
      });
}

void TreeBursts::Wait(const Digest& tree) {
  std::shared_ptr<Burst> burst;
  {
    std::lock_guard lock(mu_);
    if (auto it = bursts_.find(tree); it != bursts_.end()) burst = it->second;
  }
  if (burst) burst->Wait();
}

void TreeBursts::Done(const Digest& tree, bool apart, const Status& status) {
  {
    std::lock_guard lock(mu_);
    bursts_.erase(tree);
  }
  if (!status) {
    LogInfo("the directories of a tree did not come in advance: {}", Escape(status.error().message()));
    return;
  }
  (apart ? known_apart_ : known_tree_) = tree;
  // Only a hint for the next start, so without fsync.
  const std::string path = NoteOf(apart);
  auto fd = OpenFile(path + ".new", O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (fd && WriteAll(fd->get(), tree.view())) (void)::rename((path + ".new").c_str(), path.c_str());
}

}  // namespace vrun::node
