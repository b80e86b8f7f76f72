// SPDX-License-Identifier: Apache-2.0
#include "node/fs/tenant_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/files.h"

namespace vrun::node {
namespace {

// Raises the descriptor limit as far as the host allows. The store keeps a part open; some must be left for streams and
// mounts.
size_t DescriptorsForStore() {
  rlimit limit;
  constexpr size_t kMost = 16384;  // an import has 1,100 files
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return store::Options().max_open_files;
  if (limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 65536);
    (void)::setrlimit(RLIMIT_NOFILE, &limit);
    (void)::getrlimit(RLIMIT_NOFILE, &limit);
  }
  return std::min<size_t>(kMost, static_cast<size_t>(limit.rlim_cur) / 4);
}

uint64_t DefaultCacheBytes(const std::string& directory) {
  struct statvfs fs;
  if (::statvfs(directory.c_str(), &fs) != 0) return 1ull << 30;
  return std::max<uint64_t>(fs.f_blocks * fs.f_frsize / 4, 64u << 20);
}

}  // namespace

Result<TenantStore> OpenTenantStore(store::Options options) {
  VRUN_TRY(MakeDirs(options.directory, 0700));
  if (options.max_bytes == 0) options.max_bytes = DefaultCacheBytes(options.directory);
  options.max_open_files = DescriptorsForStore();
  // A job that writes fast to the same disk fills a tenth of a small one within a second.
  options.free_space_check_micros = 250'000;
  TenantStore opened;
  VRUN_ASSIGN(opened.store, store::Store::Open(options));
  const std::string lock = options.directory + "/lock";
  auto locked = OpenFile(lock, O_RDWR | O_CREAT, 0600);
  if (!locked && locked.error().error_number() == EISDIR && RemoveTree(lock)) {
    locked = OpenFile(lock, O_RDWR | O_CREAT, 0600);
  }
  VRUN_ASSIGN(opened.lock, std::move(locked));
  while (::flock(opened.lock.get(), LOCK_SH) != 0 && errno == EINTR) {
  }
  ::futimens(opened.lock.get(), nullptr);
  return opened;
}

}  // namespace vrun::node
