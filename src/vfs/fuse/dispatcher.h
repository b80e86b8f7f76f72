// SPDX-License-Identifier: Apache-2.0
// Decodes FUSE packets: bounds-checks each request, calls a typed operation and encodes the answer.
//
// A request is answered exactly once, at any time, from any thread, through its Reply. An operation that cannot answer
// at once calls Reply::Suspend, so that a signal to the caller (FUSE_INTERRUPT) can end the request, keeps the Reply
// and returns.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

#include "base/thread/mutex.h"
#include "vfs/fuse/fuse_abi.h"
#include "vfs/fuse/transport.h"
#include "vfs/timer_thread.h"

namespace vrun::vfs {

struct Request {
  uint64_t unique = 0;
  uint64_t nodeid = 0;
  uint32_t uid = 0;
  uint32_t gid = 0;
  uint32_t pid = 0;              // thread id of the caller in our pid namespace; 0: not visible from here
  bool kill_privileges = false;  // an open that truncates: the caller may not keep the set-id bits
  bool direct = false;           // a read past the page cache (O_DIRECT): the reader sees an error
};

class CpuLatency;
class ReplyChannel;  // dispatcher.cc

// Movable. Destroyed without an answer: EIO. Every answer returns whether it was delivered. False: the caller was
// interrupted or is gone, and what the answer would have handed over (a lookup count, an open file) still belongs to
// us.
class Reply {
 public:
  Reply() = default;
  Reply(std::shared_ptr<ReplyChannel> channel, const Request& request);
  Reply(Reply&& other) noexcept = default;
  Reply& operator=(Reply&& other) noexcept;
  ~Reply();

  bool Error(int error_number);
  bool Empty() { return Data({}); }
  bool Data(std::string_view bytes);
  template <typename T>
  bool Struct(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    return Data({reinterpret_cast<const char*>(&value), sizeof value});
  }

  // From now on an interrupt answers EINTR in our place. If the caller is dying, it does so at once; otherwise only
  // after a second of waiting, because programs do not expect EINTR from files.
  void Suspend();

 private:
  bool Finish(int error_number, std::string_view bytes);

  std::shared_ptr<ReplyChannel> channel_;  // null: answered, or moved from
  uint64_t unique_ = 0;
  uint32_t pid_ = 0;
  bool suspended_ = false;
};

struct KernelOffer {
  uint32_t minor = 0;
  uint64_t flags = 0;
  uint32_t max_readahead = 0;
};

struct InitChoice {
  uint64_t flags = 0;            // masked with the kernel's offer
  uint16_t max_background = 64;  // read-ahead requests under way
  uint16_t max_pages = 256;      // of one READ
};

class WriteOperations;  // write_operations.h

// A file system as a set of typed requests. Called on the worker threads, several at once. Other requests are answered
// with ENOSYS (the kernel then stops asking where it can) or EROFS.
class Operations {
 public:
  virtual ~Operations() = default;
  // Null: read-only.
  virtual WriteOperations* writes() { return nullptr; }
  virtual InitChoice Init(const KernelOffer& offer) = 0;
  virtual void Lookup(const Request& request, std::string_view name, Reply reply) = 0;  // fuse_entry_out
  virtual void Forget(uint64_t nodeid, uint64_t count) = 0;
  virtual void GetAttr(const Request& request, Reply reply) = 0;  // fuse_attr_out
  virtual void ReadLink(const Request& request, Reply reply) = 0;
  virtual void Open(const Request& request, uint32_t flags, Reply reply) = 0;  // OpenOut
  virtual void Read(const Request& request, uint64_t offset, uint32_t size, Reply reply) = 0;
  virtual void Release(const Request& request, uint64_t handle, Reply reply) = 0;
  virtual void OpenDir(const Request& request, Reply reply) = 0;
  virtual void ReadDir(const Request& request, uint64_t offset, uint32_t size, bool plus, Reply reply) = 0;
  virtual void StatFs(const Request& request, Reply reply) = 0;
  // size 0 asks for the length (fuse_getxattr_out).
  virtual void GetXattr(const Request& request, std::string_view name, uint32_t size, Reply reply) = 0;
  virtual void ListXattr(const Request& request, uint32_t size, Reply reply) = 0;
  // `whence` of lseek(2): SEEK_DATA or SEEK_HOLE. Answers with fuse_lseek_out.
  virtual void Seek(const Request& request, uint64_t offset, uint32_t whence, Reply reply) = 0;
};

struct DispatcherCounters {
  std::array<std::atomic<uint64_t>, kOpcodeCount> requests{};
  std::atomic<uint64_t> malformed{0};
  std::atomic<uint64_t> interrupted{0};
};

class Dispatcher {
 public:
  // `operations` and `cpu_latency` (may be null) must outlive the Dispatcher. `timers` runs the interrupt policy.
  Dispatcher(std::shared_ptr<Transport> transport, Operations* operations, TimerThread* timers,
             CpuLatency* cpu_latency = nullptr);
  ~Dispatcher();
  Dispatcher(const Dispatcher&) = delete;
  Dispatcher& operator=(const Dispatcher&) = delete;

  void Start(unsigned threads);
  // False: the kernel has not sent INIT within the timeout.
  bool WaitInitialized(int timeout_ms);
  // Aborts the transport and joins. Pending replies may be completed later; they are discarded.
  void Stop();
  // Handles one packet, as Receive returned it (tests, fuzzing).
  void Handle(std::string_view packet);

  // Notifications; see Notify (transport.h) for where they may be sent.
  int InvalidateEntry(uint64_t parent, std::string_view name);
  bool can_expire() const { return (init_flags_.load() & kFuseHasExpireOnly) != 0; }
  // Makes the kernel look up the name again before its next use; a no-op where the kernel cannot (Linux before 6.2).
  int ExpireEntry(uint64_t parent, std::string_view name);
  int InvalidateAttributes(uint64_t nodeid);
  int InvalidateInode(uint64_t nodeid);  // attributes and all cached pages or listings

  // For a connection whose INIT another process answered; call before Start.
  void SetInitialized(uint64_t init_flags);
  // Makes the kernel send again the requests that a dead process read from the device and did not answer. Only if INIT
  // offered kFuseHasResend.
  int Resend();

  const DispatcherCounters& counters() const { return counters_; }
  bool initialized() const { return initialized_.load(); }

 private:
  void Work();
  void Init(std::string_view body, Reply reply);
  int NotifyEntry(uint64_t parent, std::string_view name, uint32_t flags);

  const std::shared_ptr<Transport> transport_;
  const std::shared_ptr<ReplyChannel> channel_;
  Operations* const operations_;
  CpuLatency* const cpu_latency_;
  DispatcherCounters counters_;
  std::atomic<uint64_t> init_flags_{0};  // as agreed at INIT
  std::atomic<bool> initialized_{false};
  Mutex init_mutex_;
  CondVar init_done_;
  std::vector<std::thread> threads_;
};

}  // namespace vrun::vfs
