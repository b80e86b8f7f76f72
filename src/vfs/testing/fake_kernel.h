// SPDX-License-Identifier: Apache-2.0
// Plays the kernel's side of /dev/fuse for tests: sends requests, accepts replies as the kernel would (once, and only
// if somebody waits), counts lookups, records notifications.
#pragma once

#include <climits>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread/mutex.h"
#include "vfs/fuse/fuse_abi.h"
#include "vfs/fuse/transport.h"

namespace vrun::vfs {

class FakeKernel final : public Transport {
 public:
  struct Answer {
    int error = 0;  // positive errno
    std::string body;

    template <typename T>
    T As() const {
      T value{};
      std::memcpy(&value, body.data(), std::min(body.size(), sizeof value));
      return value;
    }
  };
  struct Notification {
    int code = 0;
    std::string body;
    uint64_t node() const;       // inode, or parent of an entry
    std::string name() const;    // of an entry
    std::string stored() const;  // the bytes of pushed pages
    bool operator==(const Notification&) const = default;
  };
  struct DirectoryEntry {
    std::string name;
    fuse_entry_out entry{};  // READDIRPLUS
    uint64_t ino = 0;
    uint32_t type = 0;
  };

  // --- the kernel's side -----------------------------------------------------------------------------------------
  // Each call gives the request's id; Wait gives its answer, or nullopt after `timeout_ms`.
  uint64_t Send(uint32_t opcode, uint64_t nodeid, std::string_view body, uint32_t pid = 0);
  void SendRaw(std::string packet);  // any bytes; no answer is expected
  std::optional<Answer> Wait(uint64_t unique, int timeout_ms = 10'000);
  bool Answered(uint64_t unique);
  Answer Call(uint32_t opcode, uint64_t nodeid, std::string_view body);  // Send and Wait; ETIMEDOUT
  // The caller is gone: its answer fails with ENOENT.
  void Withdraw(uint64_t unique);
  void Interrupt(uint64_t unique);

  InitOut Init(uint64_t flags = ~0ull, uint32_t minor = 45);
  Answer Lookup(uint64_t parent, std::string_view name);
  Answer GetAttr(uint64_t node);
  Answer Open(uint64_t node);
  Answer Read(uint64_t node, uint64_t offset, uint32_t size);
  uint64_t SendRead(uint64_t node, uint64_t offset, uint32_t size, uint32_t open_flags = 0);
  uint64_t SendLookup(uint64_t parent, std::string_view name);
  Answer Xattr(uint64_t node, std::string_view name, uint32_t size);
  Answer ListXattr(uint64_t node, uint32_t size);
  // Lists the whole directory with repeated calls.
  std::vector<DirectoryEntry> ReadDir(uint64_t node, bool plus, uint32_t size = 4096);
  void Release(uint64_t node, uint64_t handle);
  void Forget(uint64_t node, uint64_t count);
  // Gives back all counted lookups.
  void ForgetAll();
  uint64_t lookups(uint64_t node);
  std::vector<Notification> TakeNotifications();
  int open_backings();
  // Pushed pages (FUSE_NOTIFY_STORE) block, as for a page that somebody is reading; until off, or Abort.
  void HoldStores(bool on);
  // Waits until this many are held.
  bool WaitHeldStores(int n, int timeout_ms = 10'000);
  // Answers the next `times` pushes with `error`; 0: accepts them.
  void RefuseStores(int error, int times = INT_MAX);

  // --- Transport -------------------------------------------------------------------------------------------------
  size_t Receive(void* buffer, size_t size) override;
  int Send(const iovec* parts, int count) override;
  int OpenBacking(int fd) override;
  void CloseBacking(int id) override;
  void Abort() override;

 private:
  struct Waiting {
    uint32_t opcode = 0;
    std::optional<Answer> answer;
  };
  uint64_t Queue(uint32_t opcode, uint64_t nodeid, std::string_view body, uint32_t pid, bool answered);
  void CountLookups(uint32_t opcode, const Answer& answer);

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::string> requests_;
  std::map<uint64_t, Waiting> waiting_;
  std::map<uint64_t, uint64_t> lookups_;
  std::vector<Notification> notifications_;
  std::set<int> backings_;
  int next_backing_ = 1;
  uint64_t next_unique_ = 2;
  bool aborted_ = false;
  bool hold_stores_ = false;
  int held_stores_ = 0;
  int refuse_stores_ = 0;
  int refuse_times_ = 0;
};

}  // namespace vrun::vfs
