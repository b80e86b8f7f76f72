// SPDX-License-Identifier: Apache-2.0
#include "vfs/fuse_ring.h"

#include <fcntl.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <string>
#include <utility>

#include "base/files.h"
#include "base/log.h"
#include "base/unique_fd.h"
#include "vfs/fuse_abi.h"

namespace vrun::vfs {
namespace {

// A suspended request (one that waits for home) keeps its entry, and its neighbours on that CPU need others.
constexpr unsigned kEntriesOfQueue = 32;
constexpr unsigned kMostLanes = 8;
constexpr uint64_t kWakeUp = 0;  // user_data; entries have their address

// What 2.37 of linux/fuse.h has and Debian 12's has not.
struct RingHeader {
  char in_out[128];  // fuse_in_header, then fuse_out_header
  char op_in[128];   // the operation's own header
  struct {
    uint64_t flags;
    uint64_t commit_id;
    uint32_t payload_size;
    uint32_t padding;
    uint64_t reserved;
  } entry;
};
static_assert(sizeof(RingHeader) == 288);

struct RingCommand {
  uint64_t flags;
  uint64_t commit_id;
  uint16_t queue;
  uint8_t padding[6];
};
constexpr uint32_t kRegister = 1, kCommitAndFetch = 2;

struct Sqe {  // IORING_SETUP_SQE128
  io_uring_sqe sqe;
  char more[64];
};
static_assert(sizeof(Sqe) == 128);

// The number of queues that the kernel makes: "0-3,8" -> 9.
Result<unsigned> PossibleCpus() {
  VRUN_ASSIGN(const std::string text, ReadFile("/sys/devices/system/cpu/possible", 4096));
  size_t at = text.find_last_of("-,");
  at = at == std::string::npos ? 0 : at + 1;
  unsigned last = 0;
  const auto [end, error] = std::from_chars(text.data() + at, text.data() + text.size(), last);
  if (error != std::errc() || last > 65535) return Error(Code::kInvalid, "the number of CPUs cannot be read");
  return last + 1;
}

class Mapping {
 public:
  static Result<Mapping> Make(size_t size, int fd, off_t offset) {
    const int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED | MAP_POPULATE;
    void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, flags, fd, offset);
    if (memory == MAP_FAILED) return ErrnoError("memory for FUSE over io_uring");
    return Mapping(memory, size);
  }
  Mapping() = default;
  Mapping(Mapping&& other) noexcept : memory_(std::exchange(other.memory_, nullptr)), size_(other.size_) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Mapping() {
    if (memory_ != nullptr) ::munmap(memory_, size_);
  }
  char* at(size_t offset) const { return static_cast<char*>(memory_) + offset; }

 private:
  Mapping(void* memory, size_t size) : memory_(memory), size_(size) {}
  void* memory_ = nullptr;
  size_t size_ = 0;
};

}  // namespace

struct FuseRing::Entry {
  Lane* lane = nullptr;
  uint16_t queue = 0;
  RingHeader* header = nullptr;
  char* payload = nullptr;
  iovec parts[2];  // both, as the kernel is told
};

// One io_uring and the thread that serves the queues of some CPUs. Only that thread submits: the kernel hands requests
// to the thread that asked for them, and loses them when it ends.
class FuseRing::Lane {
 public:
  Lane(FuseRing* owner, size_t entries) : owner_(owner), entries_(entries) {}
  ~Lane() { Stop(); }

  Status Prepare();
  void AddEntry(size_t index, uint16_t queue);
  void Start() {
    thread_ = std::thread([this] { Run(); });
  }
  void Stop() {
    if (!thread_.joinable()) return;
    WakeUp();
    thread_.join();
  }
  // Its buffers hold the answer.
  void Commit(Entry* entry);

 private:
  static thread_local Lane* mine_;

