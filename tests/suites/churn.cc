// SPDX-License-Identifier: Apache-2.0
// Random work on a tree by several processes at once, each in its own directory, so that the results of each depend
// only on its seed.
#include <dirent.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <sys/xattr.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "suite.h"

namespace vrun::suites {
namespace {

constexpr size_t kNames = 400;  // existing names to remember
constexpr size_t kOpen = 8;

class Churner {
 public:
  Churner(uint64_t seed, bool verbose) : random_(seed), verbose_(verbose), names_{"."} {}

  void Step() {
    struct Kind {
      const char* name;
      std::string (Churner::*work)();
      unsigned weight;
    };
    static constexpr Kind kKinds[] = {
        {"make", &Churner::MakeFile, 12}, {"mkdir", &Churner::MakeDirectory, 6}, {"write", &Churner::Write, 10},
        {"append", &Churner::Append, 6},  {"truncate", &Churner::Truncate, 4},   {"map", &Churner::MapWrite, 3},
        {"space", &Churner::Space, 3},    {"copy", &Churner::Copy, 3},           {"read", &Churner::ReadFile, 8},
        {"stat", &Churner::Stat, 8},      {"list", &Churner::ListDirectory, 4},  {"rename", &Churner::Rename, 10},
        {"link", &Churner::Link, 4},      {"symlink", &Churner::Symlink, 3},     {"fifo", &Churner::Fifo, 1},
        {"unlink", &Churner::Unlink, 7},  {"rmdir", &Churner::Rmdir, 3},         {"chmod", &Churner::Chmod, 3},
        {"chown", &Churner::Chown, 2},    {"utimens", &Churner::Utimens, 3},     {"xattr", &Churner::Xattr, 3},
        {"hold", &Churner::Hold, 3},      {"held", &Churner::UseHeld, 4},        {"nameless", &Churner::Nameless, 2},
        {"sync", &Churner::Sync, 1}};
    static const unsigned all = [] {
      unsigned sum = 0;
      for (const Kind& kind : kKinds) sum += kind.weight;
      return sum;
    }();
    unsigned chosen = static_cast<unsigned>(random_() % all);
    const Kind* kind = kKinds;
    while (chosen >= kind->weight) chosen -= kind++->weight;
    number_++;
    said_.clear();
    const std::string result = (this->*kind->work)();
    const std::string line = std::to_string(number_) + " " + kind->name + said_ + ": " + result + "\n";
    seen_ = Checksum(std::to_string(seen_) + line);
    if (verbose_) fputs(line.c_str(), stdout);
  }
  uint64_t seen() const { return seen_; }

 private:
  static std::string Result(int64_t r) { return r < 0 ? ErrnoName(errno) : std::to_string(r); }

  // A name that existed once, and mostly still does.
  const std::string& Any() { return Say(names_[random_() % names_.size()]); }
  // A name in a directory that existed once, mostly a new one.
  std::string New() {
    std::string parent = names_[random_() % names_.size()];
    if (random_() % 8 != 0) {
      struct stat st {};
      for (int tries = 0; tries < 5 && (stat(parent.c_str(), &st) != 0 || !S_ISDIR(st.st_mode)); tries++)
        parent = names_[random_() % names_.size()];
    }
    if (std::count(parent.begin(), parent.end(), '/') > 8) parent = ".";
    return Say(parent + "/" + "abcdefghijklmnop"[random_() % 16] + std::to_string(random_() % 10));
  }
  const std::string& Say(const std::string& name) {
    said_ += " " + name;
    return name;
  }
  void Remember(const std::string& name) {
    if (names_.size() < kNames) {
      names_.push_back(name);
    } else {
      names_[1 + random_() % (kNames - 1)] = name;
    }
  }
  std::string Bytes() {
    static constexpr size_t kSizes[] = {0, 1, 100, 4096, 5000, 70'000, 200'000};
    return Pattern(kSizes[random_() % std::size(kSizes)], static_cast<char>('a' + random_() % 26));
  }
  // Opens the file that a name leads to, but never through a FIFO, where it would block.
  static int Open(const std::string& name, int flags) {
    return open(name.c_str(), flags | O_NONBLOCK | O_CLOEXEC, 0644);
  }
  static std::string Described(const struct stat& st) {
    std::string all = std::to_string(st.st_mode) + " " + std::to_string(st.st_uid) + " " + std::to_string(st.st_gid);
    if (!S_ISDIR(st.st_mode)) all += " " + std::to_string(st.st_nlink) + " " + std::to_string(st.st_size);
    return all;
  }

