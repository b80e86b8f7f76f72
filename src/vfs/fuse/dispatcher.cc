// SPDX-License-Identifier: Apache-2.0
#include "vfs/fuse/dispatcher.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/clock.h"
#include "base/files.h"
#include "base/log.h"
#include "base/thread/mutex.h"
#include "vfs/cpu_latency.h"
#include "vfs/fuse/decoder.h"
#include "vfs/fuse/write_operations.h"

namespace vrun::vfs {
namespace {

constexpr size_t kReceiveBytes = 128 * 1024;  // at least 8 KiB + max_write; large for BATCH_FORGET
constexpr uint32_t kNoWrite = 4096;           // the minimum that the kernel accepts, for read-only views
constexpr uint32_t kMaxWrite = 1 << 20;
constexpr int64_t kInterruptCheckMicros = 50'000;
constexpr int64_t kInterruptGraceMicros = 1'000'000;
constexpr size_t kEarlyInterrupts = 64;

// A thread with SIGKILL pending is dying (the kernel turns every fatal signal into SIGKILL). Also true if the thread
// cannot be inspected: then nobody is kept waiting.
bool IsDying(uint32_t pid) {
  if (pid == 0) return true;
  const auto text = ReadFile("/proc/" + std::to_string(pid) + "/status", 16384);
  if (!text) return true;
  uint64_t pending = 0;
  for (const char* key : {"\nSigPnd:", "\nShdPnd:"}) {
    const size_t at = text->find(key);
    if (at == std::string::npos) return true;
    pending |= std::strtoull(text->c_str() + at + std::strlen(key), nullptr, 16);
  }
  return (pending & (1ull << (9 - 1))) != 0;
}

}  // namespace

// Outlives the Dispatcher while replies are pending.
class ReplyChannel : public std::enable_shared_from_this<ReplyChannel> {
 public:
  ReplyChannel(std::shared_ptr<Transport> transport, TimerThread* timers, DispatcherCounters* counters)
      : transport_(std::move(transport)), timers_(timers), counters_(counters) {}

  bool Send(uint64_t unique, int error_number, std::string_view bytes) {
    fuse_out_header header{};
    header.len = static_cast<uint32_t>(sizeof header + bytes.size());
    header.error = -error_number;
    header.unique = unique;
    const iovec parts[2] = {{&header, sizeof header}, {const_cast<char*>(bytes.data()), bytes.size()}};
    return transport_->Send(parts, bytes.empty() ? 1 : 2) == 0;
  }

  // False: an early interrupt wants the request ended at once.
  bool Suspend(uint64_t unique, uint32_t pid) {
    MutexLock lock(mutex_);
    pending_.emplace(unique, Pending{pid, 0});
    const auto early = std::find(early_interrupts_.begin(), early_interrupts_.end(), unique);
    if (early == early_interrupts_.end()) return true;
    early_interrupts_.erase(early);
    return !InterruptLocked(unique);
  }

  // Takes the right to answer a suspended request; false: EINTR was already answered.
  bool Claim(uint64_t unique) {
    MutexLock lock(mutex_);
    return pending_.erase(unique) == 1;
  }

  void Interrupt(uint64_t unique) {
    bool end = false;
    {
      MutexLock lock(mutex_);
      if (pending_.count(unique) == 0) {
        // Another worker may be about to suspend the request. Or it has been answered: then this entry is dropped in
        // time.
        if (early_interrupts_.size() == kEarlyInterrupts) early_interrupts_.erase(early_interrupts_.begin());
        early_interrupts_.push_back(unique);
        return;
      }
      end = InterruptLocked(unique);
    }
    if (end) EndInterrupted(unique);
  }

  void EndInterrupted(uint64_t unique) {
    if (Claim(unique)) SendInterrupted(unique);
  }

  // After Close no timer is started and no counter changed: the Dispatcher is gone.
  void Close() {
    MutexLock lock(mutex_);
    timers_ = nullptr;
    counters_ = nullptr;
  }

 private:
  struct Pending {
    uint32_t pid;
    int64_t interrupted_at;  // 0: not interrupted
  };

  void SendInterrupted(uint64_t unique) {
    {
      MutexLock lock(mutex_);
      if (counters_ != nullptr) ++counters_->interrupted;
    }
    Send(unique, EINTR, {});
  }

  // True: end it now. Otherwise a timer checks again: the kernel reports only the first signal, and a fatal one may
  // follow.
  bool InterruptLocked(uint64_t unique) VRUN_REQUIRES(mutex_) {
    Pending& pending = pending_.at(unique);
    if (pending.interrupted_at == 0) pending.interrupted_at = MonotonicMicros();
    if (timers_ == nullptr || IsDying(pending.pid) ||
        MonotonicMicros() - pending.interrupted_at >= kInterruptGraceMicros) {
      return true;
    }
    timers_->After(kInterruptCheckMicros, [weak = weak_from_this(), unique] {
      const auto self = weak.lock();
      if (!self) return;
      {
        MutexLock lock(self->mutex_);
        if (self->pending_.count(unique) == 0 || !self->InterruptLocked(unique)) return;
      }
      self->EndInterrupted(unique);
    });
    return false;
  }

