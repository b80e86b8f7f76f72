// SPDX-License-Identifier: Apache-2.0
#include "gpu/inject/trusted.h"

#include <sys/stat.h>
#include <unistd.h>

#include "base/escape.h"

namespace vrun::gpu {

Status CheckOnlyRootWrites(const std::string& path) {
  const auto denied = [](const std::string& part, const char* why) {
    return Error(Code::kDenied, Escape(part) + ": " + why + ": it must belong to root alone");
  };
  if (!path.starts_with('/')) return denied(path, "not an absolute path");
  for (size_t slash = path.size(); slash != std::string::npos && slash > 0; slash = path.rfind('/', slash - 1)) {
    const std::string part = path.substr(0, slash);
    struct stat st;
    if (::lstat(part.c_str(), &st) != 0) return ErrnoError("stat " + Escape(part));
    if (S_ISLNK(st.st_mode)) return denied(part, "a link");
    const bool ours = st.st_uid == 0 || st.st_uid == ::geteuid();
    const bool sticky = S_ISDIR(st.st_mode) && (st.st_mode & S_ISVTX) != 0;
    if (!ours || ((st.st_mode & 022) != 0 && !sticky)) return denied(part, "others than root can write it");
  }
  return {};
}

}  // namespace vrun::gpu