  size_t Room() const { return (sizeof(RingHeader) + 4095) / 4096 * 4096 + owner_->payload_; }
  Status MapRing(const io_uring_params& params);
  Sqe* NextSqe();
  void Queue(Entry* entry, uint32_t command);
  void WakeUp();
  void WatchWakeUps();
  void TakeWaiting();
  bool Enter();
  void Reap();
  void Handle(Entry* entry);
  void Run();

  FuseRing* const owner_;
  std::vector<Entry> entries_;
  UniqueFd ring_, wake_;
  Mapping rings_, sqes_, buffers_;
  std::atomic<uint32_t>*sq_head_, *sq_tail_, *cq_head_, *cq_tail_;
  uint32_t sq_mask_ = 0, cq_mask_ = 0;
  io_uring_cqe* cqes_ = nullptr;
  uint32_t unsubmitted_ = 0;
  size_t live_ = 0;  // entries that the kernel may still complete, or that are being worked at
  std::string packet_;

  std::mutex mutex_;
  std::vector<Entry*> waiting_;  // answered by other threads
  std::thread thread_;
};

thread_local FuseRing::Lane* FuseRing::Lane::mine_ = nullptr;

Status FuseRing::Lane::Prepare() {
  io_uring_params params{};
  // DEFER_TASKRUN: what the kernel has for this thread waits until it asks, and interrupts nothing.
  params.flags = IORING_SETUP_SQE128 | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
                 IORING_SETUP_R_DISABLED | IORING_SETUP_CLAMP;
  const auto size = static_cast<unsigned>(entries_.size() + 1);
  ring_.Reset(static_cast<int>(::syscall(SYS_io_uring_setup, size, &params)));
  if (!ring_) return ErrnoError("io_uring");
  ::fcntl(ring_.get(), F_SETFD, FD_CLOEXEC);
  if (params.sq_entries < size || !(params.features & IORING_FEAT_SINGLE_MMAP)) {
    return Error(Code::kUnsupported, "io_uring: too small, or too old a kernel");
  }
  VRUN_TRY(MapRing(params));
  wake_.Reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_) return ErrnoError("eventfd");
  VRUN_ASSIGN(buffers_, Mapping::Make(entries_.size() * Room(), -1, 0));
  return {};
}

Status FuseRing::Lane::MapRing(const io_uring_params& params) {
  const size_t bytes = std::max(params.sq_off.array + params.sq_entries * sizeof(uint32_t),
                                params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe));
  VRUN_ASSIGN(rings_, Mapping::Make(bytes, ring_.get(), IORING_OFF_SQ_RING));
  VRUN_ASSIGN(sqes_, Mapping::Make(params.sq_entries * sizeof(Sqe), ring_.get(), IORING_OFF_SQES));
  const auto word = [this](uint32_t offset) { return reinterpret_cast<std::atomic<uint32_t>*>(rings_.at(offset)); };
  sq_head_ = word(params.sq_off.head);
  sq_tail_ = word(params.sq_off.tail);
  cq_head_ = word(params.cq_off.head);
  cq_tail_ = word(params.cq_off.tail);
  sq_mask_ = *word(params.sq_off.ring_mask);
  cq_mask_ = *word(params.cq_off.ring_mask);
  cqes_ = reinterpret_cast<io_uring_cqe*>(rings_.at(params.cq_off.cqes));
  for (uint32_t i = 0; i < params.sq_entries; ++i) *word(params.sq_off.array + i * 4) = i;
  return {};
}

void FuseRing::Lane::AddEntry(size_t index, uint16_t queue) {
  Entry& entry = entries_[index];
  entry.lane = this;
  entry.queue = queue;
  entry.header = reinterpret_cast<RingHeader*>(buffers_.at(index * Room()));
  entry.payload = buffers_.at((index + 1) * Room() - owner_->payload_);
  entry.parts[0] = {entry.header, sizeof *entry.header};
  entry.parts[1] = {entry.payload, owner_->payload_};
}