  const std::shared_ptr<Transport> transport_;
  Mutex mutex_;
  TimerThread* timers_;
  DispatcherCounters* counters_ VRUN_GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, Pending> pending_ VRUN_GUARDED_BY(mutex_);  // suspended requests
  std::vector<uint64_t> early_interrupts_ VRUN_GUARDED_BY(mutex_);
};

Reply::Reply(std::shared_ptr<ReplyChannel> channel, const Request& request)
    : channel_(std::move(channel)), unique_(request.unique), pid_(request.pid) {}

Reply& Reply::operator=(Reply&& other) noexcept {
  if (this != &other) {
    if (channel_) Finish(EIO, {});
    channel_ = std::move(other.channel_);
    unique_ = other.unique_;
    pid_ = other.pid_;
    suspended_ = other.suspended_;
  }
  return *this;
}

Reply::~Reply() {
  if (channel_) Finish(EIO, {});
}

bool Reply::Error(int error_number) { return Finish(error_number, {}); }
bool Reply::Data(std::string_view bytes) { return Finish(0, bytes); }

bool Reply::Finish(int error_number, std::string_view bytes) {
  const std::shared_ptr<ReplyChannel> channel = std::move(channel_);
  channel_ = nullptr;
  if (!channel) return false;
  if (suspended_ && !channel->Claim(unique_)) return false;
  return channel->Send(unique_, error_number, bytes);
}

void Reply::Suspend() {
  if (!channel_ || suspended_) return;
  suspended_ = true;
  if (!channel_->Suspend(unique_, pid_)) channel_->EndInterrupted(unique_);
}

// ---------------------------------------------------------------------------------------------------------------------

Dispatcher::Dispatcher(std::shared_ptr<Transport> transport, Operations* operations, TimerThread* timers,
                       CpuLatency* cpu_latency)
    : transport_(std::move(transport)),
      channel_(std::make_shared<ReplyChannel>(transport_, timers, &counters_)),
      operations_(operations),
      cpu_latency_(cpu_latency) {}

Dispatcher::~Dispatcher() {
  Stop();
  channel_->Close();
}

void Dispatcher::Start(unsigned threads) {
  for (unsigned i = 0; i < std::max(1u, threads); ++i) threads_.emplace_back([this] { Work(); });
}

bool Dispatcher::WaitInitialized(int timeout_ms) {
  MutexLock lock(init_mutex_);
  return init_done_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [this] { return initialized_.load(); });
}

