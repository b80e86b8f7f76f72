// SPDX-License-Identifier: Apache-2.0
#include "suite.h"

#include <dirent.h>
#include <grp.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace vrun::suites {
namespace {

constexpr unsigned kCaseSeconds = 30;

// Runs one case in its own process and returns its line.
std::string Run(const Case& c, const std::string& directory) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) Fail("pipe");
  fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) Fail("fork");
  if (child == 0) {
    alarm(kCaseSeconds);
    umask(022);
    if (mkdir(directory.c_str(), 0755) != 0 || chdir(directory.c_str()) != 0) Fail(directory.c_str());
    Line line;
    c.body(line);
    if (write(ends[1], line.text().data(), line.text().size()) < 0) Fail("write");
    _exit(0);
  }
  close(ends[1]);
  std::string said;
  char piece[4096];
  for (ssize_t n; (n = read(ends[0], piece, sizeof piece)) > 0;) said.append(piece, static_cast<size_t>(n));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (status != 0) said += " status=" + std::to_string(status);
  return said;
}

}  // namespace

Line& Line::Add(std::string_view what, std::string_view value) {
  text_.append(" ").append(what).append("=").append(value);
  return *this;
}

Line& Line::Call(std::string_view what, int64_t result) {
  const int error = errno;
  return Add(what, result < 0 ? ErrnoName(error) : "ok");
}

Line& Line::Count(std::string_view what, int64_t result) {
  const int error = errno;
  return Add(what, result < 0 ? ErrnoName(error) : std::to_string(result));
}

Line& Line::Number(std::string_view what, int64_t number) { return Add(what, std::to_string(number)); }

Line& Line::Octal(std::string_view what, unsigned number) {
  char text[16];
  snprintf(text, sizeof text, "%04o", number);
  return Add(what, text);
}

Line& Line::Text(std::string_view what, std::string_view text) {
  if (text.size() > 80) return Add(what, std::to_string(text.size()) + ":" + std::to_string(Checksum(text)));
  std::string escaped;
  for (const char c : text) {
    if (c >= ' ' && c <= '~') {
      escaped += c;
    } else {
      char hex[8];
      snprintf(hex, sizeof hex, "\\x%02x", static_cast<unsigned char>(c));
      escaped += hex;
    }
  }
  return Add(what, "'" + escaped + "'");
}

void Fail(const char* what) {
  fprintf(stderr, "%s: %s\n", what, strerror(errno));
  _exit(99);
}

void Make(const char* path, std::string_view content, mode_t mode) {
  const Fd fd(path, O_CREAT | O_EXCL | O_WRONLY, 0600);
  if (fd < 0 || write(fd, content.data(), content.size()) != static_cast<ssize_t>(content.size())) Fail(path);
  if (fchmod(fd, mode) != 0) Fail(path);
}

std::string Content(int fd) {
  std::string all;
  char piece[65536];
  ssize_t n;
  while ((n = pread(fd, piece, sizeof piece, static_cast<off_t>(all.size()))) > 0)
    all.append(piece, static_cast<size_t>(n));
  return n < 0 ? ErrnoName(errno) : all;
}

std::string Content(const char* path) {
  const Fd fd(path, O_RDONLY);
  return fd < 0 ? ErrnoName(errno) : Content(fd);
}

struct stat Look(const char* path) {
  struct stat st {};
  if (lstat(path, &st) != 0) Fail(path);
  return st;
}

struct stat Look(int fd) {
  struct stat st {};
  if (fstat(fd, &st) != 0) Fail("fstat");
  return st;
}

std::string DirectoryLinks(const char* path, int64_t directories) {
  const auto links = static_cast<int64_t>(Look(path).st_nlink);
  return links == 1 || links == 2 + directories ? "as many" : std::to_string(links);
}

std::string Names(const char* directory) {
  DIR* d = opendir(directory);
  if (!d) return ErrnoName(errno);
  std::vector<std::string> names;
  while (const dirent* e = readdir(d)) {
    if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) names.emplace_back(e->d_name);
  }
  closedir(d);
  std::sort(names.begin(), names.end());
  std::string all;
  for (const auto& name : names) all += (all.empty() ? "" : " ") + name;
  return all;
}

std::string Pattern(size_t n, char letter) {
  std::string bytes(n, letter);
  for (size_t i = 0; i < n; i += 1000) bytes[i] = static_cast<char>('A' + i / 1000 % 26);
  return bytes;
}

std::string ErrnoName(int error) {
  const char* name = strerrorname_np(error);
  return name ? name : std::to_string(error);
}

uint64_t Checksum(std::string_view bytes) {
  uint64_t sum = 14695981039346656037U;
  for (const char c : bytes) sum = (sum ^ static_cast<unsigned char>(c)) * 1099511628211U;
  return sum;
}

void As(uid_t uid, gid_t gid, const std::function<void()>& what) {
  if (setegid(gid) != 0 || seteuid(uid) != 0) Fail("seteuid");
  what();
  if (seteuid(0) != 0 || setegid(0) != 0) Fail("seteuid back");
}

int InChild(const std::function<int()>& what) {
  const pid_t child = fork();
  if (child < 0) Fail("fork");
  if (child == 0) {
    alarm(kCaseSeconds);
    _exit(what());
  }
  int status = 0;
  if (waitpid(child, &status, 0) != child) Fail("waitpid");
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void Tick() {
  // Two ticks of the coarsest clock that file systems use.
  const timespec pause{0, 25'000'000};
  nanosleep(&pause, nullptr);
}

int Compare(const timespec& a, const timespec& b) {
  if (a.tv_sec != b.tv_sec) return a.tv_sec < b.tv_sec ? -1 : 1;
  return a.tv_nsec == b.tv_nsec ? 0 : a.tv_nsec < b.tv_nsec ? -1 : 1;
}

int RunPosix(const std::string& directory, std::string_view only) {
  if (geteuid() != 0 || setgroups(0, nullptr) != 0) Fail("this must run as root");
  for (const auto cases : {OpenCases(), DataCases(), SpaceCases(), NameCases(), DirectoryCases(), AttributeCases(),
                           XattrCases(), TimeCases(), LockCases(), SpecialCases()}) {
    for (const Case& c : cases) {
      if (std::string_view(c.name).find(only) == std::string_view::npos) continue;
      printf("%s:%s\n", c.name, Run(c, directory + "/" + c.name).c_str());
      fflush(stdout);
    }
  }
  return 0;
}

}  // namespace vrun::suites