// There is one for each entry and one for the wake-up, and each has at most one command under way.
Sqe* FuseRing::Lane::NextSqe() {
  const uint32_t tail = sq_tail_->load(std::memory_order_relaxed) + unsubmitted_++;
  auto* sqe = reinterpret_cast<Sqe*>(sqes_.at((tail & sq_mask_) * sizeof(Sqe)));
  std::memset(static_cast<void*>(sqe), 0, sizeof *sqe);
  return sqe;
}

void FuseRing::Lane::Queue(Entry* entry, uint32_t command) {
  Sqe* sqe = NextSqe();
  sqe->sqe.opcode = IORING_OP_URING_CMD;
  sqe->sqe.fd = owner_->device_;
  sqe->sqe.cmd_op = command;
  sqe->sqe.user_data = reinterpret_cast<uint64_t>(entry);
  if (command == kRegister) {
    sqe->sqe.addr = reinterpret_cast<uint64_t>(entry->parts);
    sqe->sqe.len = 2;
  }
  RingCommand what{};
  what.queue = entry->queue;
  what.commit_id = entry->header->entry.commit_id;
  std::memcpy(sqe->sqe.cmd, &what, sizeof what);
}

void FuseRing::Lane::WatchWakeUps() {
  Sqe* sqe = NextSqe();
  sqe->sqe.opcode = IORING_OP_POLL_ADD;
  sqe->sqe.fd = wake_.get();
  sqe->sqe.poll32_events = POLLIN;
  sqe->sqe.user_data = kWakeUp;
}

void FuseRing::Lane::Commit(Entry* entry) {
  if (mine_ == this) return Queue(entry, kCommitAndFetch);
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(entry);
    if (waiting_.size() > 1) return;  // whoever was first has woken it
  }
  WakeUp();
}

void FuseRing::Lane::WakeUp() {
  const uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);
}

void FuseRing::Lane::TakeWaiting() {
  uint64_t count;
  (void)!::read(wake_.get(), &count, sizeof count);
  std::vector<Entry*> answered;
  {
    const std::lock_guard lock(mutex_);
    answered.swap(waiting_);
  }
  for (Entry* entry : answered) Queue(entry, kCommitAndFetch);
  WatchWakeUps();
}

// Submits what is queued, and waits for something to do.
bool FuseRing::Lane::Enter() {
  sq_tail_->store(sq_tail_->load(std::memory_order_relaxed) + unsubmitted_, std::memory_order_release);
  unsubmitted_ = 0;
  for (;;) {
    const uint32_t ready = sq_tail_->load(std::memory_order_relaxed) - sq_head_->load(std::memory_order_acquire);
    const auto done = ::syscall(SYS_io_uring_enter, ring_.get(), ready, 1, IORING_ENTER_GETEVENTS, nullptr, 0);
    if (done >= 0 && static_cast<uint32_t>(done) == ready) return true;
    if (done < 0 && errno != EINTR && errno != EAGAIN && errno != EBUSY) {
      LogError("{}", ErrnoError("FUSE over io_uring: io_uring_enter").message());
      return false;
    }
    if (cq_tail_->load(std::memory_order_acquire) != cq_head_->load(std::memory_order_relaxed)) return true;
  }
}

void FuseRing::Lane::Reap() {
  uint32_t head = cq_head_->load(std::memory_order_relaxed);
  while (head != cq_tail_->load(std::memory_order_acquire)) {
    const io_uring_cqe cqe = cqes_[head & cq_mask_];
    cq_head_->store(++head, std::memory_order_release);
    if (cqe.user_data == kWakeUp) {
      TakeWaiting();
    } else if (cqe.res == 0) {
      Handle(reinterpret_cast<Entry*>(cqe.user_data));
    } else {
      // The connection is over (ENOTCONN, ECANCELED), or the kernel does not want this entry and uses /dev/fuse.
      if (cqe.res != -ENOTCONN && cqe.res != -ECANCELED) {
        LogWarning("FUSE over io_uring: {}", ErrnoError(-cqe.res, "an entry of a queue").message());
      }
      --live_;
    }
  }
}

