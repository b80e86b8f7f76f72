// SPDX-License-Identifier: Apache-2.0
#include "vfs/live/data/live_journal.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/clock.h"
#include "base/escape.h"
#include "base/files.h"
#include "base/log.h"
#include "vfs/live/data/live_codec.h"

namespace vrun::vfs {
namespace {

constexpr uint32_t kMagic = 0x316a7276;  // "vrj1": only the last byte changes with each layout
constexpr size_t kMagicStays = 3;
constexpr size_t kFrameHeader = 12;               // magic, length of the body, checksum of both
constexpr uint64_t kLeastCheckpoint = 16u << 20;  // smaller journals are not rewritten
constexpr uint64_t kCheckpointRatio = 4;

// Bytes allocated ahead: enough for 200,000 names, less on a small disk.
constexpr uint64_t kMostAhead = 64u << 20, kLeastAhead = 256u << 10, kDiskShare = 16;
constexpr uint64_t kLeastPiece = 64u << 10;
constexpr int64_t kTryAgainMicros = 100'000;
constexpr uint64_t kForReading = 2;  // new changes leave this share (one half) free
// Room reserved for one change. Reads leave twice as much: for a change that was accepted, and its consequences.
constexpr uint64_t kForAChange = 8, kMostForAChange = 1u << 20;

// More than any server gives out.
constexpr unsigned kNodeBits = 40, kCookieBits = 32;

uint64_t Ahead(int fd) {
  struct statvfs of {};
  if (::fstatvfs(fd, &of) != 0) return kLeastAhead;
  return std::clamp(of.f_blocks * of.f_frsize / kDiskShare, kLeastAhead, kMostAhead);
}

uint64_t ForAChange(uint64_t ahead) { return std::min(ahead / kForAChange, kMostForAChange); }

uint64_t FreeBytes(int fd) {
  struct statvfs of {};
  return ::fstatvfs(fd, &of) == 0 ? of.f_bavail * of.f_frsize : 0;
}

uint64_t NextRange(uint64_t number, unsigned bits) { return ((number >> bits) + 1) << bits; }

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

bool IsOfAnotherVersion(std::string_view bytes, size_t at) {
  std::string magic;
  PutNumber(&magic, kMagic);
  const std::string_view is = bytes.substr(at, magic.size());
  return is.size() == magic.size() && is != magic && is.substr(0, kMagicStays) == magic.substr(0, kMagicStays);
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
  if (!fd) return ErrnoError("create the journal of a live view " + Escape(path));
  return fd;
}

}  // namespace

void LiveState::SkipNumbers() {
  next_node = NextRange(next_node, kNodeBits);
  next_cookie = NextRange(next_cookie, kCookieBits);
}

LiveJournal::LiveJournal(std::string path, UniqueFd fd, uint64_t end)
    : path_(std::move(path)),
      ahead_(Ahead(fd.get())),
      fd_(std::make_shared<const UniqueFd>(std::move(fd))),
      end_(end),
      reserved_(end) {
  MutexLock lock(mutex_);
  AllocateLocked(0, true);
}

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
  // Cut off only a torn tail; blocks allocated behind it go as well.
  if (good < n && ::ftruncate(fd.get(), static_cast<off_t>(good)) != 0) return ErrnoError("repair " + Escape(path));
  return std::unique_ptr<LiveJournal>(new LiveJournal(path, std::move(fd), good));
}

Result<LiveState> LiveJournal::Parse(std::string_view bytes, size_t* good) {
  LiveState state;
  size_t at = 0;
  while (at < bytes.size()) {
    const auto body = FrameAt(bytes, at);
    if (!body) {
      if (IsOfAnotherVersion(bytes, at)) {
        return Error(Code::kCorrupt, "the journal was written by another version of this program (at byte " +
                                         std::to_string(at) + "): only that version can send its writes home");
      }
      if (!AnyFrameAfter(bytes, at)) break;  // torn
      return Error(Code::kCorrupt,
                   "the journal is damaged at byte " + std::to_string(at) + ", before its end: suspect a disk error");
    }
    if (!ApplyFrame(*body, &state)) {
      return Error(Code::kCorrupt,
                   "the journal has a record of another version of this program at byte " + std::to_string(at));
    }
    at += kFrameHeader + body->size();
  }
  *good = at;
  return state;
}

void LiveJournal::TellRoomLocked() {
  room_ = behind_ ? 0 : LeftLocked();
  is_behind_ = behind_;
}

int LiveJournal::ShortageLocked() const { return shortage_ != 0 ? shortage_ : ENOSPC; }

