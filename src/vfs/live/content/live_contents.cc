// SPDX-License-Identifier: Apache-2.0
#include "vfs/live/content/live_contents.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/escape.h"
#include "base/log.h"
#include "store/format/object_id.h"
#include "vfs/content/seek.h"
#include "vfs/live/tree/node_attributes.h"

namespace vrun::vfs {

std::function<void(int error)> Waiting(Reply reply, std::function<void(Reply)> then) {
  reply.Suspend();
  return [shared = std::make_shared<Reply>(std::move(reply)), then = std::move(then)](int error) {
    if (error != 0) {
      shared->Error(error);
    } else {
      then(std::move(*shared));
    }
  };
}

NodeContent LiveContents::Of(uint64_t nodeid) {
  NodeContent content;
  std::optional<store::ObjectId> known;
  tree::FileVersion version;
  {
    const TreeLock lock(tree_);
    const LiveNode* node = tree_.Find(nodeid);
    if (node == nullptr || !S_ISREG(node->attributes.mode)) return content;
    content.file = node->file;
    content.opened = node->opened();
    if (content.file || !node->in_home_tree()) return content;
    content.place = {tree_.home_tree(), node->HomePath()};
    content.news = tree_.news().count();
    content.sparse = IsSparse(node->attributes.size, node->attributes.blocks);
    version = node->version;
    known = node->known_id;
  }
  content.home = backend_.files().Get(version, known);
  return content;
}

void LiveContents::Need(uint64_t nodeid, const std::shared_ptr<LiveFile>& file, ByteRange range, bool overwrite,
                        std::function<void(int error)> done, bool quietly, int64_t deadline) {
  if (deadline == 0) deadline = MonotonicMicros() + HomeNews::kMicros;
  FileContent::Place place;
  tree::FileVersion version;
  std::optional<store::ObjectId> known;
  uint64_t news = 0;
  bool named = false, overtaken = false;
  {
    const TreeLock lock(tree_);
    news = tree_.news().count();
    if (const LiveNode* node = tree_.Find(nodeid); node != nullptr && node->in_home_tree()) {
      place = {tree_.home_tree(), node->HomePath()};
      version = node->version;
      known = node->known_id;
      named = !node->names.empty();
      overtaken = node->overtaken();
    }
  }
  if (named) file->SetLower(backend_.files().Get(version, known), place);
  const auto came = [this, nodeid, file, range, overwrite, deadline, news, quietly, wait = named && !overtaken,
                     path = place.path, done = std::move(done)](int error) {
    if (error == LiveFile::kLost && wait && MonotonicMicros() < deadline) {
      tree_.news().After(news, deadline, [this, nodeid, file, range, overwrite, quietly, deadline, done] {
        Need(nodeid, file, range, overwrite, done, quietly, deadline);
      });
      return;
    }
    if (error == LiveFile::kLost && !quietly) {
      ReportLost(nodeid, path, Error(Code::kAborted, "the file has changed"));
      error = EIO;
    }
    done(error);
  };
  file->Need(range.offset, range.length, overwrite, tree_.Guarded(came));
}

void LiveContents::ReportLost(uint64_t nodeid, const std::string& path, const Error& error) {
  {
    const TreeLock lock(tree_);
    LiveNode* node = tree_.Find(nodeid);
    if (node == nullptr || std::exchange(node->lost_reported, true)) return;
  }
  LogWarning("content of {} is lost: {}", Escape(path), Escape(error.message()));
  TellLost(path, error.message());
}

void LiveContents::Keep(uint64_t nodeid) {
  NodeContent content = Of(nodeid);
  if (!content.home) return;
  const TreeLock lock(tree_);
  KeepLocked(nodeid, std::move(content.home));
}

void LiveContents::KeepLocked(uint64_t nodeid, std::shared_ptr<FileContent> content) {
  if (tree_.Find(nodeid) != nullptr) kept_[nodeid] = std::move(content);
}

std::shared_ptr<FileContent> LiveContents::TakeKeptLocked(uint64_t nodeid) {
  const auto kept = kept_.extract(nodeid);
  return kept ? kept.mapped() : nullptr;
}

// --- written content that home has leaves this node's disk. decisions/0019 -------------------------------------------

bool LiveContents::IsHomes(const LiveNode& node) {
  if (!node.file || !node.in_home_tree() || node.change != 0 || node.names.empty() || node.home_path) return false;
  if (node.file->dirty() || node.writers > 0) return false;
  if (node.at_home.ino == 0 || node.at_home != node.version) return false;
  return node.HasOnlyNamesOfHome();
}

uint64_t LiveContents::DropWritten(uint64_t rest_bytes) {
  struct Candidate {
    timespec mtime;
    uint64_t bytes;
    uint64_t nodeid;
  };
  std::vector<Candidate> candidates;
  uint64_t total = 0;
  {
    const TreeLock lock(tree_);
    tree_.ForEach([&](const LiveNode& node) {
      struct stat st {};
      if (!IsHomes(node) || node.file->Stat(&st) != 0) return;
      const auto bytes = static_cast<uint64_t>(st.st_blocks) * 512;
      candidates.push_back({st.st_mtim, bytes, node.nodeid});
      total += bytes;
    });
  }
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return std::pair(a.mtime.tv_sec, a.mtime.tv_nsec) < std::pair(b.mtime.tv_sec, b.mtime.tv_nsec);
  });
  uint64_t dropped = 0;
  for (const Candidate& one : candidates) {
    if (total - dropped <= rest_bytes) break;
    std::shared_ptr<LiveFile> file;  // released after the lock
    const TreeLock lock(tree_);
    LiveNode* node = tree_.Find(one.nodeid);
    if (node == nullptr || !IsHomes(*node)) continue;
    node->attributes = CurrentAttributes(*node);
    node->seen = LiveNode::Seen::kOpened;  // the kernel may have content
    file = std::exchange(node->file, nullptr);
    tree_.Touch(node);
    dropped += one.bytes;
  }
  return dropped;
}

}  // namespace vrun::vfs