void FuseRing::Lane::Handle(Entry* entry) {
  const RingHeader& header = *entry->header;
  fuse_in_header in;
  std::memcpy(&in, header.in_out, sizeof in);
  const size_t payload = header.entry.payload_size;
  packet_.clear();
  packet_.append(header.in_out, sizeof in);
  // Nobody but the kernel writes here, but a packet that makes no sense is the Dispatcher's to refuse.
  if (in.len >= sizeof in + payload && payload <= owner_->payload_) {
    packet_.append(header.op_in, std::min(in.len - sizeof in - payload, sizeof header.op_in));
    packet_.append(entry->payload, payload);
  }
  {
    const std::lock_guard lock(owner_->mutex_);
    owner_->pending_[in.unique] = entry;
  }
  owner_->handler_(packet_);
}

void FuseRing::Lane::Run() {
  mine_ = this;
  if (::syscall(SYS_io_uring_register, ring_.get(), IORING_REGISTER_ENABLE_RINGS, nullptr, 0) != 0) {
    LogError("{}", ErrnoError("FUSE over io_uring: enable a ring").message());
    return;
  }
  WatchWakeUps();
  for (Entry& entry : entries_) Queue(&entry, kRegister);
  live_ = entries_.size();
  while (live_ > 0 && !owner_->stop_ && Enter()) Reap();
}

// ---------------------------------------------------------------------------------------------------------------------

Result<std::unique_ptr<FuseRing>> FuseRing::Create(int device, size_t payload) {
  VRUN_ASSIGN(const unsigned queues, PossibleCpus());
  std::unique_ptr<FuseRing> ring(new FuseRing(device, payload));
  const unsigned lanes = std::min(queues, kMostLanes);
  for (unsigned i = 0; i < lanes; ++i) {
    const unsigned mine = queues / lanes + (i < queues % lanes ? 1 : 0);
    auto lane = std::make_unique<Lane>(ring.get(), size_t{mine} * kEntriesOfQueue);
    VRUN_TRY(lane->Prepare());
    size_t index = 0;
    for (unsigned queue = i; queue < queues; queue += lanes) {
      for (unsigned n = 0; n < kEntriesOfQueue; ++n) lane->AddEntry(index++, static_cast<uint16_t>(queue));
    }
    ring->lanes_.push_back(std::move(lane));
  }
  return ring;
}

FuseRing::FuseRing(int device, size_t payload) : device_(device), payload_(payload) {}

FuseRing::~FuseRing() { Stop(); }

void FuseRing::Stop() {
  stop_ = true;
  for (const auto& lane : lanes_) lane->Stop();
}

void FuseRing::Start(Handler handler) {
  handler_ = std::move(handler);
  for (const auto& lane : lanes_) lane->Start();
}

bool FuseRing::Answer(const iovec* parts, int count) {
  fuse_out_header out;
  std::memcpy(&out, parts[0].iov_base, sizeof out);
  if (out.unique == 0) return false;  // a notification
  Entry* entry = nullptr;
  {
    const std::lock_guard lock(mutex_);
    const auto it = pending_.find(out.unique);
    if (it == pending_.end()) return false;
    entry = it->second;
    pending_.erase(it);
  }
  size_t size = 0;
  for (int i = 1; i < count; ++i) {
    const size_t n = std::min(parts[i].iov_len, payload_ - size);
    std::memcpy(entry->payload + size, parts[i].iov_base, n);
    size += n;
  }
  std::memcpy(entry->header->in_out, &out, sizeof out);
  entry->header->entry.payload_size = static_cast<uint32_t>(size);
  entry->lane->Commit(entry);
  return true;
}

}  // namespace vrun::vfs
