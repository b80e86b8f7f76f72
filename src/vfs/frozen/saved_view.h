// SPDX-License-Identifier: Apache-2.0
// The state that only this process has, in shared memory, so that another process can take over the mount if this one
// is killed at any moment: which node ids the kernel holds, what they mean, how often the kernel was given them, and
// how files are open. Everything else follows from the tree's digest.
//
//   node id   -> parent's node id and index of the entry in the parent's Directory, and so on up to the root, whose
//                digest is in the header. Written before the kernel hears of the node id.
//   lookups   may be more than the kernel was given (an answer was counted and never sent), never fewer: a node that
//             is kept too long costs memory until the view ends; one that is forgotten too early gives ESTALE.
//   opens     may be too many in the same way; with the backing id of a passthrough file, because all opens of an
//             inode must have one mode and one backing id (fs/fuse/iomode.c: EIO), and ids belong to the connection.
//
// A record is in use if its node id is not 0; the id is written last and cleared first. An operation that changes
// several records at once (Advance) sets `advancing` meanwhile: such a view has no users and is not worth taking over.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/hash/digest.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace vrun::vfs {

struct SavedInode {
  uint64_t nodeid;
  uint64_t parent;   // node id
  uint64_t lookups;  // 0 in the second and further records of a hard link
  uint32_t index;
  uint32_t unused;
};

struct SavedOpen {
  uint64_t nodeid;
  uint32_t cached;       // opens
  uint32_t passthrough;  // opens
  int32_t backing;       // id; 0: none
  uint32_t unused;
};

// Records in memory that other processes may map too. Not thread safe.
template <typename Record>
class SavedTable {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  SavedTable(Record* records, uint32_t capacity, uint32_t* used)
      : records_(records), capacity_(capacity), used_(used) {}

  // kNone: the table is full.
  uint32_t Add(const Record& record) {
    uint32_t slot = kNone;
    if (!free_.empty()) {
      slot = free_.back();
      free_.pop_back();
    } else if (*used_ < capacity_) {
      slot = (*used_)++;
    } else {
      return kNone;
    }
    Record invisible = record;
    invisible.nodeid = 0;
    records_[slot] = invisible;
    std::atomic_ref(records_[slot].nodeid).store(record.nodeid, std::memory_order_release);
    return slot;
  }
  void Remove(uint32_t slot) {
    if (slot == kNone) return;
    std::atomic_ref(records_[slot].nodeid).store(0, std::memory_order_release);
    free_.push_back(slot);
  }
  Record& At(uint32_t slot) { return records_[slot]; }
  uint32_t used() const { return *used_; }
  // Rebuilds the list of free slots after another process has filled the table.
  void FindFree() {
    free_.clear();
    for (uint32_t slot = 0; slot < *used_; ++slot) {
      if (records_[slot].nodeid == 0) free_.push_back(slot);
    }
  }

 private:
  Record* const records_;
  const uint32_t capacity_;
  uint32_t* const used_;  // number of slots ever used
  std::vector<uint32_t> free_;
};

class SavedView {
 public:
  struct Header {
    uint64_t magic;
    uint32_t inodes_used;
    uint32_t opens_used;
    uint64_t next_nodeid;
    unsigned char tree[32];
    uint32_t advancing;    // Advance is running
    uint32_t incomplete;   // a record did not fit: do not take over
    uint32_t passthrough;  // as negotiated
    uint32_t resend;       // the kernel can resend requests that were read and not answered
    uint64_t init_flags;   // of a live view: as agreed with the kernel
  };

  static Result<std::unique_ptr<SavedView>> Create();
  // kCorrupt: not such a file, or of another format version.
  static Result<std::unique_ptr<SavedView>> Open(UniqueFd fd);
  ~SavedView();
  SavedView(const SavedView&) = delete;
  SavedView& operator=(const SavedView&) = delete;

  int fd() const { return fd_.get(); }
  Header& header() { return *header_; }
  const Header& header() const { return *header_; }
  Digest tree() const;
  void SetTree(const Digest& tree);
  // OK if a mount can be taken over with this state.
  Status Usable() const;

  SavedTable<SavedInode>& inodes() { return *inodes_; }
  SavedTable<SavedOpen>& opens() { return *opens_; }

 private:
  SavedView(UniqueFd fd, void* memory);

  const UniqueFd fd_;
  void* const memory_;
  Header* const header_;
  std::unique_ptr<SavedTable<SavedInode>> inodes_;  // guarded by LazyRoot's lock
  std::unique_ptr<SavedTable<SavedOpen>> opens_;    // guarded by LazyRoot's lock of open files
};

}  // namespace vrun::vfs