  std::string MakeFile() {
    const std::string name = New();
    const Fd fd(Open(name, O_CREAT | O_WRONLY | (random_() % 3 == 0 ? O_TRUNC : O_EXCL)));
    if (fd < 0) return ErrnoName(errno);
    Remember(name);
    const std::string bytes = Bytes();
    return Result(write(fd, bytes.data(), bytes.size()));
  }
  std::string MakeDirectory() {
    const std::string name = New();
    const int r = mkdir(name.c_str(), random_() % 8 == 0 ? 0700 : 0755);
    const std::string result = Result(r);
    if (r == 0) Remember(name);
    return result;
  }
  std::string Write() {
    const Fd fd(Open(Any(), O_WRONLY));
    if (fd < 0) return ErrnoName(errno);
    const std::string bytes = Bytes();
    return Result(pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(random_() % 100'000)));
  }
  std::string Append() {
    const Fd fd(Open(Any(), O_WRONLY | O_APPEND));
    if (fd < 0) return ErrnoName(errno);
    const std::string bytes = Bytes();
    return Result(write(fd, bytes.data(), bytes.size() / 4));
  }
  std::string Truncate() {
    const std::string name = Any();
    return Result(truncate(name.c_str(), static_cast<off_t>(random_() % 150'000)));
  }
  std::string MapWrite() {
    const Fd fd(Open(Any(), O_RDWR));
    if (fd < 0) return ErrnoName(errno);
    const auto st = Look(fd);
    if (!S_ISREG(st.st_mode) || st.st_size == 0) return "nothing";
    const auto size = static_cast<size_t>(st.st_size);
    void* p = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) return ErrnoName(errno);
    memset(static_cast<char*>(p) + size / 3, 'M', size - size / 3 < 500 ? size - size / 3 : 500);
    return Result(munmap(p, size));
  }
  std::string Space() {
    const Fd fd(Open(Any(), O_WRONLY));
    if (fd < 0) return ErrnoName(errno);
    static constexpr int kModes[] = {0, FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                     FALLOC_FL_ZERO_RANGE};
    const int mode = kModes[random_() % std::size(kModes)];
    const auto at = static_cast<off_t>(random_() % 100'000);
    return Result(fallocate(fd, mode, at, static_cast<off_t>(1 + random_() % 50'000)));
  }
  std::string Copy() {
    const Fd from(Open(Any(), O_RDONLY));
    const std::string name = New();
    if (from < 0) return ErrnoName(errno);
    const Fd to(Open(name, O_CREAT | O_WRONLY));
    if (to < 0) return ErrnoName(errno);
    Remember(name);
    int64_t all = 0;
    ssize_t n;
    while ((n = copy_file_range(from, nullptr, to, nullptr, 1 << 20, 0)) > 0 && all < (4 << 20)) all += n;
    return n < 0 ? ErrnoName(errno) : std::to_string(all);
  }
  std::string ReadFile() {
    const Fd fd(Open(Any(), O_RDONLY));
    if (fd < 0) return ErrnoName(errno);
    if (!S_ISREG(Look(fd).st_mode)) return "other";
    return std::to_string(Checksum(Content(fd)));
  }
  std::string Stat() {
    struct stat st {};
    const std::string name = Any();
    if (lstat(name.c_str(), &st) != 0) return ErrnoName(errno);
    char target[300];
    const ssize_t n = S_ISLNK(st.st_mode) ? readlink(name.c_str(), target, sizeof target) : 0;
    return Described(st) + " " + (n < 0 ? ErrnoName(errno) : std::string(target, static_cast<size_t>(n)));
  }
  std::string ListDirectory() { return Names(Any().c_str()); }
  std::string Rename() {
    static constexpr unsigned kFlags[] = {0, 0, 0, RENAME_NOREPLACE, RENAME_EXCHANGE};
    const unsigned flags = kFlags[random_() % std::size(kFlags)];
    const std::string from = Any(), to = flags == RENAME_EXCHANGE || random_() % 3 == 0 ? Any() : New();
    const int r = renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags);
    const std::string result = Result(r);
    if (r == 0) Remember(to);
    return result;
  }
  std::string Link() {
    const std::string from = Any(), to = New();
    const int r = link(from.c_str(), to.c_str());
    const std::string result = Result(r);
    if (r == 0) Remember(to);
    return result;
  }
  std::string Symlink() {
    const std::string name = New();
    const int r = symlink(random_() % 2 == 0 ? "a1" : "../b2/c3", name.c_str());
    const std::string result = Result(r);
    if (r == 0) Remember(name);
    return result;
  }
  std::string Fifo() {
    const std::string name = New();
    const int r = mkfifo(name.c_str(), 0640);
    const std::string result = Result(r);
    if (r == 0) Remember(name);
    return result;
  }
  std::string Unlink() { return Result(unlink(Any().c_str())); }
  std::string Rmdir() { return Result(rmdir(Any().c_str())); }
  std::string Chmod() {
    // Set-id bits for directories only: whether a file keeps them when root writes to it depends on which root it is.
    static constexpr mode_t kModes[] = {0644, 0755, 0700, 0600, 0711, 02755};
    const std::string name = Any();
    struct stat st {};
    const bool directory = lstat(name.c_str(), &st) == 0 && S_ISDIR(st.st_mode);
    return Result(chmod(name.c_str(), kModes[random_() % (std::size(kModes) - !directory)]));
  }
  std::string Chown() {
    const std::string name = Any();
    const auto uid = static_cast<uid_t>(random_() % 3 * 500);
    return Result(lchown(name.c_str(), uid, static_cast<gid_t>(random_() % 3 * 500)));
  }
  std::string Utimens() {
    const std::string name = Any();
    const auto second = static_cast<time_t>(random_() % 1'000'000'000);
    const timespec both[] = {{second, static_cast<long>(random_() % 1'000'000'000)},
                             {second, static_cast<long>(random_() % 1'000'000'000)}};
    return Result(utimensat(AT_FDCWD, name.c_str(), both, AT_SYMLINK_NOFOLLOW));
  }
  std::string Xattr() {
    const std::string name = Any();
    const std::string attribute = "user.a" + std::to_string(random_() % 3);
    char value[100];
    switch (random_() % 3) {
      case 0: return Result(setxattr(name.c_str(), attribute.c_str(), "some value", random_() % 11, 0));
      case 1: return Result(removexattr(name.c_str(), attribute.c_str()));
      default: return Result(getxattr(name.c_str(), attribute.c_str(), value, sizeof value));
    }
  }
  std::string Hold() {
    auto fd = std::make_unique<Fd>(Open(Any(), O_RDWR));
    if (*fd < 0) return ErrnoName(errno);
    if (!S_ISREG(Look(*fd).st_mode)) return "other";
    if (held_.size() < kOpen) {
      held_.push_back(std::move(fd));
    } else {
      held_[random_() % kOpen] = std::move(fd);
    }
    return "held";
  }
  std::string UseHeld() {
    if (held_.empty()) return "none";
    const int fd = *held_[random_() % held_.size()];
    const std::string bytes = Bytes();
    const ssize_t n = pwrite(fd, bytes.data(), bytes.size() / 10, static_cast<off_t>(random_() % 50'000));
    return Result(n) + " " + Described(Look(fd)) + " " + std::to_string(Checksum(Content(fd)));
  }
  std::string Nameless() {
    std::string parent = Any();
    const Fd fd(Open(parent, O_TMPFILE | O_RDWR));
    const std::string name = New();
    if (fd < 0) return ErrnoName(errno);
    write(fd, "nameless", 8);
    const int r =
        linkat(AT_FDCWD, ("/proc/self/fd/" + std::to_string(fd)).c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW);
    const std::string result = Result(r);
    if (r == 0) Remember(name);
    return result;
  }
  std::string Sync() {
    const Fd fd(Open(Any(), O_RDONLY));
    return fd < 0 ? ErrnoName(errno) : Result(fsync(fd));
  }

  std::mt19937_64 random_;
  bool verbose_;
  std::vector<std::string> names_;
  std::vector<std::unique_ptr<Fd>> held_;
  std::string said_;
  int number_ = 0;
  uint64_t seen_ = 0;
};

}  // namespace

int RunChurn(const std::string& directory, uint64_t seed, int operations, int processes, bool verbose) {
  umask(022);
  std::vector<pid_t> children;
  std::vector<int> answers;
  for (int i = 0; i < processes; i++) {
    const std::string top = directory + "/" + std::to_string(i);
    int ends[2];
    if (mkdir(top.c_str(), 0755) != 0 || pipe2(ends, O_CLOEXEC) != 0) Fail(top.c_str());
    fflush(nullptr);
    children.push_back(fork());
    if (children.back() == 0) {
      if (chdir(top.c_str()) != 0) Fail(top.c_str());
      Churner churner(seed * 1000 + static_cast<uint64_t>(i), verbose);
      for (int k = 0; k < operations; k++) churner.Step();
      const uint64_t seen = churner.seen();
      fflush(nullptr);
      _exit(write(ends[1], &seen, sizeof seen) == sizeof seen ? 0 : 1);
    }
    close(ends[1]);
    answers.push_back(ends[0]);
  }
  int failed = 0;
  for (int i = 0; i < processes; i++) {
    uint64_t seen = 0;
    int status = 0;
    const bool said = read(answers[static_cast<size_t>(i)], &seen, sizeof seen) == sizeof seen;
    waitpid(children[static_cast<size_t>(i)], &status, 0);
    failed += !said || status != 0;
    printf("process %d: %d operations, %016llx, status %d\n", i, operations, static_cast<unsigned long long>(seen),
           status);
  }
  return failed ? 1 : 0;
}

}  // namespace vrun::suites
