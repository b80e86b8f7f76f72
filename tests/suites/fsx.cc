// SPDX-License-Identifier: Apache-2.0
// Random work on one file that mixes all ways of reading and writing, compared with the same work in memory.
#include <linux/falloc.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>

#include "suite.h"

namespace vrun::suites {
namespace {

constexpr size_t kLargest = 1 << 20;
constexpr size_t kBlock = 4096;

class Exerciser {
 public:
  Exerciser(uint64_t seed, bool verbose)
      : random_(seed), verbose_(verbose), block_(std::aligned_alloc(kBlock, kLargest), &free) {
    Open(O_CREAT | O_EXCL);
  }
  // Returns false, with a message on stderr, at the first difference.
  bool Step(int number) {
    number_ = number;
    static constexpr bool (Exerciser::*kWork[])() = {
        &Exerciser::Read,       &Exerciser::Read,       &Exerciser::Write,      &Exerciser::Write,  &Exerciser::MapRead,
        &Exerciser::MapWrite,   &Exerciser::Truncate,   &Exerciser::TruncateUp, &Exerciser::Punch,  &Exerciser::Zero,
        &Exerciser::Allocate,   &Exerciser::Copy,       &Exerciser::Sync,       &Exerciser::Append, &Exerciser::Reopen,
        &Exerciser::DirectRead, &Exerciser::DirectWrite};
    return (this->*kWork[random_() % std::size(kWork)])() && SizeIsRight();
  }
  bool WholeIsRight() {
    offset_ = 0;
    return Same("whole", Content(kName), 0, model_.size()) && SizeIsRight();
  }
  uint64_t checksum() const { return Checksum(model_); }
  size_t size() const { return model_.size(); }

 private:
  static constexpr const char* kName = "file";

  size_t Below(size_t n) { return n == 0 ? 0 : random_() % n; }
  void Open(int flags = 0) {
    fd_ = std::make_unique<Fd>(kName, O_RDWR | flags);
    if (*fd_ < 0) Fail("open");
  }
  // Chooses a range of the file or, if it may grow, of its largest size.
  void Range(size_t end) {
    offset_ = Below(end);
    const size_t most = random_() % 4 == 0 ? kLargest : 20'000;
    length_ = std::min(end - offset_, 1 + Below(most));
  }
  void Say(const char* what) const {
    if (verbose_) printf("%d %s %zu+%zu of %zu\n", number_, what, offset_, length_, model_.size());
  }
  bool Wrong(const char* what) const {
    fprintf(stderr, "operation %d: %s %zu+%zu of %zu: %s\n", number_, what, offset_, length_, model_.size(),
            strerror(errno));
    return false;
  }
  bool Same(const char* what, std::string_view got, size_t from, size_t length) const {
    const std::string_view want = std::string_view(model_).substr(from, length);
    if (got == want) return true;
    const auto at =
        std::mismatch(got.begin(), got.begin() + static_cast<long>(std::min(got.size(), want.size())), want.begin());
    const size_t first = static_cast<size_t>(at.first - got.begin());
    fprintf(stderr, "operation %d: %s %zu+%zu of %zu: %zu bytes for %zu, different at %zu: %02x for %02x\n", number_,
            what, from, length, model_.size(), got.size(), want.size(), from + first,
            first < got.size() ? static_cast<unsigned char>(got[first]) : 0,
            first < want.size() ? static_cast<unsigned char>(want[first]) : 0);
    return false;
  }
  bool SizeIsRight() {
    const auto open = static_cast<size_t>(Look(*fd_).st_size), named = static_cast<size_t>(Look(kName).st_size);
    if (open == model_.size() && named == model_.size()) return true;
    fprintf(stderr, "operation %d: the size is %zu and %zu instead of %zu\n", number_, open, named, model_.size());
    return false;
  }
  std::string Bytes(size_t n) {
    std::string bytes(n, 0);
    const auto first = static_cast<char>(random_());
    for (size_t i = 0; i < n; i++) bytes[i] = static_cast<char>(first + static_cast<char>(i / 7 + i));
    return bytes;
  }
  // Applies a write of these bytes to the model.
  void Put(size_t at, std::string_view bytes) {
    if (model_.size() < at + bytes.size()) model_.resize(at + bytes.size());
    model_.replace(at, bytes.size(), bytes);
  }

