// SPDX-License-Identifier: Apache-2.0
#include "vfs/pusher.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/files.h"
#include "base/log.h"
#include "vfs/file_cache.h"
#include "vfs/fuse_abi.h"
#include "vfs/recorder.h"

namespace vrun::vfs {
namespace {

constexpr int64_t kMemoryLookMicros = 100'000;
constexpr uint64_t kMemoryLeast = 16;  // one part in so many must be available

uint64_t KilobytesOf(const std::string& meminfo, const char* key) {
  const size_t at = meminfo.find(key);
  return at == std::string::npos ? 0 : std::strtoull(meminfo.c_str() + at + std::strlen(key), nullptr, 10);
}

}  // namespace

void Pusher::Post(std::vector<File> files) {
  if (files.empty() || !works_) return;
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return;
    if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
    for (File& file : files) {
      if (waiting_.size() == kMostWaiting) break;
      waiting_.push_back(std::move(file));
    }
  }
  wake_.notify_one();
}

void Pusher::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Pusher::Run() {
  const std::unique_ptr<char[]> buffer(new char[kMostBytes]);
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
    if (stopping_) return;
    const File file = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    if (!MemoryIsShort()) Push(file, buffer.get());
    lock.lock();
  }
}

void Pusher::Push(const File& file, char* buffer) {
  const uint64_t size = file.version.size;
  if (!works_ || size == 0 || size > kMostBytes || !claim_(file.nodeid)) return;
  // What has just come is read through us once: the trace would lack what nobody asks for.
  if (backend_.recorder().Fresh(file.version)) return;
  const auto read = backend_.files().Get(file.version, file.known_id)->TryRead(0, buffer, size);
  if (!read || *read != size) return;
  // All of it, to its last byte: then the kernel fills the last page with zeros and keeps it, and the size that it
  // knows stays as it is.
  fuse_notify_store_out out{};
  out.nodeid = file.nodeid;
  out.size = static_cast<uint32_t>(size);
  const int error = Notify(transport_, FUSE_NOTIFY_STORE, {reinterpret_cast<const char*>(&out), sizeof out},
                           {buffer, static_cast<size_t>(size)});
  if (error == 0) {
    ++pushed_;
  } else if (error == EINVAL || error == ENOSYS || error == EOPNOTSUPP) {
    works_ = false;
    LogWarning("no small files are pushed: the kernel refuses: {}", std::strerror(error));
  }  // ENOENT: forgotten meanwhile; ENOMEM: not now
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
