// SPDX-License-Identifier: Apache-2.0
// LiveRoot: listing directories.
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "vfs/live/root/live_root.h"

namespace vrun::vfs {
namespace {

constexpr uint32_t kMostBytes = 1 << 20;          // per answer
constexpr uint64_t kListedWithAttributes = 2048;  // listed entries, as in lazy_root.cc
constexpr uint64_t kListedInJournal = 4;          // journal bytes per listed entry

// One answer to READDIR or READDIRPLUS.
class Listing {
 public:
  Listing(uint32_t size, bool plus) : size_(std::min(size, kMostBytes)), prefix_(plus ? sizeof(fuse_entry_out) : 0) {}

  bool Fits(size_t name) const { return out_.size() + Bytes(name) <= size_; }
  // REQUIRES: it fits. `entry` is for READDIRPLUS; it may be null: no attributes.
  void Add(const fuse_entry_out* entry, uint64_t ino, uint64_t next, uint32_t mode, std::string_view name) {
    const size_t at = out_.size();
    out_.resize(at + Bytes(name.size()));
    if (prefix_ != 0 && entry != nullptr) std::memcpy(out_.data() + at, entry, sizeof *entry);
    fuse_dirent dirent{};
    dirent.ino = ino;
    dirent.off = next;
    dirent.namelen = static_cast<uint32_t>(name.size());
    dirent.type = (mode & S_IFMT) >> 12;
    std::memcpy(out_.data() + at + prefix_, &dirent, FUSE_NAME_OFFSET);
    std::memcpy(out_.data() + at + prefix_ + FUSE_NAME_OFFSET, name.data(), name.size());
  }
  const std::string& data() const { return out_; }

 private:
  size_t Bytes(size_t name) const { return FUSE_DIRENT_ALIGN(prefix_ + FUSE_NAME_OFFSET + name); }
  const size_t size_;
  const size_t prefix_;
  std::string out_;
};

}  // namespace

void LiveRoot::OpenDir(const Request&, Reply reply) {
  // The kernel then opens directories without a request and caches their listings; it drops them after each local
  // change.
  reply.Error(ENOSYS);
}

void LiveRoot::ReadDir(const Request& request, uint64_t offset, uint32_t size, bool plus, Reply reply) {
  notices_.AfterDoubt(std::move(reply), [this, nodeid = request.nodeid, offset, size, plus](Reply asked) {
    directories_.With(nodeid, std::move(asked), [this, nodeid, offset, size, plus](Reply loaded) {
      ReadDirLoaded(nodeid, offset, size, plus, std::move(loaded));
    });
  });
}

void LiveRoot::ReadDirLoaded(uint64_t nodeid, uint64_t offset, uint32_t size, bool plus, Reply reply) {
  // Offsets stay valid whatever is added and removed between two calls. Names added meanwhile are not listed, so that a
  // loop that renames or creates a file for each listed one ends. So our names come first, newest first (the offset
  // after one is its cookie, which is never reused), then home's (place + 3).
  Listing listing(size, plus);
  std::vector<uint64_t> counted;
  std::vector<PushPiece> traced;
  {
    const TreeLock lock(tree_);
    LiveNode* directory = directories_.FindLocked(nodeid);
    if (directory == nullptr) {
      reply.Error(ESTALE);
      return;
    }
    const LiveDirectory& of = *directory->directory;
    const LiveNode* above = directory->names.empty() ? directory : directory->names.front().parent;
    bool fits = true;
    const auto add = [&](LiveNode* node, uint64_t next, std::string_view name, bool with_attributes) {
      fits = listing.Fits(name.size());
      if (!fits) return;
      fuse_entry_out out{};
      if (with_attributes) {
        out = CountedEntryLocked(node);
        counted.push_back(node->nodeid);
        NoteForPushLocked(*node, &traced);
      }
      listing.Add(with_attributes ? &out : nullptr, node->attributes.ino, next, node->attributes.mode, name);
    };
    if (offset == 0) add(directory, 1, ".", false);
    if (fits && offset <= 1) add(const_cast<LiveNode*>(above), 2, "..", false);
    const bool in_home = offset > 2 && offset < LiveTree::kFirstCookie;
    auto newest = offset <= 2 ? of.ours.end() : of.ours.lower_bound(offset);  // ours before it are not listed yet
    while (fits && !in_home && newest != of.ours.begin()) {
      --newest;
      add(of.entries.find(newest->second)->second.node, newest->first, newest->second, plus);
    }
    // Only a few times as many bytes as this go into the journal for names looked up here.
    const uint64_t most = tree_.RoomForReading() / kListedInJournal;
    const uint64_t lower = of.loaded ? of.loaded->directory->size() : 0;
    const uint64_t from = in_home ? offset - 2 : 0;  // the first place still to be listed
    uint64_t at = from;
    if (!of.places.empty()) {
      const auto first = std::lower_bound(of.places.begin(), of.places.end(), std::pair(uint32_t(from), uint32_t{0}));
      at = static_cast<uint64_t>(first - of.places.begin());
    }
    for (; fits && at < lower; ++at) {
      const uint64_t place = of.places.empty() ? at : of.places[at].first;
      const uint64_t i = of.places.empty() ? at : of.places[at].second;
      const std::string_view name = of.loaded->directory->NameAt(i);
      const auto it = of.entries.find(name);
      if (it != of.entries.end() && (it->second.node == nullptr || it->second.cookie != 0)) continue;  // hidden
      const bool with_attributes = plus && at < kListedWithAttributes && listing.data().size() < most;
      fits = listing.Fits(name.size());
      if (!fits) break;  // before making a node for nothing
      if (with_attributes || it != of.entries.end()) {
        add(tree_.ChildAt(directory, i), place + 3, name, with_attributes);
      } else {
        const tree::Entry entry = of.loaded->directory->At(i);
        listing.Add(nullptr, tree_.InodeNumberOf(entry, i + 2), place + 3, entry.mode, name);
      }
    }
  }
  if (!reply.Data(listing.data())) {
    for (const uint64_t id : counted) Forget(id, 1);
    return;
  }
  PushTold(traced);
}

}  // namespace vrun::vfs
