// SPDX-License-Identifier: Apache-2.0
#include "base/secrets/secret_store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "base/escape.h"
#include "base/files.h"

namespace vrun {
namespace {

constexpr size_t kMostName = 64;

bool IsAlphanumeric(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

Error NotFound(const std::string& name) {
  return Error(Code::kNotFound, "secret " + Escape(name) + ": not stored here: `vctl secret set " + Escape(name) + "`");
}

}  // namespace

Status CheckSecretName(std::string_view name) {
  const bool fine =
      !name.empty() && name.size() <= kMostName && IsAlphanumeric(name[0]) &&
      std::all_of(name.begin(), name.end(), [](char c) { return IsAlphanumeric(c) || c == '-' || c == '.'; });
  if (fine) return {};
  return Error(Code::kInvalid, Escape(name) + ": no name of a secret: up to 64 letters, digits, _, - and .");
}

Status CheckSecretVariable(const std::string& name, std::string_view value) {
  if (value.find('\0') != std::string_view::npos) {
    return Error(Code::kInvalid,
                 "secret " + Escape(name) + ": it has a NUL byte, so it cannot be a variable: use a file");
  }
  if (value.size() > kMostSecretVariableBytes) {
    return Error(Code::kInvalid, "secret " + Escape(name) + ": too large for a variable: use a file");
  }
  return {};
}

Status SecretStore::Set(const std::string& name, std::string_view value) const {
  VRUN_TRY(CheckSecretName(name));
  if (value.size() > kMostSecretBytes) {
    return Error(Code::kInvalid,
                 "secret " + Escape(name) + ": larger than 512 KiB: keep it in a file and use --expose");
  }
  VRUN_TRY(MakeDirs(directory_, 0700));
  // Whoever made the directory first: it is ours alone.
  if (::chmod(directory_.c_str(), 0700) != 0) return ErrnoError("protect " + Escape(directory_));
  return WriteFileAtomic(Path(name), value, 0600);
}

Result<std::string> SecretStore::Get(const std::string& name) const {
  VRUN_TRY(CheckSecretName(name));
  Result<UniqueFd> file = OpenFile(Path(name), O_RDONLY | O_NOFOLLOW);
  if (!file) {
    if (file.error().error_number() == ENOENT) return NotFound(name);
    return std::move(file).error().With("secret " + Escape(name));
  }
  std::string value(kMostSecretBytes + 1, '\0');
  VRUN_ASSIGN(const size_t n, ReadUpTo(file->get(), value.data(), value.size()));
  if (n > kMostSecretBytes) return Error(Code::kInvalid, "secret " + Escape(name) + ": its file is too large");
  value.resize(n);
  return value;
}

Status SecretStore::Delete(const std::string& name) const {
  VRUN_TRY(CheckSecretName(name));
  if (::unlink(Path(name).c_str()) == 0) return {};
  if (errno == ENOENT) return NotFound(name);
  return ErrnoError("delete secret " + Escape(name));
}

Result<std::vector<SecretStore::Entry>> SecretStore::List() const {
  std::vector<Entry> out;
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir(directory_.c_str()), ::closedir);
  if (!directory) {
    if (errno == ENOENT) return out;
    return ErrnoError("list " + Escape(directory_));
  }
  while (const dirent* entry = ::readdir(directory.get())) {
    struct stat st;
    const std::string_view name = entry->d_name;
    if (name.find(".tmp.") != name.npos) continue;  // of a Set that did not end
    if (!CheckSecretName(name) || ::stat(Path(entry->d_name).c_str(), &st) != 0 || !S_ISREG(st.st_mode)) continue;
    out.push_back({entry->d_name, static_cast<uint64_t>(st.st_size),
                   int64_t{st.st_mtim.tv_sec} * 1'000'000 + st.st_mtim.tv_nsec / 1000});
  }
  std::sort(out.begin(), out.end(), [](const Entry& a, const Entry& b) { return a.name < b.name; });
  return out;
}

}  // namespace vrun
