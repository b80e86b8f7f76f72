// SPDX-License-Identifier: Apache-2.0
#include "vfs/frozen/saved_view.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace vrun::vfs {
namespace {

constexpr uint64_t kMagic = 0x3230776569766b76;  // changes with every layout; other values are refused

// Address space and file size, not memory: pages exist only once they are written.
constexpr uint32_t kMostOpens = 1u << 20;
constexpr uint32_t kMostInodes = 1u << 25;
constexpr size_t kOpensAt = 4096;
constexpr size_t kInodesAt = kOpensAt + size_t{kMostOpens} * sizeof(SavedOpen);
constexpr size_t kBytes = kInodesAt + size_t{kMostInodes} * sizeof(SavedInode);
static_assert(sizeof(SavedView::Header) <= kOpensAt);
static_assert(sizeof(SavedInode) == 32 && sizeof(SavedOpen) == 24 && kInodesAt % 4096 == 0);

Result<void*> Map(int fd) {
  void* memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (memory == MAP_FAILED) return ErrnoError("map the state of a view");
  return memory;
}

}  // namespace

Result<std::unique_ptr<SavedView>> SavedView::Create() {
  UniqueFd fd(::memfd_create("vrun-view", MFD_CLOEXEC));
  if (!fd) return ErrnoError("memfd_create for the state of a view");
  if (::ftruncate(fd.get(), kBytes) != 0) return ErrnoError("memory for the state of a view");
  VRUN_ASSIGN(void* memory, Map(fd.get()));
  std::unique_ptr<SavedView> saved(new SavedView(std::move(fd), memory));
  saved->header_->magic = kMagic;
  return saved;
}

Result<std::unique_ptr<SavedView>> SavedView::Open(UniqueFd fd) {
  struct stat st {};
  if (::fstat(fd.get(), &st) != 0) return ErrnoError("the state of a view");
  if (static_cast<size_t>(st.st_size) != kBytes) {
    return Error(Code::kCorrupt, "the saved state of a view is from another version of this program");
  }
  VRUN_ASSIGN(void* memory, Map(fd.get()));
  std::unique_ptr<SavedView> saved(new SavedView(std::move(fd), memory));
  const Header& header = *saved->header_;
  if (header.magic != kMagic || header.inodes_used > kMostInodes || header.opens_used > kMostOpens) {
    return Error(Code::kCorrupt, "the saved state of a view is from another version of this program");
  }
  saved->inodes_->FindFree();
  saved->opens_->FindFree();
  return saved;
}

SavedView::SavedView(UniqueFd fd, void* memory)
    : fd_(std::move(fd)),
      memory_(memory),
      header_(static_cast<Header*>(memory)),
      inodes_(std::make_unique<SavedTable<SavedInode>>(
          reinterpret_cast<SavedInode*>(static_cast<char*>(memory) + kInodesAt), kMostInodes, &header_->inodes_used)),
      opens_(std::make_unique<SavedTable<SavedOpen>>(
          reinterpret_cast<SavedOpen*>(static_cast<char*>(memory) + kOpensAt), kMostOpens, &header_->opens_used)) {}

SavedView::~SavedView() { ::munmap(memory_, kBytes); }

Digest SavedView::tree() const {
  Digest digest;
  static_assert(sizeof digest.bytes == sizeof header_->tree);
  std::copy_n(header_->tree, sizeof header_->tree, digest.bytes.begin());
  return digest;
}

void SavedView::SetTree(const Digest& tree) { std::copy_n(tree.bytes.begin(), sizeof header_->tree, header_->tree); }

Status SavedView::Usable() const {
  const char* why = header_->advancing != 0    ? "it was being advanced to another tree"
                    : header_->incomplete != 0 ? "more files were in use than the saved state can record"
                    : header_->resend == 0     ? "the kernel cannot resend its requests (needs Linux 6.9 or newer)"
                                               : nullptr;
  if (why != nullptr) return Error(Code::kUnsupported, std::string("a view cannot be taken over: ") + why);
  return {};
}

}  // namespace vrun::vfs