void Dispatcher::Stop() {
  if (threads_.empty()) return;
  transport_->Abort();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void Dispatcher::Work() {
  std::vector<char> buffer(operations_->writes() != nullptr ? kMaxWrite + kReceiveBytes : kReceiveBytes);
  while (const size_t n = transport_->Receive(buffer.data(), buffer.size())) {
    Handle({buffer.data(), n});
  }
}

void Dispatcher::Handle(std::string_view packet) {
  Decoder in{packet};
  const auto header = in.Take<fuse_in_header>();
  if (!header) {
    ++counters_.malformed;  // no id: nobody to answer
    return;
  }
  const Request request{header->unique, header->nodeid, header->uid, header->gid, header->pid, false};
  const size_t extensions = size_t{header->total_extlen} * 8;
  if (header->len != packet.size() || extensions > in.rest.size()) {
    ++counters_.malformed;
    if (header->opcode != FUSE_FORGET && header->opcode != FUSE_BATCH_FORGET && header->opcode != FUSE_INTERRUPT) {
      channel_->Send(request.unique, EIO, {});
    }
    return;
  }
  in.rest.remove_suffix(extensions);
  if (header->opcode < kOpcodeCount) counters_.requests[header->opcode].fetch_add(1, std::memory_order_relaxed);

  const auto malformed = [&](Reply reply) {
    ++counters_.malformed;
    reply.Error(EIO);
  };

  switch (header->opcode) {  // those without an answer first
    case FUSE_FORGET:
      if (const auto forget = in.Take<fuse_forget_in>()) {
        operations_->Forget(request.nodeid, forget->nlookup);
      } else {
        ++counters_.malformed;
      }
      return;
    case FUSE_BATCH_FORGET: {
      const auto batch = in.Take<fuse_batch_forget_in>();
      if (!batch || in.rest.size() / sizeof(fuse_forget_one) < batch->count) {
        ++counters_.malformed;
        return;
      }
      for (uint32_t i = 0; i < batch->count; ++i) {
        const fuse_forget_one one = *in.Take<fuse_forget_one>();
        operations_->Forget(one.nodeid, one.nlookup);
      }
      return;
    }
    case FUSE_INTERRUPT:
      if (const auto interrupt = in.Take<fuse_interrupt_in>()) {
        channel_->Interrupt(interrupt->unique);
      } else {
        ++counters_.malformed;
      }
      return;
    default: break;
  }

  if (cpu_latency_ != nullptr) cpu_latency_->OnRequest();
  Reply reply(channel_, request);
  if (header->opcode == FUSE_INIT) return Init(in.rest, std::move(reply));
  if (WriteOperations* writes = operations_->writes()) {
    switch (DispatchWrite(*writes, init_flags_.load(), header->opcode, request, in, &reply)) {
      case Dispatched::kDone: return;
      case Dispatched::kMalformed: return malformed(std::move(reply));
      case Dispatched::kUnknown: break;
    }
  }
  switch (header->opcode) {
    case FUSE_DESTROY:  // the connection then ends by itself
      reply.Empty();
      return;
    case FUSE_LOOKUP: {
      const auto name = in.TakeName();
      if (!name) return malformed(std::move(reply));
      if (name->size() > 255) {
        reply.Error(ENAMETOOLONG);
        return;
      }
      if (name->find('/') != std::string_view::npos) return malformed(std::move(reply));
      return operations_->Lookup(request, *name, std::move(reply));
    }
    case FUSE_GETATTR:
      if (!in.Take<fuse_getattr_in>()) return malformed(std::move(reply));
      return operations_->GetAttr(request, std::move(reply));
    case FUSE_READLINK: return operations_->ReadLink(request, std::move(reply));
    case FUSE_OPEN: {
      const auto open = in.Take<fuse_open_in>();
      if (!open) return malformed(std::move(reply));
      Request opened = request;
      opened.kill_privileges = (open->open_flags & FUSE_OPEN_KILL_SUIDGID) != 0;
      return operations_->Open(opened, open->flags, std::move(reply));
    }
    case FUSE_READ: {
      const auto read = in.Take<fuse_read_in>();
      if (!read) return malformed(std::move(reply));
      Request of = request;
      of.direct = (read->flags & O_DIRECT) != 0;
      return operations_->Read(of, read->offset, read->size, std::move(reply));
    }
    case FUSE_RELEASE: {
      const auto release = in.Take<fuse_release_in>();
      if (!release) return malformed(std::move(reply));
      return operations_->Release(request, release->fh, std::move(reply));
    }
    case FUSE_OPENDIR:
      if (!in.Take<fuse_open_in>()) return malformed(std::move(reply));
      return operations_->OpenDir(request, std::move(reply));
    case FUSE_READDIR:
    case FUSE_READDIRPLUS: {
      const auto read = in.Take<fuse_read_in>();
      if (!read) return malformed(std::move(reply));
      return operations_->ReadDir(request, read->offset, read->size, header->opcode == FUSE_READDIRPLUS,
                                  std::move(reply));
    }
    case FUSE_RELEASEDIR: reply.Empty(); return;
    case FUSE_STATFS: return operations_->StatFs(request, std::move(reply));
    case FUSE_GETXATTR: {
      const auto get = in.Take<fuse_getxattr_in>();
      const auto name = get ? in.TakeName() : std::nullopt;
      if (!name) return malformed(std::move(reply));
      return operations_->GetXattr(request, *name, get->size, std::move(reply));
    }
    case FUSE_LISTXATTR: {
      const auto list = in.Take<fuse_getxattr_in>();
      if (!list) return malformed(std::move(reply));
      return operations_->ListXattr(request, list->size, std::move(reply));
    }
    case FUSE_LSEEK: {
      const auto seek = in.Take<fuse_lseek_in>();
      if (!seek) return malformed(std::move(reply));
      if (seek->whence != SEEK_DATA && seek->whence != SEEK_HOLE) {
        reply.Error(EINVAL);
        return;
      }
      return operations_->Seek(request, seek->offset, seek->whence, std::move(reply));
    }
    case FUSE_IOCTL: reply.Error(ENOTTY); return;
    case FUSE_SETATTR:
    case FUSE_SYMLINK:
    case FUSE_MKNOD:
    case FUSE_MKDIR:
    case FUSE_UNLINK:
    case FUSE_RMDIR:
    case FUSE_RENAME:
    case FUSE_RENAME2:
    case FUSE_LINK:
    case FUSE_WRITE:
    case FUSE_SETXATTR:
    case FUSE_REMOVEXATTR:
    case FUSE_CREATE:
    case FUSE_TMPFILE:
    case FUSE_FALLOCATE:
    case FUSE_COPY_FILE_RANGE: reply.Error(EROFS); return;
    default:
      // FLUSH, ACCESS, POLL, STATX, FSYNC, SYNCFS, BMAP...: the kernel remembers ENOSYS and from then on uses its
      // default behaviour, which is right for files of plain data.
      reply.Error(ENOSYS);
      return;
  }
}

void Dispatcher::Init(std::string_view body, Reply reply) {
  // The shortest INIT is two version numbers; 16 bytes without the second word of flags.
  Decoder in{body};
  const auto major = in.Take<uint32_t>();
  const auto minor = in.Take<uint32_t>();
  if (!major || !minor) {
    ++counters_.malformed;
    reply.Error(EIO);
    return;
  }
  InitOut out{};
  out.major = FUSE_KERNEL_VERSION;
  out.minor = kSpokenMinor;
  if (*major > FUSE_KERNEL_VERSION) {  // the kernel asks again with our version
    reply.Struct(out);
    return;
  }
  const auto max_readahead = in.Take<uint32_t>();
  const auto flags = in.Take<uint32_t>();
  if (*major < FUSE_KERNEL_VERSION || *minor < kMinimumMinor || !max_readahead || !flags) {
    LogError("the kernel speaks FUSE {}.{}: 7.{} (Linux 5.4) is needed", *major, *minor, kMinimumMinor);
    reply.Error(EPROTO);
    return;
  }
  const auto flags2 = in.Take<uint32_t>();
  const bool extended = (*flags & FUSE_INIT_EXT) != 0 && flags2;
  const KernelOffer offer{*minor, *flags | (extended ? uint64_t{*flags2} << 32 : 0), *max_readahead};
  const InitChoice choice = operations_->Init(offer);
  const uint64_t chosen = (choice.flags | FUSE_INIT_EXT | FUSE_MAX_PAGES) & offer.flags;
  out.minor = std::min(*minor, kSpokenMinor);
  out.max_readahead = *max_readahead;
  out.flags = static_cast<uint32_t>(chosen);
  out.flags2 = static_cast<uint32_t>(chosen >> 32);
  init_flags_ = chosen;
  out.max_background = choice.max_background;
  out.congestion_threshold = static_cast<uint16_t>(choice.max_background * 3 / 4);
  out.max_write = operations_->writes() != nullptr ? kMaxWrite : kNoWrite;
  out.time_gran = 1;
  out.max_pages = choice.max_pages;
  out.max_stack_depth = (chosen & kFusePassthrough) != 0 ? 1 : 0;
  reply.Struct(out);
  const MutexLock lock(init_mutex_);
  initialized_ = true;
  init_done_.notify_all();
}

void Dispatcher::SetInitialized(uint64_t init_flags) {
  init_flags_ = init_flags;
  initialized_ = true;
}

int Dispatcher::Resend() { return Notify(*transport_, kNotifyResend, {}, {}); }

int Dispatcher::InvalidateEntry(uint64_t parent, std::string_view name) { return NotifyEntry(parent, name, 0); }

int Dispatcher::ExpireEntry(uint64_t parent, std::string_view name) {
  // Without it the kernel ignores the flag, and would drop the name together with mounts on it.
  if (!can_expire()) return 0;
  return NotifyEntry(parent, name, kFuseExpireOnly);
}

int Dispatcher::NotifyEntry(uint64_t parent, std::string_view name, uint32_t flags) {
  struct {
    uint64_t parent;
    uint32_t namelen;
    uint32_t flags;
  } out{};  // fuse_notify_inval_entry_out; `flags` has another name in older headers
  static_assert(sizeof out == sizeof(fuse_notify_inval_entry_out));
  out.parent = parent;
  out.flags = flags;
  out.namelen = static_cast<uint32_t>(name.size());
  const std::string with_nul(name);
  return Notify(*transport_, FUSE_NOTIFY_INVAL_ENTRY, {reinterpret_cast<const char*>(&out), sizeof out},
                {with_nul.c_str(), with_nul.size() + 1});
}

int Dispatcher::InvalidateAttributes(uint64_t nodeid) {
  const fuse_notify_inval_inode_out out{nodeid, -1, 0};
  return Notify(*transport_, FUSE_NOTIFY_INVAL_INODE, {reinterpret_cast<const char*>(&out), sizeof out}, {});
}

int Dispatcher::InvalidateInode(uint64_t nodeid) {
  const fuse_notify_inval_inode_out out{nodeid, 0, 0};
  return Notify(*transport_, FUSE_NOTIFY_INVAL_INODE, {reinterpret_cast<const char*>(&out), sizeof out}, {});
}

}  // namespace vrun::vfs
