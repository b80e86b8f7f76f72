// SPDX-License-Identifier: Apache-2.0
#include "home/pack/background_hasher.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>

#include "base/clock.h"
#include "base/files.h"
#include "home/pack/residency.h"
#include "home/root/content_files.h"

namespace vrun::home {
namespace {
constexpr size_t kMaxWaiting = 4096;
constexpr size_t kMaxListed = 65536;
constexpr size_t kStep = 1u << 20;
}  // namespace

BackgroundHasher::BackgroundHasher(const ContentFiles* files, Known known, std::chrono::milliseconds quiet)
    : files_(files), known_(std::move(known)), quiet_(quiet) {}

BackgroundHasher::~BackgroundHasher() {
  {
    MutexLock lock(mutex_);
    stopping_.store(true);
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void BackgroundHasher::Busy() {
  busy_until_us_.store(MonotonicMicros() + std::chrono::duration_cast<std::chrono::microseconds>(quiet_).count(),
                       std::memory_order_relaxed);
}

void BackgroundHasher::Add(const std::string& path, const tree::FileVersion& version) {
  MutexLock lock(mutex_);
  if (stopping_.load() || waiting_.size() >= kMaxWaiting) return;
  if (listed_.size() >= kMaxListed) listed_.clear();  // at worst a file is hashed again
  if (!listed_.insert(version).second) return;
  waiting_.push_back({path, version});
  if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  wake_.notify_one();
}

bool BackgroundHasher::WaitForQuiet(MutexLock* lock) {
  while (!stopping_.load()) {
    int64_t left = busy_until_us_.load(std::memory_order_relaxed) - MonotonicMicros();
    if (left <= 0) return true;
    wake_.wait_for(*lock, std::chrono::microseconds(left), [this] { return stopping_.load(); });
  }
  return false;
}

void BackgroundHasher::Run() {
  ::pthread_setname_np(::pthread_self(), "hash");
  sched_param none{};
  ::pthread_setschedparam(::pthread_self(), SCHED_IDLE, &none);
  MutexLock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this]() VRUN_REQUIRES(mutex_) { return stopping_.load() || !waiting_.empty(); });
    if (!WaitForQuiet(&lock)) return;
    File file = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    Hash(file);
    lock.lock();
  }
}

void BackgroundHasher::Hash(const File& file) {
  auto fd = files_->OpenVersion(file.path, file.version);
  if (!fd) return;
  uint64_t unit = store::UnitBytes(file.version.size);
  std::vector<Digest> units;
  std::string buffer(kStep, '\0');
  for (uint64_t offset = 0; offset < file.version.size; offset += buffer.size()) {
    {
      MutexLock lock(mutex_);
      if (!WaitForQuiet(&lock)) return;
    }
    const ResidencyGuard kept(fd->get(), offset, std::min<uint64_t>(buffer.size(), file.version.size - offset));
    auto n = PreadUpTo(fd->get(), buffer.data(), buffer.size(), offset);
    if (!n || *n != std::min<uint64_t>(buffer.size(), file.version.size - offset)) return;
    for (size_t at = 0; at < *n; at += unit) {
      units.push_back(store::UnitDigest(std::string_view(buffer).substr(at, std::min<size_t>(unit, *n - at))));
    }
  }
  if (!files_->Check(fd->get(), file.path, file.version)) return;
  known_(file.version, store::ContentId(file.version.size, units));
}

}  // namespace vrun::home
