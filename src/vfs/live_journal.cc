// SPDX-License-Identifier: Apache-2.0
#include "vfs/live_journal.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/escape.h"
#include "base/files.h"
#include "vfs/live_codec.h"

namespace vrun::vfs {
namespace {

constexpr uint32_t kMagic = 0x316a7276;           // "vrj1": changes with every layout
constexpr size_t kFrameHeader = 12;               // magic, length of the body, checksum of both
constexpr uint64_t kReserve = 1u << 20;           // allocated ahead
constexpr uint64_t kLeastCheckpoint = 16u << 20;  // below, the journal is not written anew
constexpr uint64_t kCheckpointRatio = 4;

std::string FrameOf(std::string_view body) {
  const auto length = static_cast<uint32_t>(body.size());
  std::string frame;
  frame.reserve(kFrameHeader + body.size());
  PutNumber(&frame, kMagic);
  PutNumber(&frame, length);
  PutNumber(&frame, Crc32c(body, length));
  frame += body;
  return frame;
}

// The body of the frame at `at`; nullopt: there is none.
std::optional<std::string_view> FrameAt(std::string_view bytes, size_t at) {
  if (bytes.size() - at < kFrameHeader) return std::nullopt;
  Taker in(bytes.substr(at, kFrameHeader));
  uint32_t magic = 0, length = 0, checksum = 0;
  in.Number(&magic);
  in.Number(&length);
  in.Number(&checksum);
  if (magic != kMagic || length > bytes.size() - at - kFrameHeader) return std::nullopt;
  const std::string_view body = bytes.substr(at + kFrameHeader, length);
  if (Crc32c(body, length) != checksum) return std::nullopt;
  return body;
}

bool AnyFrameAfter(std::string_view bytes, size_t at) {
  std::string magic;
  PutNumber(&magic, kMagic);
  for (size_t next = bytes.find(magic, at + 1); next != std::string_view::npos; next = bytes.find(magic, next + 1)) {
    if (FrameAt(bytes, next)) return true;
  }
  return false;
}

Result<UniqueFd> NewFile(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd) return ErrnoError("make the journal of a live view " + Escape(path));
  return fd;
}

}  // namespace

Result<std::unique_ptr<LiveJournal>> LiveJournal::Create(const std::string& path) {
  VRUN_ASSIGN(UniqueFd fd, NewFile(path));
  return std::unique_ptr<LiveJournal>(new LiveJournal(path, std::move(fd), 0));
}

Result<std::unique_ptr<LiveJournal>> LiveJournal::Open(const std::string& path, LiveState* state) {
  VRUN_ASSIGN(UniqueFd fd, OpenFile(path, O_RDWR | O_NOFOLLOW));
  struct stat st {};
  if (::fstat(fd.get(), &st) != 0) return ErrnoError("read " + Escape(path));
  std::string bytes(static_cast<size_t>(st.st_size), '\0');
  VRUN_ASSIGN(const size_t n, PreadUpTo(fd.get(), bytes.data(), bytes.size(), 0));
  bytes.resize(n);
  size_t good = 0;
  auto parsed = Parse(bytes, &good);
  if (!parsed) return std::move(parsed).error().With(Escape(path));
  *state = *std::move(parsed);
  if (::ftruncate(fd.get(), static_cast<off_t>(good)) != 0) return ErrnoError("repair " + Escape(path));
  return std::unique_ptr<LiveJournal>(new LiveJournal(path, std::move(fd), good));
}

Result<LiveState> LiveJournal::Parse(std::string_view bytes, size_t* good) {
  LiveState state;
  size_t at = 0;
  while (at < bytes.size()) {
    const auto body = FrameAt(bytes, at);
    if (!body) {
      if (!AnyFrameAfter(bytes, at)) break;  // torn
      return Error(Code::kCorrupt, "the journal is damaged at byte " + std::to_string(at) +
                                       ", in its midst: the disk is not to be trusted");
    }
    if (!ApplyFrame(*body, &state)) {
      return Error(Code::kCorrupt,
                   "a record of the journal at byte " + std::to_string(at) + " is of another version of this program");
    }
    at += kFrameHeader + body->size();
  }
  *good = at;
  return state;
}

int LiveJournal::Reserve(size_t bytes) {
  std::lock_guard lock(mutex_);
  if (broken_) return EIO;
  if (end_ + bytes <= reserved_) return 0;
  const uint64_t from = std::max(end_, reserved_);
  const uint64_t want = std::max<uint64_t>(kReserve, bytes);
  if (::fallocate(fd_.get(), FALLOC_FL_KEEP_SIZE, static_cast<off_t>(from), static_cast<off_t>(want)) != 0) {
    if (errno != EOPNOTSUPP) return errno;  // else an append finds out
  }
  reserved_ = from + want;
  return 0;
}

Status LiveJournal::Append(const LiveFrame& frame) {
  if (frame.empty()) return {};
  const std::string bytes = FrameOf(frame.body());
  std::lock_guard lock(mutex_);
  if (broken_) return Error(Code::kExhausted, "the journal of a live view cannot be written any more");
  if (in_checkpoint_) after_ += bytes;
  if (Status written = PwriteAll(fd_.get(), bytes, end_); !written) {
    broken_ = true;
    return std::move(written).error().With("write the journal of a live view");
  }
  end_ += bytes.size();
  return {};
}

Status LiveJournal::Flush() {
  int fd = -1;
  {
    std::lock_guard lock(mutex_);
    fd = ::fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0);
  }
  const UniqueFd own(fd);
  if (!own || ::fdatasync(own.get()) != 0) return ErrnoError("flush the journal of a live view");
  return {};
}

bool LiveJournal::WantsCheckpoint() const {
  std::lock_guard lock(mutex_);
  return !in_checkpoint_ && end_ > kLeastCheckpoint && end_ > kCheckpointRatio * checkpoint_;
}

void LiveJournal::BeginCheckpoint() {
  std::lock_guard lock(mutex_);
  in_checkpoint_ = true;
  after_.clear();
}

Status LiveJournal::FinishCheckpoint(const LiveFrame& all) {
  // The old one counts until the new one has its name; whatever is appended meanwhile is in both.
  const std::string next = path_ + ".next";
  const std::string bytes = FrameOf(all.body());
  auto fd = NewFile(next);
  Status written = fd ? PwriteAll(fd->get(), bytes, 0) : Status(fd.error());
  if (written && ::fdatasync(fd->get()) != 0) written = ErrnoError("flush " + Escape(next));
  std::lock_guard lock(mutex_);
  in_checkpoint_ = false;
  checkpoint_ = bytes.size();  // also when it fails: it is not tried again at once
  const std::string after = std::exchange(after_, {});
  VRUN_TRY(written);
  VRUN_TRY(PwriteAll(fd->get(), after, bytes.size()));
  if (!after.empty() && ::fdatasync(fd->get()) != 0) return ErrnoError("flush " + Escape(next));
  if (::rename(next.c_str(), path_.c_str()) != 0) return ErrnoError("rename " + Escape(next));
  fd_ = *std::move(fd);
  reserved_ = end_ = bytes.size() + after.size();
  return {};
}

uint64_t LiveJournal::bytes() const {
  std::lock_guard lock(mutex_);
  return end_;
}

}  // namespace vrun::vfs
