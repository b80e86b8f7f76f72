// SPDX-License-Identifier: Apache-2.0
// Cases of what Linux and POSIX say of a file system. A case says what it saw, not whether that is right: the same
// program on the developer's own file system is the judge. So nothing that differs from run to run may be in a line: no
// inode, no time.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace vrun::suites {

// What one case saw.
class Line {
 public:
  // "what=ok", or errno's name where the result is negative. To be called right after the system call.
  Line& Call(std::string_view what, int64_t result);
  // "what=12", or errno's name.
  Line& Count(std::string_view what, int64_t result);
  Line& Number(std::string_view what, int64_t number);
  Line& Octal(std::string_view what, unsigned number);
  Line& Text(std::string_view what, std::string_view text);  // escaped; a long one as its length and a checksum
  const std::string& text() const { return text_; }

 private:
  Line& Add(std::string_view what, std::string_view value);
  std::string text_;
};

// Runs in an empty directory and a process of its own, as root with umask 022.
struct Case {
  const char* name;
  void (*body)(Line&);
};

std::span<const Case> OpenCases();
std::span<const Case> DataCases();
std::span<const Case> SpaceCases();
std::span<const Case> NameCases();
std::span<const Case> DirectoryCases();
std::span<const Case> AttributeCases();
std::span<const Case> XattrCases();
std::span<const Case> TimeCases();
std::span<const Case> LockCases();
std::span<const Case> SpecialCases();

// --- What cases are made of. All of these end the case with a message where they cannot do what they say.

class Fd {
 public:
  Fd(const char* path, int flags, mode_t mode = 0644) : fd_(open(path, flags | O_CLOEXEC, mode)) {}
  explicit Fd(int fd) : fd_(fd) {}
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() { Close(); }
  operator int() const { return fd_; }
  int Close() {
    const int fd = fd_;
    fd_ = -1;
    return fd >= 0 ? close(fd) : 0;
  }

 private:
  int fd_;
};

// A regular file with this content.
void Make(const char* path, std::string_view content = "", mode_t mode = 0644);
// Its content, or errno's name.
std::string Content(const char* path);
std::string Content(int fd);  // from its beginning
struct stat Look(const char* path);
struct stat Look(int fd);
// Of a directory, "as many" where it is two and one for each directory in it or, in file systems that do not count
// those, one.
std::string DirectoryLinks(const char* path, int64_t directories);
// Names of a directory, sorted, with blanks between.
std::string Names(const char* directory);
// `letter` n times, but for every 1,000th byte, which says where it is.
std::string Pattern(size_t n, char letter = 'a');
std::string ErrnoName(int error);
uint64_t Checksum(std::string_view bytes);
// Runs it as another user, without any privilege.
void As(uid_t uid, gid_t gid, const std::function<void()>& what);
// Runs it in a child; its exit status, or 128 and the signal.
int InChild(const std::function<int()>& what);
// Waits until whatever is changed now has a later time than what was changed before.
void Tick();
// -1, 0, 1 as a is before, at or after b.
int Compare(const timespec& a, const timespec& b);
[[noreturn]] void Fail(const char* what);

// --- The commands

int RunPosix(const std::string& directory, std::string_view only);
int RunFsx(const std::string& directory, uint64_t seed, int operations, bool verbose);
int RunChurn(const std::string& directory, uint64_t seed, int operations, int processes, bool verbose);

}  // namespace vrun::suites
