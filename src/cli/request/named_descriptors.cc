// SPDX-License-Identifier: Apache-2.0
#include "cli/request/named_descriptors.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <string_view>

#include "base/escape.h"

namespace vrun::cli {
namespace {

constexpr size_t kMost = 16;

struct Mention {
  int number;
  bool alone;  // the word is a name of the descriptor, not a text that happens to contain one
};

bool PartOfPath(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '/' || c == '.' || c == '_' || c == '-';
}

std::vector<Mention> Mentions(std::string_view word) {
  std::vector<Mention> out;
  for (std::string_view prefix : {"/dev/fd/", "/proc/self/fd/"}) {
    for (size_t at = word.find(prefix); at != std::string_view::npos; at = word.find(prefix, at + 1)) {
      if (at > 0 && PartOfPath(word[at - 1])) continue;
      size_t end = at + prefix.size();
      int number = 0;
      while (end < word.size() && std::isdigit(static_cast<unsigned char>(word[end])) && number < 100'000) {
        number = number * 10 + (word[end++] - '0');
      }
      if (end == at + prefix.size() || (end < word.size() && PartOfPath(word[end]))) continue;
      const bool alone = end == word.size() && word.find_first_of(" \t\n;|&") == std::string_view::npos;
      out.push_back({number, alone});
    }
  }
  return out;
}

// All of our own descriptors are close-on-exec; others were inherited.
bool Inherited(int fd) {
  const int flags = ::fcntl(fd, F_GETFD);
  return flags >= 0 && (flags & FD_CLOEXEC) == 0;
}

// nullopt: it can be passed on.
std::optional<std::string> WhyNot(int fd, bool* output) {
  struct stat st;
  const int flags = ::fcntl(fd, F_GETFL);
  if (::fstat(fd, &st) != 0 || flags < 0) return "its status cannot be read";
  if (S_ISSOCK(st.st_mode)) return "it is a socket";
  if (S_ISDIR(st.st_mode)) return "it is a directory";
  if (!S_ISFIFO(st.st_mode) && !S_ISREG(st.st_mode)) return "it is a device";
  if ((flags & O_PATH) != 0) return "it is open for neither reading nor writing";
  if ((flags & O_ACCMODE) == O_RDWR) return "it is open for both reading and writing";
  *output = (flags & O_ACCMODE) == O_WRONLY;
  return std::nullopt;
}

}  // namespace

Result<std::vector<NamedDescriptor>> FindNamedDescriptors(std::span<const std::string> words) {
  std::vector<NamedDescriptor> out;
  for (const std::string& word : words) {
    for (const Mention& mention : Mentions(word)) {
      const auto same = [&](const NamedDescriptor& d) { return d.number == mention.number; };
      if (mention.number <= 2 || !Inherited(mention.number) || std::any_of(out.begin(), out.end(), same)) continue;
      NamedDescriptor found{mention.number, false, word};
      if (auto why = WhyNot(mention.number, &found.output)) {
        if (!mention.alone) continue;
        return Error(Code::kInvalid, Escape(word) + ": cannot be passed to the command: " + *why +
                                         ": pass a pipe or a file that is open for reading or for writing");
      }
      out.push_back(std::move(found));
    }
  }
  if (out.size() > kMost) {
    return Error(Code::kInvalid, Escape(out[kMost].word) + ": more than " + std::to_string(kMost) +
                                     " open descriptors are named: pass files by their names");
  }
  return out;
}

}  // namespace vrun::cli