void LiveJournal::AllocateLocked(uint64_t least, bool now) {
  const uint64_t want = std::max(ahead_, least + ahead_ / kForReading);
  if (LeftLocked() >= std::max(least, want - ahead_ / 4)) return;
  const int64_t at = MonotonicMicros();
  if (!now && LeftLocked() >= least && at < next_try_) return;
  // Piece by piece, so that all free space is used. Blocks allocated by another process are not known and count as
  // free.
  uint64_t piece = want - LeftLocked();
  if (LeftLocked() > 0) piece = std::min(piece, FreeBytes(fd_->get()));
  while (LeftLocked() < want && piece >= kLeastPiece) {
    const auto from = static_cast<off_t>(reserved_), length = static_cast<off_t>(piece);
    const int failed = ::fallocate(fd_->get(), FALLOC_FL_KEEP_SIZE, from, length) != 0 ? errno : 0;
    if (failed == EINTR) continue;
    if (failed == 0 || failed == EOPNOTSUPP) {  // an append will find out
      reserved_ += piece;
      piece = std::min(piece, want - LeftLocked());
    } else {
      shortage_ = failed;
      piece /= 2;
    }
  }
  if (LeftLocked() < want) next_try_ = at + kTryAgainMicros;
  TellRoomLocked();
}

int LiveJournal::Reserve(uint64_t* lacks) {
  MutexLock lock(mutex_);
  AllocateLocked(0, true);
  const uint64_t left = LeftLocked(), need = ahead_ / kForReading;
  if (!behind_ && left >= need) return 0;
  *lacks = std::max(need - std::min(left, need), kLeastPiece);
  return ShortageLocked();
}

bool LiveJournal::TakesChange(uint64_t bytes) const { return room_ >= bytes + ForAChange(ahead_); }

uint64_t LiveJournal::RoomForReading() const {
  const uint64_t room = room_, kept = 2 * ForAChange(ahead_);
  return room > kept ? room - kept : 0;
}

void LiveJournal::FallBehindLocked(const Error& why) {
  if (!std::exchange(behind_, true)) {
    LogWarning("the journal of a live view, {}: {}: the view refuses writes until the disk has room", Escape(path_),
               why.message());
    needed_ = 0;
  }
  TellRoomLocked();
}

Status LiveJournal::Append(const LiveFrame& frame, Of of) {
  if (frame.empty()) return {};
  const std::string bytes = FrameOf(frame.body());
  MutexLock lock(mutex_);
  if (in_checkpoint_) after_ += bytes;
  const uint64_t room = bytes.size() + (of == Of::kReading ? 2 * ForAChange(ahead_) : 0);
  if (!behind_) AllocateLocked(room, false);
  Status written;
  if (LeftLocked() < room || (behind_ && of == Of::kReading)) {
    written = ErrnoError(ShortageLocked(), "allocate blocks");
  } else if (written = PwriteAll(fd_->get(), bytes, end_); !written) {
    (void)!::ftruncate(fd_->get(), static_cast<off_t>(end_));  // back to the last whole frame
    reserved_ = end_;
  }
  if (!written) {
    FallBehindLocked(written.error());
    return std::move(written).error().With("write the journal of a live view");
  }
  end_ += bytes.size();
  TellRoomLocked();
  return {};
}

Status LiveJournal::Flush() {
  std::shared_ptr<const UniqueFd> fd;
  {
    MutexLock lock(mutex_);
    fd = fd_;
  }
  if (::fdatasync(fd->get()) != 0) return ErrnoError("flush the journal of a live view");
  return {};
}

bool LiveJournal::WantsCheckpoint() const {
  MutexLock lock(mutex_);
  if (in_checkpoint_) return false;
  if (behind_) return FreeBytes(fd_->get()) >= needed_;
  return end_ > kLeastCheckpoint && end_ > kCheckpointRatio * checkpoint_;
}

void LiveJournal::BeginCheckpoint() {
  MutexLock lock(mutex_);
  in_checkpoint_ = true;
  after_.clear();
}

Status LiveJournal::FinishCheckpoint(const LiveFrame& all) {
  // The old file counts until the new one has its name; frames appended meanwhile are in both.
  const std::string next = path_ + ".next";
  const std::string bytes = FrameOf(all.body());
  auto fd = NewFile(next);
  Status written = fd ? PwriteAll(fd->get(), bytes, 0) : Status(fd.error());
  if (written && ::fdatasync(fd->get()) != 0) written = ErrnoError("flush " + Escape(next));
  MutexLock lock(mutex_);
  in_checkpoint_ = false;
  checkpoint_ = bytes.size();  // also after a failure: no retry at once
  const std::string after = std::exchange(after_, {});
  needed_ = bytes.size() + after.size() + ahead_ / kForReading;
  if (written) written = PwriteAll(fd->get(), after, bytes.size());
  if (written && !after.empty() && ::fdatasync(fd->get()) != 0) written = ErrnoError("flush " + Escape(next));
  if (written && ::rename(next.c_str(), path_.c_str()) != 0) written = ErrnoError("rename " + Escape(next));
  if (!written) {
    ::unlink(next.c_str());  // frees its room
    return written;
  }
  fd_ = std::make_shared<const UniqueFd>(*std::move(fd));  // the old file's allocation is free now
  reserved_ = end_ = bytes.size() + after.size();
  if (std::exchange(behind_, false))
    LogInfo("the journal of a live view, {}: it is complete again: the view accepts writes", Escape(path_));
  AllocateLocked(0, true);
  TellRoomLocked();
  return {};
}

uint64_t LiveJournal::bytes() const {
  MutexLock lock(mutex_);
  return end_;
}

}  // namespace vrun::vfs
