// SPDX-License-Identifier: Apache-2.0
// The operations that the file system benchmarks time; the same program runs on both sides. One request per line, one
// answer per line:
//   small DIR          seconds to open, read and close every file of the directories in DIR
//   run COMMAND        seconds of `sh -c COMMAND` with its output discarded
//   sequential FILE    seconds to read all of it, 128 KiB at a time
//   random FILE N      seconds of N reads of 4 KiB at offsets determined by N alone
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

namespace {

std::vector<std::string> Names(const std::string& directory) {
  std::vector<std::string> names;
  DIR* dir = ::opendir(directory.c_str());
  while (const dirent* e = dir ? ::readdir(dir) : nullptr) {
    if (e->d_name[0] != '.') names.push_back(directory + "/" + e->d_name);
  }
  if (dir) ::closedir(dir);
  std::sort(names.begin(), names.end());
  return names;
}

int Fail(const std::string& what) {
  std::perror(what.c_str());
  std::exit(1);
}

int OpenOrFail(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  return fd >= 0 ? fd : Fail(path);
}

void Small(const std::vector<std::string>& files) {
  static char buffer[65536];
  for (const std::string& file : files) {
    const int fd = OpenOrFail(file);
    ssize_t n;
    while ((n = ::read(fd, buffer, sizeof buffer)) > 0) {
    }
    if (n < 0) Fail(file);
    ::close(fd);
  }
}

void Sequential(const std::string& file) {
  static char buffer[128 * 1024];
  const int fd = OpenOrFail(file);
  ssize_t n;
  while ((n = ::read(fd, buffer, sizeof buffer)) > 0) {
  }
  if (n < 0) Fail(file);
  ::close(fd);
}

void Random(const std::string& file, uint64_t count) {
  static char buffer[4096];
  const int fd = OpenOrFail(file);
  struct stat st;
  if (::fstat(fd, &st) != 0) Fail(file);
  const uint64_t pages = static_cast<uint64_t>(st.st_size) / sizeof buffer;
  uint64_t state = count;
  for (uint64_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    if (::pread(fd, buffer, sizeof buffer, static_cast<off_t>((state >> 20) % pages * sizeof buffer)) < 0) Fail(file);
  }
  ::close(fd);
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string what, argument;
    words >> what;
    std::getline(words >> std::ws, argument);
    std::vector<std::string> files;
    if (what == "small") {
      for (const std::string& directory : Names(argument)) {
        for (std::string& file : Names(directory)) files.push_back(std::move(file));
      }
    }
    const auto began = std::chrono::steady_clock::now();
    if (what == "small") {
      Small(files);
    } else if (what == "run") {
      if (std::system(("exec >/dev/null; " + argument).c_str()) != 0) return 1;
    } else if (what == "sequential") {
      Sequential(argument);
    } else if (what == "random") {
      const size_t space = argument.rfind(' ');
      Random(argument.substr(0, space), std::strtoull(argument.c_str() + space, nullptr, 10));
    } else {
      return 2;
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    std::printf("%.9f\n", took.count());
    std::fflush(stdout);
  }
}
