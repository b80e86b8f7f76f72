// SPDX-License-Identifier: Apache-2.0
// LiveFile with a journal: tracks what was written since the last publish, and preserves published content.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/files.h"
#include "base/io/copy_content.h"
#include "base/thread/mutex.h"
#include "proto/task.pb.h"
#include "vfs/live/data/live_file.h"

namespace vrun::vfs {
namespace {

constexpr uint64_t kBlock = 4096;        // unit of copying aside
constexpr size_t kMostRanges = 1024;     // per version
constexpr uint64_t kSmall = 128 * 1024;  // sent whole rather than as a patch
constexpr size_t kCopyBytes = 1 << 20;

// The data of a file without its holes; of a file with very many, the small ones count as data.
std::vector<ByteRange> DataOf(int fd, uint64_t size) {
  ByteRanges data;
  const auto add = [&data](uint64_t offset, uint64_t length) {
    data.Add(offset, length);
    return Status();
  };
  (void)ForEachData(fd, 0, size, add);
  for (uint64_t unit = kLiveUnit; data.size() > kMostRanges; unit *= 4) data.Round(unit);
  return data.Below(size);
}

std::vector<ByteRange> AllOf(uint64_t size) {
  return size > 0 ? std::vector<ByteRange>{{0, size}} : std::vector<ByteRange>();
}

// Bytes beyond the end of the file are zeros.
int ReadZeroFilled(int fd, uint64_t offset, char* buffer, size_t n) {
  const auto got = PreadUpTo(fd, buffer, n, offset);
  if (!got) return ErrnoOfFile(got.error());
  std::memset(buffer + *got, 0, n - *got);
  return 0;
}

}  // namespace

// --- versions --------------------------------------------------------------------------------------------------------

LiveVersion::LiveVersion(std::shared_ptr<LiveFile> file, LiveFiles& files, LiveContent content, bool found)
    : file_(std::move(file)), files_(files.shared_from_this()), content_(std::move(content)) {
  if (!found || content_.aside == 0) return;
  aside_ = files_->OpenAt(std::to_string(content_.aside), O_RDWR);
  if (!aside_) return;
  // Whole blocks are copied aside before they are overwritten. So all data in the file is valid, also if the writer
  // died.
  for (off_t at = 0;;) {
    const off_t data = ::lseek(aside_.get(), at, SEEK_DATA);
    if (data < 0) break;
    at = ::lseek(aside_.get(), data, SEEK_HOLE);
    if (at <= data) break;
    kept_.Add(static_cast<uint64_t>(data), static_cast<uint64_t>(at - data));
  }
  kept_.Round(kBlock);
}

LiveVersion::~LiveVersion() {
  if (aside_) files_->Remove(content_.aside);
}

int LiveVersion::OpenAside() {
  if (aside_) return 0;
  aside_ = files_->OpenAt(std::to_string(content_.aside), O_RDWR | O_CREAT | O_TRUNC, 0600);
  return aside_ ? 0 : errno;
}

int LiveVersion::KeepLocked(int from, uint64_t offset, uint64_t n) {
  const uint64_t change_end = offset + std::min(n, UINT64_MAX - offset);
  auto range = std::lower_bound(content_.ranges.begin(), content_.ranges.end(), offset,
                                [](const ByteRange& r, uint64_t at) { return r.offset + r.length <= at; });
  thread_local const std::unique_ptr<char[]> buffer(new char[kCopyBytes]);
  for (; range != content_.ranges.end() && range->offset < change_end; ++range) {
    uint64_t at = std::max(range->offset, offset) / kBlock * kBlock;
    const uint64_t end = (std::min(range->offset + range->length, change_end) + kBlock - 1) / kBlock * kBlock;
    while (at < end) {
      at = kept_.NextOut(at, end);
      const uint64_t until = std::min(kept_.NextIn(at, end), at + kCopyBytes);
      if (at >= until) break;
      if (const int error = OpenAside(); error != 0) return error;
      if (const int error = ReadZeroFilled(from, at, buffer.get(), until - at); error != 0) return error;
      // Write zeros too: a hole there counts as not copied.
      if (const Status wrote = PwriteAll(aside_.get(), {buffer.get(), until - at}, at); !wrote) {
        return ErrnoOfFile(wrote.error());
      }
      kept_.Add(at, until - at);
      at = until;
    }
  }
  return 0;
}

int LiveVersion::Read(uint64_t offset, char* buffer, size_t n) {
  MutexLock lock(file_->mutex_);
  const uint64_t end = offset + n;
  for (uint64_t at = offset; at < end;) {
    const bool aside = kept_.NextIn(at, end) == at;
    const uint64_t until = aside ? kept_.NextOut(at, end) : kept_.NextIn(at, end);
    int error = 0;
    if (aside) {
      error = ReadZeroFilled(aside_.get(), at, buffer + (at - offset), until - at);
    } else if (const auto fd = file_->DescriptorLocked(); fd) {
      error = ReadZeroFilled((*fd)->get(), at, buffer + (at - offset), until - at);
    } else {
      error = ErrnoOfFile(fd.error());
    }
    if (error != 0) return error;
    at = until;
  }
  return 0;
}

bool LiveVersion::BecomeWhole() {
  MutexLock lock(file_->mutex_);
  if (!file_->complete_) return false;
  struct stat st {};
  if (::fstatat(files_->fd(), file_->name_.c_str(), &st, AT_SYMLINK_NOFOLLOW) != 0) return false;
  content_.over = v1::NOTHING;
  content_.size = static_cast<uint64_t>(st.st_size);
  const auto fd = file_->DescriptorLocked();
  content_.ranges = fd ? DataOf((*fd)->get(), content_.size) : AllOf(content_.size);
  return true;
}

// --- files -----------------------------------------------------------------------------------------------------------

std::shared_ptr<LiveFile> LiveFile::Restore(LiveFiles& files, const LiveFileState& state,
                                            std::shared_ptr<FileContent> lower) {
  const std::shared_ptr<LiveFile> file(new LiveFile(files, state.id));
  struct stat st {};
  if (::fstatat(files.fd(), file->name_.c_str(), &st, AT_SYMLINK_NOFOLLOW) != 0) return nullptr;
  const auto size = static_cast<uint64_t>(st.st_size);
  file->dirty_ = state.dirty > state.published;
  file->generation_ = state.published + 1;
  file->base_ = state.published > 0 ? Base::kPublished : Base::kNone;
  file->base_size_ = size;
  if (state.incomplete && lower != nullptr) {
    if (state.published == 0) file->base_ = Base::kHome;
    file->home_version_ = state.lower;
    file->lower_ = std::move(lower);
    file->place_ = {state.lower_tree, state.lower_path};
    file->lower_size_ = state.lower_size;
    file->present_ = state.present;
    file->missing_ = static_cast<uint64_t>(std::count(state.present.begin(), state.present.end(), false));
    file->complete_ = false;
  }
  if (!file->dirty_) return file;
  // It is no longer known which bytes were written: take all that may have been.
  if (file->complete_) {
    file->base_ = Base::kNone;
    return file;
  }
  for (uint64_t unit = 0; unit < file->present_.size(); ++unit) {
    if (file->present_[unit]) file->changed_.Add(unit * kLiveUnit, kLiveUnit);
  }
  file->changed_.Add(file->lower_size_, size > file->lower_size_ ? size - file->lower_size_ : 0);
  return file;
}

LiveFileState LiveFile::State() const {
  MutexLock lock(mutex_);
  return StateLocked();
}

LiveFileState LiveFile::StateLocked() const {
  LiveFileState state;
  state.id = id_;
  state.dirty = dirty_ ? generation_ : 0;
  state.published = generation_ - 1;
  if (lower_ == nullptr) return state;
  state.incomplete = true;
  state.lower = lower_->version();
  state.lower_tree = place_.tree;
  state.lower_path = place_.path;
  state.lower_size = lower_size_;
  state.present = present_;
  return state;
}

// Without this record the units would be filled again with home's content. So the journal must have the written ones.
int LiveFile::NoteUnitsLocked(uint64_t first, uint64_t end, LiveJournal::Of of) {
  if (files_->journal() == nullptr) return 0;
  LiveFrame frame;
  frame.Units(id_, first, end, lower_size_);
  const Status appended = files_->journal()->Append(frame, of);
  return appended ? 0 : ErrnoOfFile(appended.error());
}

int LiveFile::BeforeChangeLocked(int fd, uint64_t offset, uint64_t n) {
  if (files_->journal() == nullptr) return 0;
  // Also makes room for the record of NoteUnitsLocked. While filled units are missing from the journal, none of them
  // may be written.
  if (!files_->journal()->TakesChange()) return ENOSPC;
  if (!dirty_) {
    LiveFrame frame;
    frame.Dirty(id_, generation_);
    const Status appended = files_->journal()->Append(frame, LiveJournal::Of::kChange);
    if (!appended) return ErrnoOfFile(appended.error());
    dirty_ = true;
  }
  std::erase_if(versions_, [](const auto& version) { return version.expired(); });
  if (n == 0) return 0;
  for (const auto& weak : versions_) {
    const auto version = weak.lock();
    const int error = version ? version->KeepLocked(fd, offset, n) : 0;
    if (error != 0) return error;
  }
  return 0;
}

void LiveFile::ChangedLocked(uint64_t offset, uint64_t n) {
  if (files_->journal() == nullptr || base_ == Base::kNone) return;
  changed_.Add(offset, n);
  if (changed_.size() <= kMostRanges) return;
  // Of an incomplete file only present content can be sent: for each unit that was written to, the whole unit.
  if (lower_ != nullptr) {
    changed_.Round(kLiveUnit);
  } else {
    changed_.Coarsen(kMostRanges / 2);
  }
}

bool LiveFile::IsUnderWay() const {
  MutexLock lock(mutex_);
  return std::any_of(versions_.begin(), versions_.end(), [](const auto& version) { return !version.expired(); });
}

uint64_t LiveFile::Appended() const {
  MutexLock lock(mutex_);
  struct stat st {};
  if (!dirty_ || ::fstatat(files_->fd(), name_.c_str(), &st, AT_SYMLINK_NOFOLLOW) != 0) return 0;
  const auto size = static_cast<uint64_t>(st.st_size);
  if (base_ == Base::kNone) return size;
  const bool beyond = changed_.empty() || changed_.first() >= base_size_;
  return beyond && size > base_size_ ? size - base_size_ : 0;
}

Result<std::shared_ptr<LiveVersion>> LiveFile::Publish(tree::FileVersion* base) {
  MutexLock lock(mutex_);
  if (!dirty_ && base_ != Base::kNone) return std::shared_ptr<LiveVersion>();
  struct stat st {};
  if (::fstatat(files_->fd(), name_.c_str(), &st, AT_SYMLINK_NOFOLLOW) != 0) return ErrnoError("stat a backing file");
  LiveContent content;
  content.file = id_;
  content.generation = generation_;
  content.size = static_cast<uint64_t>(st.st_size);
  const uint64_t changed = changed_.BytesBelow(content.size);
  const bool beyond = changed_.empty() || changed_.first() >= base_size_;
  // (Over home's own version it is an append only if the file grew: an equal size can mean other content.)
  const bool grown = base_ == Base::kPublished || (base_ == Base::kHome && content.size > base_size_);
  if (grown && beyond && content.size >= base_size_) {
    content.over = v1::APPEND;
  } else if (base_ != Base::kNone && (lower_ != nullptr || (content.size > kSmall && changed < content.size / 2))) {
    content.over = v1::PATCH;
  }
  if (content.over != v1::NOTHING) {
    content.ranges = changed_.Below(content.size);
    // The end of home's file may differ by now: an append states where it begins, also if it begins with a hole.
    const uint64_t first = content.ranges.empty() ? content.size : content.ranges.front().offset;
    if (content.over == v1::APPEND && first > base_size_) {
      content.ranges.insert(content.ranges.begin(), ByteRange{base_size_, 0});
    }
  } else if (content.size > 0) {
    VRUN_ASSIGN(const auto fd, DescriptorLocked());
    content.ranges = DataOf(fd->get(), content.size);
  }
  if (!content.ranges.empty()) content.aside = files_->NextId();
  if (content.over != v1::NOTHING && base_ == Base::kHome) *base = home_version_;
  ++generation_;
  base_ = Base::kPublished;
  base_size_ = content.size;
  dirty_ = false;
  changed_.Clear();
  const auto version = std::make_shared<LiveVersion>(shared_from_this(), *files_, std::move(content), false);
  versions_.push_back(version);
  return version;
}

std::shared_ptr<LiveVersion> LiveFile::RestoreVersion(const LiveContent& content) {
  const auto version = std::make_shared<LiveVersion>(shared_from_this(), *files_, content, true);
  MutexLock lock(mutex_);
  versions_.push_back(version);
  return version;
}

}  // namespace vrun::vfs
