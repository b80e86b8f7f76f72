// SPDX-License-Identifier: Apache-2.0
#include "base/io/stream_progress.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cstddef>

#include "base/files.h"

namespace vrun {

Result<UniqueFd> CreateStreamProgress() {
  UniqueFd fd(::memfd_create("vrun-progress", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return ErrnoError("memfd_create");
  if (::ftruncate(fd.get(), sizeof(StreamProgress)) != 0) return ErrnoError("ftruncate of a memfd");
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) return ErrnoError("seal a memfd");
  // Only the head is written: the window stays a hole.
  uint64_t magic = StreamProgress::kMagic;
  uint32_t version = StreamProgress::kVersion;
  VRUN_TRY(PwriteAll(fd.get(), {reinterpret_cast<const char*>(&magic), sizeof magic}, offsetof(StreamProgress, magic)));
  VRUN_TRY(PwriteAll(fd.get(), {reinterpret_cast<const char*>(&version), sizeof version},
                     offsetof(StreamProgress, version)));
  return fd;
}

Result<StreamProgressMap> StreamProgressMap::Map(int fd) {
  struct stat st;
  if (::fstat(fd, &st) != 0) return ErrnoError("fstat of the progress memory");
  int seals = ::fcntl(fd, F_GET_SEALS);
  if (st.st_size != static_cast<off_t>(sizeof(StreamProgress)) || seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return Error(
        Code::kCorrupt,
        "client and home have different versions (the progress memory is not a sealed memfd of the right size): "
        "run `vctl down`, then repeat the command");
  }
  void* at = ::mmap(nullptr, sizeof(StreamProgress), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return ErrnoError("map the progress memory");
  StreamProgressMap map(static_cast<StreamProgress*>(at));
  if (map->magic != StreamProgress::kMagic || map->version != StreamProgress::kVersion) {
    return Error(Code::kCorrupt,
                 "progress memory: unknown layout: client and home have different versions: stop home "
                 "with `vctl down`");
  }
  return map;
}

StreamProgressMap::~StreamProgressMap() {
  if (at_ != nullptr) ::munmap(at_, sizeof(StreamProgress));
}

}  // namespace vrun
