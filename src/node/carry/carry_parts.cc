// SPDX-License-Identifier: Apache-2.0
#include "node/carry/carry_parts.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "base/escape.h"
#include "base/files.h"

namespace vrun::node {
namespace {

using vrun::v1::WriteBack;

constexpr uint64_t kCell = 1u << 20;

WriteBack RemoveMessage(std::string path, const struct stat& st) {
  WriteBack message;
  message.set_path(std::move(path));
  *message.mutable_base() = VersionOf(st);
  message.mutable_remove();
  return message;
}

}  // namespace

// --- data ---

uint64_t FileCells::Count(uint64_t size) { return size == 0 ? 1 : (size - 1) / kCell + 1; }

Result<WriteBack> FileCells::Next() {
  uint64_t cells = Count(size_);
  uint64_t begin = 0;
  uint64_t end = 0;
  for (;;) {
    begin = cell_ * kCell;
    end = std::min(size_, begin + kCell);
    if (size_ == 0) break;
    off_t at = ::lseek(fd_.get(), static_cast<off_t>(begin), SEEK_DATA);
    if (at < 0 && errno == ENXIO) at = static_cast<off_t>(size_);
    if (at < 0 && errno != EINVAL) return ErrnoError("read " + Escape(path_));
    if (at < 0) break;  // a file system that cannot report holes
    if (static_cast<uint64_t>(at) >= end) {
      uint64_t cell = std::min(static_cast<uint64_t>(at) / kCell, cells - 1);
      if (cell > cell_) {
        cell_ = cell;
        continue;
      }
      begin = end;  // the last cell, which has no data
      break;
    }
    begin = std::max(begin, static_cast<uint64_t>(at));
    off_t hole = ::lseek(fd_.get(), static_cast<off_t>(begin), SEEK_HOLE);
    if (hole >= 0 && static_cast<uint64_t>(hole) < end) {
      off_t more = ::lseek(fd_.get(), hole, SEEK_DATA);
      if (more < 0 || static_cast<uint64_t>(more) >= end) end = static_cast<uint64_t>(hole);
    }
    break;
  }
  WriteBack message;
  message.set_path(path_);
  message.set_sequence(first_sequence_ + cell_);
  vrun::v1::FileData* out = message.mutable_file_data();
  out->set_offset(begin);
  if (begin < end) {
    std::string* bytes = out->mutable_data();
    bytes->resize(end - begin);
    VRUN_ASSIGN(size_t n, PreadUpTo(fd_.get(), bytes->data(), bytes->size(), begin));
    if (n != bytes->size()) return Error(Code::kCorrupt, Escape(path_) + ": the file ends before its size");
  }
  ++cell_;
  out->set_last(cell_ == cells);
  return message;
}

// --- removals ---

RemovalWalk::RemovalWalk(const OverlayLayer* lower, Spared spared, std::string from, std::string path, bool keep_top)
    : lower_(lower), spared_(std::move(spared)), from_(std::move(from)), path_(std::move(path)), keep_top_(keep_top) {}

Result<std::optional<WriteBack>> RemovalWalk::Visit(std::string from, std::string path) {
  VRUN_ASSIGN(auto st, lower_->Lstat(from));
  if (!st) return std::nullopt;
  if (!S_ISDIR(st->st_mode)) return RemoveMessage(std::move(path), *st);
  VRUN_ASSIGN(auto entries, lower_->List(from));
  frames_.push_back({std::move(from), std::move(path), std::move(entries), 0});
  return std::nullopt;
}

Result<std::optional<WriteBack>> RemovalWalk::Next() {
  if (!begun_) {
    VRUN_ASSIGN(auto message, Visit(from_, path_));
    begun_ = true;
    if (message && !keep_top_) return message;
  }
  while (!frames_.empty()) {
    Frame& frame = frames_.back();
    if (frame.next < frame.entries.size()) {
      const std::string& name = frame.entries[frame.next].name;
      std::string from = JoinPath(frame.from, name);
      std::string path = JoinPath(frame.path, name);
      ++frame.next;
      if (spared_(from, path)) continue;
      VRUN_ASSIGN(auto message, Visit(std::move(from), std::move(path)));
      if (message) return message;
      continue;
    }
    VRUN_ASSIGN(auto st, lower_->Lstat(frame.from));
    std::string path = std::move(frame.path);
    frames_.pop_back();
    if (st && !(frames_.empty() && keep_top_)) return RemoveMessage(std::move(path), *st);
  }
  return std::nullopt;
}

}  // namespace vrun::node
