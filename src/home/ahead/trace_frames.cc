// SPDX-License-Identifier: Apache-2.0
#include "home/ahead/trace_frames.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <zstd.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/escape.h"
#include "base/files.h"
#include "base/log.h"
#include "home/pack/residency.h"
#include "home/root/content_files.h"
#include "store/format/object_id.h"
#include "store/format/statement.h"

namespace vrun::home {
namespace {

constexpr std::string_view kMagic = "vrframe3";
constexpr size_t kHeader = kMagic.size() + sizeof(Digest::bytes);
constexpr size_t kMaxBytes = 8u << 20;
constexpr int kLevelNow = 1;
constexpr int kLevelAhead = 9;  // nobody waits for the result
constexpr int kLevelIdle = 19;  // a tenth smaller for ten times the work; decompression costs the same
constexpr int64_t kQuietMicros = 1'000'000;
constexpr size_t kMaxQueued = 4096;  // frames

// Returns the data uncompressed if zstd fails.
std::string Compress(const std::string& raw, int level) {
  // One context per thread: creating one costs more than compressing a frame.
  thread_local const std::unique_ptr<ZSTD_CCtx, size_t (*)(ZSTD_CCtx*)> context(::ZSTD_createCCtx(), ::ZSTD_freeCCtx);
  std::string packed(::ZSTD_compressBound(raw.size()), '\0');
  const size_t n = ::ZSTD_compressCCtx(context.get(), packed.data(), packed.size(), raw.data(), raw.size(), level);
  if (::ZSTD_isError(n)) return raw;
  packed.resize(n);
  return packed;
}

}  // namespace

void FramePlan::Name() {
  store::FrameNamer namer;
  for (const Part& part : parts) namer.Add(part.version, part.first, part.count);
  id = namer.Name();
}

FrameCache::FrameCache(const ContentFiles* files, std::string directory, uint64_t limit_bytes)
    : files_(files), directory_(std::move(directory)), limit_bytes_(limit_bytes) {}

FrameCache::~FrameCache() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::string FrameCache::Encode(const v1::TraceFrame& frame) {
  const std::string body = frame.SerializeAsString();
  return std::string(kMagic) + std::string(Blake3(body).view()) + body;
}

bool FrameCache::Decode(std::string_view bytes, v1::TraceFrame* frame) {
  if (bytes.size() < kHeader || !bytes.starts_with(kMagic)) return false;
  const std::string_view body = bytes.substr(kHeader);
  if (Blake3(body).view() != bytes.substr(kMagic.size(), sizeof(Digest::bytes))) return false;
  return frame->ParseFromArray(body.data(), static_cast<int>(body.size()));
}

Result<v1::TraceFrame> FrameCache::Make(const ContentFiles& files, const FramePlan& plan, int level) {
  v1::TraceFrame frame;
  std::string raw;
  std::string* digests = frame.mutable_digests();
  for (const FramePlan::Part& part : plan.parts) {
    const uint64_t unit = store::UnitBytes(part.version.size), offset = part.first * unit;
    if (part.count == 0 || offset >= part.version.size) return Error(Code::kInvalid, "the frame is empty");
    const uint64_t length = std::min(part.count * unit, part.version.size - offset);
    VRUN_ASSIGN(const UniqueFd fd,
                WithDescriptors([&] { return files.OpenPart(part.path, part.version, offset, length); }));
    const size_t at = raw.size();
    raw.resize(at + length);
    {
      const ResidencyGuard kept(fd.get(), offset, length);
      VRUN_ASSIGN(const size_t n, PreadUpTo(fd.get(), raw.data() + at, length, offset));
      if (n != length) return Error(Code::kAborted, Escape(part.path) + ": the file ends before its size");
    }
    VRUN_TRY(files.Check(fd.get(), part.path, part.version));
    for (uint64_t i = 0; i < length; i += unit) {
      *digests += store::UnitDigest(std::string_view(raw).substr(at + i, std::min(unit, length - i))).view();
    }
  }
  frame.set_raw_bytes(raw.size());
  std::string packed = Compress(raw, kLevelNow);
  const bool worth = packed.size() < raw.size() / 32 * 31;
  // What the fastest level cannot shrink no level can, and the slow ones need minutes to find out.
  if (worth && level > kLevelNow) packed = Compress(raw, level);
  frame.set_zstd(worth);
  frame.set_data(worth ? std::move(packed) : std::move(raw));
  return frame;
}

Result<v1::TraceFrame> FrameCache::Get(const FramePlan& plan) {
  if (Kept(plan.id)) {
    v1::TraceFrame frame;
    const auto bytes = ReadFile(PathOf(plan.id), kMaxBytes);
    if (bytes && Decode(*bytes, &frame)) return frame;
    LogWarning("{}: a frame that does not check: forgotten", Escape(PathOf(plan.id)));
    ::unlink(PathOf(plan.id).c_str());
    MutexLock lock(mutex_);
    if (const auto it = kept_.find(plan.id); it != kept_.end()) {
      bytes_ -= it->second.bytes;
      ages_.erase(it->second.age);
      kept_.erase(it);
    }
  }
  return Make(*files_, plan, kLevelNow);
}

void FrameCache::ListLocked() {
  if (std::exchange(listed_, true) || directory_.empty()) return;
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir(directory_.c_str()), ::closedir);
  if (!directory) return;
  std::vector<std::pair<int64_t, std::pair<Digest, uint64_t>>> found;
  while (const dirent* entry = ::readdir(directory.get())) {
    const auto id = Digest::FromHex(entry->d_name);
    struct stat st;
    if (!id || ::stat(PathOf(*id).c_str(), &st) != 0) continue;
    found.push_back({st.st_mtim.tv_sec * 1'000'000'000 + st.st_mtim.tv_nsec, {*id, static_cast<uint64_t>(st.st_size)}});
  }
  std::sort(found.begin(), found.end());
  for (const auto& [time, file] : found) {
    kept_[file.first] = {file.second, ages_.insert(ages_.end(), file.first)};
    bytes_ += file.second;
  }
}

bool FrameCache::Kept(const Digest& id) {
  MutexLock lock(mutex_);
  ListLocked();
  return kept_.contains(id);
}

void FrameCache::Keep(const Digest& id, const v1::TraceFrame& frame) {
  const std::string bytes = Encode(frame);
  const std::string path = PathOf(id);
  // No fsync: what a crash damages fails its check and is made again.
  const std::string fresh = directory_ + "/.new";
  const auto fd = OpenFile(fresh, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (!fd || !WriteAll(fd->get(), bytes) || ::rename(fresh.c_str(), path.c_str()) != 0) {
    ::unlink(fresh.c_str());
    return;
  }
  std::vector<Digest> dropped;
  {
    MutexLock lock(mutex_);
    ListLocked();
    if (const auto it = kept_.find(id); it != kept_.end()) {
      bytes_ = bytes_ - it->second.bytes + bytes.size();
      it->second.bytes = bytes.size();
    } else {
      kept_[id] = {bytes.size(), ages_.insert(ages_.end(), id)};
      bytes_ += bytes.size();
    }
    while (bytes_ > limit_bytes_ && ages_.size() > 1) {
      const auto oldest = kept_.find(ages_.front());
      bytes_ -= oldest->second.bytes;
      dropped.push_back(oldest->first);
      kept_.erase(oldest);
      ages_.pop_front();
    }
  }
  for (const Digest& old : dropped) ::unlink(PathOf(old).c_str());
}

void FrameCache::Busy() { busy_until_us_.store(MonotonicMicros() + kQuietMicros, std::memory_order_relaxed); }

void FrameCache::Prepare(std::vector<FramePlan> plans) {
  if (directory_.empty() || !MakeDirs(directory_, 0700)) return;
  MutexLock lock(mutex_);
  ListLocked();
  for (FramePlan& plan : plans) {
    if (stopping_ || queued_.size() >= kMaxQueued) return;
    if (kept_.contains(plan.id) || !queued_.insert(plan.id).second) continue;
    waiting_.push_back(std::move(plan));
  }
  if (waiting_.empty()) return;
  if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  wake_.notify_one();
}

bool FrameCache::WaitForQuiet(MutexLock* lock) {
  while (!stopping_) {
    const int64_t left = busy_until_us_.load(std::memory_order_relaxed) - MonotonicMicros();
    if (left <= 0) return true;
    wake_.wait_for(*lock, std::chrono::microseconds(left), [this]() VRUN_REQUIRES(mutex_) { return stopping_; });
  }
  return false;
}

void FrameCache::Run() {
  ::pthread_setname_np(::pthread_self(), "frames");
  sched_param none{};
  ::pthread_setschedparam(::pthread_self(), SCHED_IDLE, &none);
  MutexLock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this]() VRUN_REQUIRES(mutex_) { return stopping_ || !waiting_.empty() || !better_.empty(); });
    if (!WaitForQuiet(&lock)) return;
    const bool again = waiting_.empty();
    auto& queue = again ? better_ : waiting_;
    FramePlan plan = std::move(queue.front());
    queue.pop_front();
    if (again) queued_.erase(plan.id);
    if (again && !kept_.contains(plan.id)) continue;  // dropped
    lock.unlock();
    const auto frame = Make(*files_, plan, again ? kLevelIdle : kLevelAhead);
    if (frame) Keep(plan.id, *frame);
    lock.lock();
    if (again) continue;
    if (frame)
      better_.push_back(std::move(plan));
    else
      queued_.erase(plan.id);
  }
}

}  // namespace vrun::home
