// SPDX-License-Identifier: Apache-2.0
#include "home/ahead/trace_store.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>
#include <vector>

#include "base/escape.h"
#include "base/files.h"
#include "base/log.h"
#include "proto/content.pb.h"

namespace vrun::home {
namespace {

constexpr std::string_view kMagic = "vrtrace2";
constexpr size_t kMaxBytes = 32u << 20;

}  // namespace

std::string TraceStore::Encode(const Trace& trace) {
  const std::string record = WriteTrace(trace).SerializeAsString();
  return std::string(kMagic) + std::string(Sha256(record).view()) + record;
}

std::optional<Trace> TraceStore::Decode(std::string_view bytes) {
  constexpr size_t kHeader = kMagic.size() + sizeof(Digest::bytes);
  if (bytes.size() < kHeader || !bytes.starts_with(kMagic)) return std::nullopt;
  const std::string_view body = bytes.substr(kHeader);
  if (Sha256(body).view() != bytes.substr(kMagic.size(), sizeof(Digest::bytes))) return std::nullopt;
  v1::TraceRecord record;
  if (!record.ParseFromArray(body.data(), static_cast<int>(body.size()))) return std::nullopt;
  return ReadTrace(record);
}

std::optional<Trace> TraceStore::Load(const Digest& key) const {
  if (directory_.empty()) return std::nullopt;
  const std::string path = PathOf(key);
  struct stat st;
  if (::stat(path.c_str(), &st) != 0 || !S_ISREG(st.st_mode)) return std::nullopt;  // reading a FIFO would not end
  const auto bytes = ReadFile(path, kMaxBytes);
  if (!bytes) return std::nullopt;
  auto trace = Decode(*bytes);
  if (!trace) {
    LogWarning("{}: a trace that does not check: forgotten", Escape(path));
    ::unlink(path.c_str());
    return std::nullopt;
  }
  ::utimensat(AT_FDCWD, path.c_str(), nullptr, 0);  // marks it as used now
  return trace;
}

void TraceStore::Save(const Digest& key, const Trace& trace) {
  if (directory_.empty()) return;
  Status saved = MakeDirs(directory_, 0700);
  const std::string path = PathOf(key);
  const bool fresh = !PathExists(path);
  if (saved) saved = WriteFileAtomic(path, Encode(trace), 0600);
  if (!saved && saved.error().error_number() == EISDIR && RemoveTree(path)) {
    saved = WriteFileAtomic(path, Encode(trace), 0600);
  }
  if (!saved) LogWarning("a trace is not kept: {}", saved.error().message());
  if (saved && fresh) Trim();
}

void TraceStore::Trim() const {
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir(directory_.c_str()), ::closedir);
  if (!directory) return;
  std::vector<std::pair<int64_t, std::string>> files;  // by time of use
  while (const dirent* entry = ::readdir(directory.get())) {
    const std::string path = directory_ + "/" + entry->d_name;
    struct stat st;
    if (!path.ends_with(".trace") || ::stat(path.c_str(), &st) != 0) continue;
    files.emplace_back(st.st_mtim.tv_sec * 1'000'000'000 + st.st_mtim.tv_nsec, path);
  }
  if (files.size() <= limit_) return;
  std::sort(files.begin(), files.end());
  for (size_t i = 0; i < files.size() - limit_; ++i) ::unlink(files[i].second.c_str());
}

}  // namespace vrun::home
