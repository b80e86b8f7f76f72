// SPDX-License-Identifier: Apache-2.0
// Test cases for the file system behaviour that Linux and POSIX define. A case reports what it saw, not whether that is
// right: the same program on the developer's own file system gives the expected result. So a line must not contain
// anything that differs between runs, such as inodes or times.
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

// The report of one case.
class Line {
 public:
  // Adds "what=ok", or errno's name if the result is negative. Call it right after the system call.
  Line& Call(std::string_view what, int64_t result);
  // Adds "what=12", or errno's name.
  Line& Count(std::string_view what, int64_t result);
  Line& Number(std::string_view what, int64_t number);
  Line& Octal(std::string_view what, unsigned number);
  Line& Text(std::string_view what, std::string_view text);  // escaped; a long text as its length and a checksum
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

// --- Helpers of the cases. All of these end the case with a message if they fail.

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

// Makes a regular file with this content.
void Make(const char* path, std::string_view content = "", mode_t mode = 0644);
// The file's content, or errno's name.
std::string Content(const char* path);
std::string Content(int fd);  // from its beginning
struct stat Look(const char* path);
struct stat Look(int fd);
// The link count of a directory: "as many" if it is two plus one per subdirectory, or one in file systems that do not
// count subdirectories.
std::string DirectoryLinks(const char* path, int64_t directories);
// Names in a directory, sorted, separated by blanks.
std::string Names(const char* directory);
// `letter` n times, except that every 1,000th byte encodes its position.
std::string Pattern(size_t n, char letter = 'a');
std::string ErrnoName(int error);
uint64_t Checksum(std::string_view bytes);
// Runs `what` as another user without any privilege.
void As(uid_t uid, gid_t gid, const std::function<void()>& what);
// Runs `what` in a child. Returns its exit status, or 128 plus the signal.
int InChild(const std::function<int()>& what);
// Waits until a change made now has a later timestamp than any change before.
void Tick();
// -1, 0, 1 if a is before, at or after b.
int Compare(const timespec& a, const timespec& b);
[[noreturn]] void Fail(const char* what);

// --- The commands

int RunPosix(const std::string& directory, std::string_view only);
int RunFsx(const std::string& directory, uint64_t seed, int operations, bool verbose);
int RunChurn(const std::string& directory, uint64_t seed, int operations, int processes, bool verbose);

}  // namespace vrun::suites
