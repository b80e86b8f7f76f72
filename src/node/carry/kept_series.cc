// SPDX-License-Identifier: Apache-2.0
#include "node/carry/kept_series.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>

#include "base/escape.h"
#include "base/files.h"
#include "base/log.h"
#include "node/carry/overlay_layer.h"

namespace vrun::node {
namespace {

// The work of one step, which blocks the supervisor's loop.
constexpr uint64_t kStepBytes = 4u << 20;
constexpr size_t kStepWrites = 256;
constexpr size_t kFlushBytes = 256u << 10;
constexpr char kWhat[] = "keep what the command wrote on the node";
// Larger than any path and all attributes together.
constexpr uint32_t kMaxFrame = 16u << 20;
constexpr size_t kMaxData = 4u << 20;

Status SyncDirectory(const std::string& path) {
  VRUN_ASSIGN(UniqueFd fd, OpenFile(path, O_RDONLY | O_DIRECTORY));
  if (::fsync(fd.get()) != 0) return ErrnoError("sync " + Escape(path));
  return {};
}

std::string ParentOf(const std::string& path) { return path.substr(0, path.rfind('/')); }

Error Damaged() { return Error(Code::kCorrupt, "the kept writes are damaged on the node's disk"); }

}  // namespace

// --- writing ---

Result<std::unique_ptr<KeptWriter>> KeptWriter::Create(std::string directory, std::unique_ptr<Carry> carry) {
  std::unique_ptr<KeptWriter> writer(new KeptWriter(std::move(directory), std::move(carry)));
  const std::string& where = writer->directory_;
  VRUN_TRY(RemoveTree(where));
  VRUN_TRY(MakeDirs(where, 0700));
  VRUN_ASSIGN(writer->series_, OpenFile(where + "/series", O_WRONLY | O_CREAT | O_TRUNC, 0600));
  VRUN_ASSIGN(writer->data_, OpenFile(where + "/data", O_WRONLY | O_CREAT | O_TRUNC, 0600));
  return writer;
}

Result<bool> KeptWriter::Step() {
  uint64_t written = 0;
  for (size_t i = 0; i < kStepWrites && written < kStepBytes; ++i) {
    VRUN_ASSIGN(std::optional<v1::WriteBack> write, carry_->Next());
    if (!write) {
      VRUN_TRY(Flush());
      return false;
    }
    v1::KeptWrite frame;
    if (write->has_file_data()) {
      const std::string& data = write->file_data().data();
      if (Status stored = WriteAll(data_.get(), data); !stored) return std::move(stored).error().With(kWhat);
      frame.set_data_bytes(static_cast<uint32_t>(data.size()));
      written += data.size();
      bytes_ += data.size();
      write->mutable_file_data()->clear_data();
    } else if (write->has_put_file()) {
      ++files_;
    }
    *frame.mutable_write() = *std::move(write);
    const std::string text = frame.SerializeAsString();
    const auto size = static_cast<uint32_t>(text.size());
    for (int shift : {0, 8, 16, 24}) frames_.push_back(static_cast<char>(size >> shift));
    frames_ += text;
    if (frames_.size() >= kFlushBytes) VRUN_TRY(Flush());
  }
  return true;
}

Status KeptWriter::Flush() {
  Status written = WriteAll(series_.get(), frames_);
  frames_.clear();
  if (!written) return std::move(written).error().With(kWhat);
  return {};
}

Status KeptWriter::Finish(v1::Kept* kept, const std::string& to, const std::string& upper) {
  kept->set_state(v1::KEPT_THERE);
  kept->set_files(files_);
  kept->set_entries(carry_->End().entries());
  kept->set_bytes(bytes_);
  for (const UniqueFd* fd : {&series_, &data_}) {
    if (::fsync(fd->get()) != 0) return ErrnoError(kWhat);
  }
  VRUN_TRY(WriteKept(directory_, *kept));
  VRUN_TRY(MakeDirs(ParentOf(to), 0700));
  // An attempt has only one result: if an earlier try got this far, nobody was told.
  VRUN_TRY(RemoveTree(to));
  if (::rename(directory_.c_str(), to.c_str()) != 0) return ErrnoError(kWhat);
  // Without it the next attempt only starts from an empty upper; nothing is lost.
  if (!upper.empty() && ::rename(upper.c_str(), (to + "/upper").c_str()) != 0) {
    LogWarning("{}", ErrnoError("keep " + Escape(upper)).message());
  }
  return SyncDirectory(ParentOf(to));
}

// --- reading ---

Result<std::unique_ptr<KeptReader>> KeptReader::Open(const std::string& directory, std::vector<std::string> paths,
                                                     bool names_only) {
  VRUN_ASSIGN(UniqueFd series, OpenFile(directory + "/series", O_RDONLY));
  VRUN_ASSIGN(UniqueFd data, OpenFile(directory + "/data", O_RDONLY));
  return std::unique_ptr<KeptReader>(new KeptReader(std::move(series), std::move(data), std::move(paths), names_only));
}

Result<std::optional<v1::KeptWrite>> KeptReader::NextFrame() {
  const auto fill = [&](size_t wanted) -> Result<bool> {
    while (buffer_.size() - at_ < wanted) {
      buffer_.erase(0, std::exchange(at_, 0));
      const size_t had = buffer_.size();
      buffer_.resize(had + std::max(wanted, kFlushBytes));
      VRUN_ASSIGN(size_t n, ReadUpTo(series_.get(), buffer_.data() + had, buffer_.size() - had));
      buffer_.resize(had + n);
      if (n == 0) return false;
    }
    return true;
  };
  VRUN_ASSIGN(bool more, fill(4));
  if (!more) {
    if (at_ != buffer_.size()) return Damaged();
    return std::nullopt;
  }
  uint32_t size = 0;
  for (size_t i : {0, 1, 2, 3}) size |= uint32_t{static_cast<uint8_t>(buffer_[at_ + i])} << (8 * i);
  if (size > kMaxFrame) return Damaged();
  VRUN_ASSIGN(more, fill(4 + size_t{size}));
  v1::KeptWrite frame;
  if (!more || !frame.ParseFromArray(buffer_.data() + at_ + 4, static_cast<int>(size))) return Damaged();
  at_ += 4 + size_t{size};
  return frame;
}

bool KeptReader::Chosen(const v1::WriteBack& write) {
  if (paths_.empty()) return true;
  if (write.has_file_data()) return file_chosen_;
  const auto any = [&](const auto& is) { return std::any_of(paths_.begin(), paths_.end(), is); };
  if (any([&](const std::string& path) {
        return IsAtOrBelow(write.path(), path) || (write.has_rename() && IsAtOrBelow(write.rename().from(), path));
      })) {
    return true;
  }
  if (write.has_set_meta()) return made_above_.contains(write.path());
  if (!write.has_make_directory()) return false;
  const bool above = any([&](const std::string& path) { return IsAtOrBelow(path, write.path()); });
  if (above) made_above_.insert(write.path());
  return above;
}

Result<std::optional<v1::WriteBack>> KeptReader::Next() {
  for (;;) {
    VRUN_ASSIGN(std::optional<v1::KeptWrite> frame, NextFrame());
    if (!frame) return std::nullopt;
    v1::WriteBack* write = frame->mutable_write();
    const bool chosen = Chosen(*write);
    if (!write->has_file_data()) {
      file_chosen_ = chosen;
      if (chosen) return std::move(*write);
      continue;
    }
    const uint64_t at = data_at_;
    data_at_ += frame->data_bytes();
    if (!chosen || names_only_) continue;
    if (frame->data_bytes() > kMaxData) return Damaged();
    std::string* data = write->mutable_file_data()->mutable_data();
    data->resize(frame->data_bytes());
    VRUN_ASSIGN(size_t n, PreadUpTo(data_.get(), data->data(), data->size(), at));
    if (n != data->size()) return Damaged();
    return std::move(*write);
  }
}

// --- the record ---

Result<v1::Kept> ReadKept(const std::string& directory) {
  VRUN_ASSIGN(std::string bytes, ReadFile(directory + "/record"));
  v1::Kept kept;
  if (!kept.ParseFromString(bytes) || kept.state() == v1::KEPT_STATE_UNSPECIFIED) return Damaged();
  return kept;
}

Status WriteKept(const std::string& directory, const v1::Kept& kept) {
  return WriteFileAtomic(directory + "/record", kept.SerializeAsString(), 0600);
}

}  // namespace vrun::node
