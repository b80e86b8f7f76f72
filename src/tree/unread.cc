// SPDX-License-Identifier: Apache-2.0
#include "tree/unread.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "tree/codec_internal.h"
#include "tree/rules.h"

namespace vrun::tree {
namespace {

// No SHA-256 begins with these bytes, but for a chance of 2^-128.
constexpr std::string_view kUnread("\0vrun\0not read\0\0", 16);

bool IsUnreadAt(const Directory& directory, size_t i) {
  const std::string_view entry = directory.EncodedAt(i);
  const Peek peek = PeekEntry(entry);
  return S_ISDIR(peek.mode) && entry.substr(peek.digest_at).starts_with(kUnread);
}

}  // namespace

Digest UnreadDigest(uint64_t dev, uint64_t ino) {
  Digest digest;
  std::memcpy(digest.bytes.data(), kUnread.data(), kUnread.size());
  std::memcpy(digest.bytes.data() + 16, &dev, sizeof dev);
  std::memcpy(digest.bytes.data() + 24, &ino, sizeof ino);
  return digest;
}

bool IsUnread(const Digest& digest) { return digest.view().starts_with(kUnread); }

std::string UnreadAbove(const Tree& snapshot, std::string_view path) {
  DirectoryPtr at = snapshot.directory;
  std::string above;
  while (!path.empty()) {
    const size_t end = std::min(path.find('/'), path.size());
    const std::string_view name = path.substr(0, end);
    path.remove_prefix(std::min(end + 1, path.size()));
    if (name.empty()) continue;
    const size_t i = at->Find(name);
    if (i == at->size()) return "";
    (above += '/') += name;
    if (IsUnreadAt(*at, i)) return above;
    DirectoryPtr child = at->Child(i);
    if (!child) return "";
    at = std::move(child);
  }
  return "";
}

std::string AnyUnread(const DirectoryPtr& directory, const std::string& path) {
  std::vector<std::pair<std::string, DirectoryPtr>> stack{{path, directory}};
  while (!stack.empty()) {
    const auto [at, of] = std::move(stack.back());
    stack.pop_back();
    for (size_t i = 0; i < of->size(); ++i) {
      if (DirectoryPtr child = of->Child(i)) {
        stack.emplace_back(JoinPath(at, of->NameAt(i)), std::move(child));
      } else if (IsUnreadAt(*of, i)) {
        return JoinPath(at, of->NameAt(i));
      }
    }
  }
  return "";
}

}  // namespace vrun::tree
