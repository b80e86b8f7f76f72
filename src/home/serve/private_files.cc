// SPDX-License-Identifier: Apache-2.0
#include "home/serve/private_files.h"

#include <unistd.h>

#include <algorithm>
#include <array>

#include "base/clock.h"
#include "base/escape.h"
#include "tree/rules.h"

namespace vrun::home {
namespace {

constexpr int64_t kLargestSecret = 64 << 10;
constexpr size_t kBeginning = 4096;
// Times of files are up to 10 ms behind the clock.
constexpr int64_t kCoarseMicros = 20'000;
// A file that others may read is no good place for a secret: looked for so often at most.
constexpr int64_t kPatienceMicros = 1'000'000;

bool ForOwnerOnly(const struct stat& st) { return (st.st_mode & (S_IRWXG | S_IRWXO)) == 0; }

bool HasSecret(int fd, const struct stat& st) {
  if (!ForOwnerOnly(st) || st.st_size == 0 || st.st_size > kLargestSecret) return false;
  std::array<char, kBeginning> beginning;
  const ssize_t n = ::pread(fd, beginning.data(), beginning.size(), 0);
  return n > 0 && LooksLikeSecret({beginning.data(), static_cast<size_t>(n)});
}

}  // namespace

bool LooksLikeSecret(std::string_view beginning) {
  constexpr std::string_view kSigns[] = {"PRIVATE KEY-----",       // PEM, OpenSSH
                                         "PuTTY-User-Key-File-",   //
                                         "AGE-SECRET-KEY-1",       //
                                         "aws_secret_access_key",  //
                                         "\"private_key\":"};      // service accounts of Google
  return std::any_of(std::begin(kSigns), std::end(kSigns),
                     [&](std::string_view sign) { return beginning.find(sign) != std::string_view::npos; });
}

bool PrivateFiles::IsOtherName(const struct stat& st, const DenyRules& rules) const {
  if (st.st_nlink < 2) return false;
  MutexLock lock(mutex_);
  // A name that was made later has changed the ctime.
  const int64_t now = WallMicros();
  const bool newer = st.st_ctim.tv_sec * 1'000'000 + st.st_ctim.tv_nsec / 1000 > looked_us_ - kCoarseMicros;
  if (newer && (ForOwnerOnly(st) || now - looked_us_ > kPatienceMicros)) {
    linked_ = rules.Linked();
    looked_us_ = now;
  }
  return std::find(linked_.begin(), linked_.end(), FileId{st.st_dev, st.st_ino}) != linked_.end();
}

Status PrivateFiles::Check(int fd, const struct stat& st, std::string_view path) const {
  const auto rules = trees_->rules();
  if (!rules || (!IsOtherName(st, *rules) && !HasSecret(fd, st))) return {};
  if (rules->Opened(path)) return {};
  for (const std::string& exposed : trees_->Exposed()) {
    if (tree::IsBelow(path, exposed)) return {};
  }
  return Error(Code::kDenied, Escape(path) + ": a private key or credential: not served (see --expose)");
}

}  // namespace vrun::home
