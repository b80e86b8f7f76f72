// SPDX-License-Identifier: Apache-2.0
// The additional operations of a writable file system (see Operations in dispatcher.h), and their decoder.
//
// As with Operations: called on the worker threads, several at once; each Reply is answered once, now or later. Names
// are one component of at most 255 bytes; views into the packet are valid until the call returns.
#pragma once

#include <cstdint>
#include <string_view>

#include "vfs/fuse/decoder.h"
#include "vfs/fuse/dispatcher.h"
#include "vfs/fuse/fuse_abi.h"

namespace vrun::vfs {

class WriteOperations {
 public:
  virtual ~WriteOperations() = default;
  virtual void SetAttr(const Request& request, const fuse_setattr_in& in, Reply reply) = 0;  // fuse_attr_out

  // `mode` includes the file type if the request has one; we must apply `umask` (FUSE_DONT_MASK). Answers with
  // fuse_entry_out.
  struct NewName {
    std::string_view name;
    uint32_t mode = 0;
    uint32_t umask = 0;
    uint32_t rdev = 0;
    std::string_view target;  // of a symbolic link
  };
  virtual void Make(const Request& request, const NewName& made, Reply reply) = 0;
  virtual void Link(const Request& request, uint64_t source, std::string_view name, Reply reply) = 0;
  // `made.name` empty: a file without a name (O_TMPFILE). Answers with fuse_entry_out and OpenOut.
  virtual void Create(const Request& request, const NewName& made, uint32_t flags, Reply reply) = 0;

  virtual void Remove(const Request& request, std::string_view name, bool directory, Reply reply) = 0;
  // `flags` of renameat2.
  virtual void Rename(const Request& request, std::string_view name, uint64_t to_parent, std::string_view to_name,
                      uint32_t flags, Reply reply) = 0;

  virtual void Write(const Request& request, const fuse_write_in& in, std::string_view data, Reply reply) = 0;
  virtual void Flush(const Request& request, Reply reply) = 0;
  virtual void Sync(const Request& request, bool data_only, Reply reply) = 0;
  virtual void Allocate(const Request& request, const fuse_fallocate_in& in, Reply reply) = 0;
  virtual void CopyRange(const Request& request, const fuse_copy_file_range_in& in, Reply reply) = 0;

  // `flags` of setxattr(2). `kill_sgid`: the caller sets an ACL and may not keep the set-group-id bit.
  virtual void SetXattr(const Request& request, std::string_view name, std::string_view value, uint32_t flags,
                        bool kill_sgid, Reply reply) = 0;
  virtual void RemoveXattr(const Request& request, std::string_view name, Reply reply) = 0;
};

// Result of decoding a packet.
enum class Dispatched { kDone, kMalformed, kUnknown };

// Decodes one request of the operations above. `init_flags`: as agreed at INIT. Takes `reply` only if kDone.
Dispatched DispatchWrite(WriteOperations& operations, uint64_t init_flags, uint32_t opcode, const Request& request,
                         Decoder in, Reply* reply);

}  // namespace vrun::vfs
