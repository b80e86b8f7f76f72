// SPDX-License-Identifier: Apache-2.0
#include "vfs/push/pusher.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/files.h"
#include "base/log.h"
#include "vfs/content/file_cache.h"
#include "vfs/fuse/fuse_abi.h"
#include "vfs/trace/recorder.h"

namespace vrun::vfs {
namespace {

// How long until the kernel knows a file: the thread that waits for our answer processes it soon after it was sent.
constexpr int64_t kUnknownMicros = 1'000;
constexpr int kUnknownTries = 5;
constexpr int64_t kMemoryLookMicros = 100'000;
constexpr uint64_t kMemoryLeast = 16;  // at least one part in so many must be available

uint64_t KilobytesOf(const std::string& meminfo, const char* key) {
  const size_t at = meminfo.find(key);
  return at == std::string::npos ? 0 : std::strtoull(meminfo.c_str() + at + std::strlen(key), nullptr, 10);
}

class ByNotice final : public PushWay {
 public:
  ByNotice(Backend& backend, Transport& transport)
      : backend_(backend), transport_(transport), buffer_(new char[Pusher::kMostAtOnce]) {}

  int Push(const PushPiece& piece, uint64_t offset, uint64_t length) override {
    const auto read = backend_.files().Get(piece.version, piece.known_id)->TryRead(offset, buffer_.get(), length);
    if (!read || *read != length) return ENODATA;
    // Up to the end of a page or of the file: then the kernel fills the last page with zeros and keeps it, and keeps
    // the file size that it knows.
    fuse_notify_store_out out{};
    out.nodeid = piece.nodeid;
    out.offset = offset;
    out.size = static_cast<uint32_t>(length);
    return Notify(transport_, FUSE_NOTIFY_STORE, {reinterpret_cast<const char*>(&out), sizeof out},
                  {buffer_.get(), static_cast<size_t>(length)});
  }

 private:
  Backend& backend_;
  Transport& transport_;
  const std::unique_ptr<char[]> buffer_;
};

}  // namespace

std::unique_ptr<PushWay> PushByNotice(Backend& backend, Transport& transport) {
  return std::make_unique<ByNotice>(backend, transport);
}

PushPiece PushPiece::Traced(PushPiece file, TracedFiles::Range range) {
  const uint64_t size = file.version.size, unit = store::UnitBytes(size);
  file.offset = std::min(range.first * unit, size);
  file.length = std::min(range.count * unit, size - file.offset);
  file.traced = true;
  return file;
}

void Pusher::Post(std::vector<Piece> pieces) {
  if (pieces.empty() || !works_) return;
  {
    MutexLock lock(mutex_);
    if (stopping_) return;
    if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
    for (Piece& piece : pieces) {
      if (waiting_.size() == kMostWaiting) break;
      waiting_.push_back(std::move(piece));
    }
  }
  wake_.notify_one();
}

void Pusher::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Pusher::Run() {
  MutexLock lock(mutex_);
  for (;;) {
    while (!stopping_ && waiting_.empty() && (later_.empty() || later_.front().first > MonotonicMicros())) {
      if (later_.empty())
        wake_.wait(lock);
      else
        wake_.wait_for(lock, std::chrono::microseconds(later_.front().first - MonotonicMicros()));
    }
    if (stopping_) return;
    const bool again = waiting_.empty();
    Piece piece = again ? std::move(later_.front().second) : std::move(waiting_.front());
    again ? later_.pop_front() : waiting_.pop_front();
    lock.unlock();
    const bool known = MemoryIsShort() || Push(piece);
    lock.lock();
    if (!known && piece.traced && ++piece.tries < kUnknownTries && later_.size() < kMostWaiting)
      later_.emplace_back(MonotonicMicros() + kUnknownMicros, std::move(piece));
  }
}

bool Pusher::Push(const Piece& piece) {
  if (!works_ || piece.length == 0) return true;
  if (!piece.traced) {
    // Do not push content that arrived during this run before it was read once: the kernel would not ask for it, and
    // the trace would lack it.
    if (!callbacks_.claim(piece.nodeid) || backend_.recorder().Fresh(piece.version)) return true;
  }
  for (uint64_t done = 0; done < piece.length; done += kMostAtOnce) {
    if (!PushBytes(piece, piece.offset + done, std::min(kMostAtOnce, piece.length - done))) return false;
  }
  return true;
}

bool Pusher::PushBytes(const Piece& piece, uint64_t offset, uint64_t length) {
  const int error = way_->Push(piece, offset, length);
  if (error == 0) {
    ++pushed_;
    if (!piece.traced) backend_.recorder().Unseen(piece.version);
    if (piece.traced && callbacks_.taken)
      callbacks_.taken({.nodeid = piece.nodeid, .version = piece.version, .offset = offset, .length = length});
  } else if (error == EINVAL || error == ENOSYS || error == EOPNOTSUPP || error == EPERM) {
    works_ = false;
    LogWarning("pushing is off: the kernel rejected a push: {}", std::strerror(error));
  }
  return error != ENOENT;  // ENODATA: posted again when it arrives; ENOMEM: not now
}

bool Pusher::MemoryIsShort() {
  const int64_t now = MonotonicMicros();
  if (memory_seen_ != 0 && now - memory_seen_ < kMemoryLookMicros) return memory_short_;
  memory_seen_ = now;
  const auto meminfo = ReadFile("/proc/meminfo", 16384);
  if (!meminfo) return memory_short_ = false;
  const uint64_t total = KilobytesOf(*meminfo, "MemTotal:");
  return memory_short_ = KilobytesOf(*meminfo, "MemAvailable:") < total / kMemoryLeast;
}

}  // namespace vrun::vfs