  bool Read() {
    Range(model_.size());
    Say("read");
    std::string got(length_, 0);
    const ssize_t n = pread(*fd_, got.data(), length_, static_cast<off_t>(offset_));
    if (n < 0) return Wrong("read");
    return Same("read", got.substr(0, static_cast<size_t>(n)), offset_, length_);
  }
  bool Write() {
    Range(kLargest);
    Say("write");
    const std::string bytes = Bytes(length_);
    if (pwrite(*fd_, bytes.data(), length_, static_cast<off_t>(offset_)) != static_cast<ssize_t>(length_))
      return Wrong("write");
    Put(offset_, bytes);
    return true;
  }
  bool Append() {
    length_ = std::min(kLargest - model_.size(), Below(10'000));
    offset_ = model_.size();
    Say("append");
    const std::string bytes = Bytes(length_);
    const Fd fd(kName, O_WRONLY | O_APPEND);
    if (write(fd, bytes.data(), length_) != static_cast<ssize_t>(length_)) return Wrong("append");
    Put(offset_, bytes);
    return true;
  }
  bool MapRead() { return Map("map-read", false); }
  bool MapWrite() { return Map("map-write", true); }
  bool Map(const char* what, bool writes) {
    if (model_.empty()) return true;
    Range(model_.size());
    Say(what);
    const size_t skip = offset_ % kBlock;
    void* mapped = mmap(nullptr, length_ + skip, writes ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, *fd_,
                        static_cast<off_t>(offset_ - skip));
    if (mapped == MAP_FAILED) return Wrong(what);
    char* p = static_cast<char*>(mapped) + skip;
    bool good = Same(what, {p, length_}, offset_, length_);
    if (writes) {
      const std::string bytes = Bytes(length_);
      memcpy(p, bytes.data(), length_);
      Put(offset_, bytes);
      if (random_() % 2 == 0 && msync(mapped, length_ + skip, MS_SYNC) != 0) good = Wrong("msync");
    }
    return munmap(mapped, length_ + skip) == 0 && good;
  }
  bool Truncate() { return CutTo(Below(model_.size() + 1)); }
  bool TruncateUp() { return CutTo(std::min(kLargest, model_.size() + Below(100'000))); }
  bool CutTo(size_t size) {
    offset_ = size, length_ = 0;
    Say("truncate");
    const bool by_name = random_() % 2 == 0;
    if ((by_name ? truncate(kName, static_cast<off_t>(size)) : ftruncate(*fd_, static_cast<off_t>(size))) != 0)
      return Wrong("truncate");
    model_.resize(size);
    return true;
  }
  bool Punch() {
    Range(kLargest);
    Say("punch");
    if (!Fallocate("punch", FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE)) return false;
    Zeroes();
    return true;
  }
  bool Zero() {
    Range(model_.size());
    if (length_ == 0) return true;
    Say("zero");
    if (!Fallocate("zero", FALLOC_FL_ZERO_RANGE)) return false;
    Zeroes();
    return true;
  }
  bool Allocate() {
    Range(kLargest);
    const bool keep = random_() % 2 == 0;
    Say(keep ? "allocate-keep" : "allocate");
    if (!Fallocate("allocate", keep ? FALLOC_FL_KEEP_SIZE : 0)) return false;
    if (!keep) model_.resize(std::max(model_.size(), offset_ + length_));
    return true;
  }
  bool Fallocate(const char* what, int mode) {
    return fallocate(*fd_, mode, static_cast<off_t>(offset_), static_cast<off_t>(length_)) == 0 || Wrong(what);
  }
  void Zeroes() {
    if (offset_ < model_.size())
      std::fill_n(model_.begin() + static_cast<long>(offset_), std::min(length_, model_.size() - offset_), '\0');
  }
  bool Copy() {
    Range(model_.size());
    const size_t to = Below(kLargest - length_);
    if (length_ == 0 || (to < offset_ + length_ && offset_ < to + length_)) return true;  // overlapping is refused
    Say("copy");
    off_t in = static_cast<off_t>(offset_), out = static_cast<off_t>(to);
    for (size_t left = length_; left > 0;) {
      const ssize_t n = copy_file_range(*fd_, &in, *fd_, &out, left, 0);
      if (n <= 0) return Wrong("copy");
      left -= static_cast<size_t>(n);
    }
    Put(to, model_.substr(offset_, length_));
    return true;
  }
  bool Sync() {
    offset_ = length_ = 0;
    Say("sync");
    return (random_() % 2 == 0 ? fsync(*fd_) : fdatasync(*fd_)) == 0 || Wrong("sync");
  }
  bool Reopen() {
    offset_ = length_ = 0;
    Say("reopen");
    if (fd_->Close() != 0) return Wrong("close");
    Open();
    return random_() % 4 != 0 || WholeIsRight();
  }
  // Chooses whole blocks, of which at least the first is in the file.
  void Blocks(size_t end) {
    offset_ = Below(end) / kBlock * kBlock;
    length_ = std::min(kLargest - offset_, (1 + Below(8)) * kBlock);
  }
  bool DirectRead() {
    Blocks(model_.size());
    Say("direct-read");
    const Fd fd(kName, O_RDONLY | O_DIRECT);
    const ssize_t n = pread(fd, block_.get(), length_, static_cast<off_t>(offset_));
    if (n < 0) return Wrong("direct-read");
    return Same("direct-read", {static_cast<char*>(block_.get()), static_cast<size_t>(n)}, offset_, length_);
  }
  bool DirectWrite() {
    Blocks(kLargest);
    Say("direct-write");
    const std::string bytes = Bytes(length_);
    memcpy(block_.get(), bytes.data(), length_);
    const Fd fd(kName, O_WRONLY | O_DIRECT);
    if (pwrite(fd, block_.get(), length_, static_cast<off_t>(offset_)) != static_cast<ssize_t>(length_))
      return Wrong("direct-write");
    Put(offset_, bytes);
    return true;
  }

  std::mt19937_64 random_;
  bool verbose_;
  std::unique_ptr<void, decltype(&free)> block_;
  std::unique_ptr<Fd> fd_;
  std::string model_;
  size_t offset_ = 0, length_ = 0;
  int number_ = 0;
};

}  // namespace

int RunFsx(const std::string& directory, uint64_t seed, int operations, bool verbose) {
  if (chdir(directory.c_str()) != 0) Fail(directory.c_str());
  Exerciser file(seed, verbose);
  for (int i = 0; i < operations; i++) {
    if (!file.Step(i) || (i % 100 == 99 && !file.WholeIsRight())) return 1;
  }
  if (!file.WholeIsRight()) return 1;
  printf("seed %llu: %d operations, %zu bytes, %016llx\n", static_cast<unsigned long long>(seed), operations,
         file.size(), static_cast<unsigned long long>(file.checksum()));
  return 0;
}

}  // namespace vrun::suites
