// SPDX-License-Identifier: Apache-2.0
#include "home/runs/gang/merge_journal.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>

#include "base/files.h"
#include "base/log.h"

namespace vrun::home {
namespace {

constexpr uint64_t kMagic = 0x7672756e6d726731;  // "vrunmrg1"

}  // namespace

// Offsets are changed in such an order that a home that is killed in between leaves a valid state: a segment is written
// before tail includes it, and confirmed bytes are derived from the segments above head (the constructor).
struct MergeJournal::Header {
  uint64_t magic;
  uint32_t sources;
  uint32_t attempt;
  Settings settings;
  struct {
    uint64_t base;
    uint64_t head;
    uint64_t tail;
  } streams[2];
};

MergeJournal::MergeJournal(const std::string& path, uint32_t sources) : sources_(sources) {
  size_ = sizeof(Header) + 2 * (sources * sizeof(uint64_t) + kSegments * sizeof(Segment));
  if (!path.empty()) {
    if (auto fd = OpenFile(path, O_RDWR | O_CREAT, 0600)) {
      struct stat st;
      const bool same = ::fstat(fd->get(), &st) == 0 && static_cast<size_t>(st.st_size) == size_;
      // Allocated, because a full disk would otherwise kill us by SIGBUS at the first write.
      const bool sized =
          same || (::ftruncate(fd->get(), 0) == 0 && ::posix_fallocate(fd->get(), 0, static_cast<off_t>(size_)) == 0);
      void* at = sized ? ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, fd->get(), 0) : MAP_FAILED;
      mapped_ = at != MAP_FAILED;
      if (mapped_) at_ = static_cast<char*>(at);
    }
    if (!mapped_) LogWarning("{}: cannot be used: a restart of home will repeat or lose some output", path);
  }
  if (!mapped_) {
    memory_.assign((size_ + 7) / 8, 0);
    at_ = reinterpret_cast<char*>(memory_.data());
  }
  if (header()->magic == kMagic && header()->sources == sources) {
    found_ = true;
    for (int err : {0, 1}) {
      for (uint64_t n = tail(err); n > head(err); --n) Confirmed(err)[at(err, n - 1).source] = at(err, n - 1).begin;
    }
    return;
  }
  std::fill(at_, at_ + size_, '\0');
  header()->sources = sources;
  header()->magic = kMagic;
}

MergeJournal::~MergeJournal() {
  if (mapped_) ::munmap(at_, size_);
}

MergeJournal::Header* MergeJournal::header() const { return reinterpret_cast<Header*>(at_); }

uint64_t* MergeJournal::Confirmed(int err) const {
  return reinterpret_cast<uint64_t*>(at_ + sizeof(Header)) + static_cast<size_t>(err) * sources_;
}

MergeJournal::Segment* MergeJournal::Ring(int err) const {
  return reinterpret_cast<Segment*>(at_ + sizeof(Header) + 2 * sources_ * sizeof(uint64_t)) +
         static_cast<size_t>(err) * kSegments;
}

MergeJournal::Settings& MergeJournal::settings() { return header()->settings; }

uint32_t MergeJournal::attempt() const { return header()->attempt; }

void MergeJournal::BeginAttempt(uint32_t attempt) {
  for (int err : {0, 1}) {
    header()->streams[err].head = header()->streams[err].tail;
    std::fill(Confirmed(err), Confirmed(err) + sources_, 0);
  }
  header()->attempt = attempt;
}

uint64_t MergeJournal::head(int err) const { return header()->streams[err].head; }
uint64_t MergeJournal::tail(int err) const { return header()->streams[err].tail; }

const MergeJournal::Segment& MergeJournal::at(int err, uint64_t number) const { return Ring(err)[number % kSegments]; }

void MergeJournal::Push(int err, const Segment& segment) {
  Ring(err)[tail(err) % kSegments] = segment;
  ++header()->streams[err].tail;
}

void MergeJournal::Pop(int err) {
  const Segment& segment = at(err, head(err));
  uint64_t& confirmed = Confirmed(err)[segment.source];
  confirmed = std::max(confirmed, segment.begin + segment.bytes);
  ++header()->streams[err].head;
}

uint64_t MergeJournal::confirmed(int err, uint32_t source) const { return Confirmed(err)[source]; }

// A confirmed segment stays in the ring until another takes its place, so the last one is always there.
uint64_t MergeJournal::end(int err) const {
  return tail(err) == 0 ? header()->streams[err].base : at(err, tail(err) - 1).merged_end;
}

void MergeJournal::SetBase(int err, uint64_t base) {
  if (tail(err) == 0) header()->streams[err].base = base;
}

}  // namespace vrun::home
