// SPDX-License-Identifier: Apache-2.0
#include "control/backup/backup_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

#include "base/escape.h"
#include "base/files.h"
#include "base/hash/blake3.h"
#include "base/unique_fd.h"

namespace vrun::control {
namespace {

constexpr std::string_view kBackupMagic = "vrunbak1";
constexpr size_t kMagicName = 7;  // of these bytes; the rest is the format's version
constexpr size_t kMostRecord = size_t{256} << 20;
constexpr int kBackupLevel = 3;

std::string LengthBytes(size_t length) {
  std::string bytes;
  for (int i = 0; i < 4; ++i) bytes.push_back(static_cast<char>(length >> 8 * i & 0xff));
  return bytes;
}

std::string ParentDirectory(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

std::string TemporaryName(const std::string& path) { return path + ".tmp." + std::to_string(::getpid()); }

Status SyncParent(const std::string& path) {
  VRUN_ASSIGN(const UniqueFd directory, OpenFile(ParentDirectory(path), O_RDONLY | O_DIRECTORY));
  if (::fsync(directory.get()) != 0 && errno != EINVAL) return ErrnoError("fsync of the directory of " + Escape(path));
  return {};
}

class ZstdWriter final : public BackupWriter {
 public:
  // `named`: the file has a name already, and not only its descriptor.
  ZstdWriter(std::string path, UniqueFd file, bool named)
      : path_(std::move(path)),
        temporary_(TemporaryName(path_)),
        file_(std::move(file)),
        named_(named),
        context_(ZSTD_createCCtx()) {
    ZSTD_CCtx_setParameter(context_, ZSTD_c_compressionLevel, kBackupLevel);
    ZSTD_CCtx_setParameter(context_, ZSTD_c_checksumFlag, 1);
    buffer_.resize(ZSTD_CStreamOutSize());
  }
  ~ZstdWriter() override {
    ZSTD_freeCCtx(context_);
    if (named_) ::unlink(temporary_.c_str());
  }

  Status Start() { return Write(kBackupMagic); }

  Status Add(const v1::BackupRecord& record) override {
    if (record.has_row()) ++rows_;
    if (record.has_file() && !record.file().more()) ++files_;
    return Put(record, true);
  }

  Status Finish() override {
    v1::BackupRecord end;
    end.mutable_end()->set_rows(rows_);
    end.mutable_end()->set_files(files_);
    end.mutable_end()->set_digest(std::string(sum_.Sum().view()));
    VRUN_TRY(Put(end, false));
    VRUN_TRY(Compress({}, ZSTD_e_end));
    if (::fsync(file_.get()) != 0) return ErrnoError("fsync " + Escape(temporary_));
    if (!named_) {
      ::unlink(temporary_.c_str());
      const std::string fd = "/proc/self/fd/" + std::to_string(file_.get());
      if (::linkat(AT_FDCWD, fd.c_str(), AT_FDCWD, temporary_.c_str(), AT_SYMLINK_FOLLOW) != 0) {
        return ErrnoError("link " + Escape(temporary_));
      }
      named_ = true;
    }
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) return ErrnoError("rename to " + Escape(path_));
    named_ = false;
    return SyncParent(path_);
  }

  uint64_t bytes() const override { return bytes_; }

 private:
  Status Put(const v1::BackupRecord& record, bool summed) {
    const std::string text = record.SerializeAsString();
    if (text.size() > kMostRecord) return Error(Code::kUnsupported, "a row is larger than a backup can hold");
    const std::string length = LengthBytes(text.size());
    if (summed) {
      sum_.Add(length);
      sum_.Add(text);
    }
    VRUN_TRY(Compress(length, ZSTD_e_continue));
    return Compress(text, ZSTD_e_continue);
  }
  Status Compress(std::string_view data, ZSTD_EndDirective how) {
    ZSTD_inBuffer in{data.data(), data.size(), 0};
    for (;;) {
      ZSTD_outBuffer out{buffer_.data(), buffer_.size(), 0};
      const size_t left = ZSTD_compressStream2(context_, &out, &in, how);
      if (ZSTD_isError(left) != 0) return Error(Code::kInternal, std::string("zstd: ") + ZSTD_getErrorName(left));
      VRUN_TRY(Write({buffer_.data(), out.pos}));
      if (how == ZSTD_e_end ? left == 0 : in.pos == in.size) return {};
    }
  }
  Status Write(std::string_view data) {
    bytes_ += data.size();
    if (Status done = WriteAll(file_.get(), data); !done) return done.error().With(Escape(temporary_));
    return {};
  }

  const std::string path_, temporary_;
  const UniqueFd file_;
  bool named_;  // there is a file temporary_
  ZSTD_CCtx* const context_;
  std::string buffer_;
  Blake3Sum sum_;
  uint64_t rows_ = 0, files_ = 0, bytes_ = 0;
};

class ZstdReader final : public BackupReader {
 public:
  ZstdReader(std::string path, UniqueFd file, uint64_t size)
      : path_(std::move(path)), file_(std::move(file)), size_(size), context_(ZSTD_createDCtx()) {
    buffer_.resize(ZSTD_DStreamInSize());
  }
  ~ZstdReader() override { ZSTD_freeDCtx(context_); }

  Status Start() {
    std::string magic(kBackupMagic.size(), '\0');
    VRUN_ASSIGN(const size_t n, ReadUpTo(file_.get(), magic.data(), magic.size()));
    bytes_ = n;
    if (n == magic.size() && magic == kBackupMagic) return {};
    if (n == magic.size() && magic.starts_with(kBackupMagic.substr(0, kMagicName))) {
      return Error(Code::kUnsupported, Escape(path_) + ": a backup in another format: use the vrund that wrote it");
    }
    return Error(Code::kInvalid, Escape(path_) + ": no backup of a controller");
  }

  Result<bool> Next(v1::BackupRecord* record) override {
    std::string length;
    VRUN_TRY(Take(4, &length));
    size_t size = 0;
    for (int i = 0; i < 4; ++i) size |= static_cast<size_t>(static_cast<unsigned char>(length[i])) << 8 * i;
    if (size > kMostRecord) return Damaged();
    std::string text;
    VRUN_TRY(Take(size, &text));
    if (!record->ParseFromString(text)) return Damaged();
    if (!record->has_end()) {
      sum_.Add(length);
      sum_.Add(text);
      if (record->has_row()) ++rows_;
      if (record->has_file() && !record->file().more()) ++files_;
      return true;
    }
    const v1::BackupEnd& end = record->end();
    if (end.digest() != sum_.Sum().view() || end.rows() != rows_ || end.files() != files_) return Damaged();
    return AtEnd();
  }

  uint64_t bytes() const override { return bytes_; }
  uint64_t size() const override { return size_; }

 private:
  Error Damaged() const {
    return Error(Code::kCorrupt, Escape(path_) + ": it is damaged or was cut off: take another backup");
  }

  // More of what was compressed; false: the file has no more.
  Result<bool> Fill() {
    for (;;) {
      if (in_.pos == in_.size) {
        VRUN_ASSIGN(const size_t n, ReadUpTo(file_.get(), buffer_.data(), buffer_.size()));
        bytes_ += n;
        in_ = {buffer_.data(), n, 0};
        if (n == 0) return false;
      }
      if (whole_) return Damaged();  // something follows the frame
      const size_t before = plain_.size(), step = ZSTD_DStreamOutSize();
      plain_.resize(before + step);
      ZSTD_outBuffer out{plain_.data() + before, step, 0};
      const size_t left = ZSTD_decompressStream(context_, &out, &in_);
      plain_.resize(before + out.pos);
      if (ZSTD_isError(left) != 0) return Damaged();
      whole_ = left == 0;
      if (out.pos > 0) return true;
      if (whole_ && in_.pos == in_.size) return false;
    }
  }
  Status Take(size_t size, std::string* out) {
    while (plain_.size() - at_ < size) {
      if (at_ > 0) plain_.erase(0, std::exchange(at_, 0));
      VRUN_ASSIGN(const bool more, Fill());
      if (!more) return Damaged();
    }
    out->assign(plain_, at_, size);
    at_ += size;
    return {};
  }
  // False, as Next has it.
  Result<bool> AtEnd() {
    if (at_ != plain_.size()) return Damaged();
    VRUN_ASSIGN(const bool more, Fill());
    if (more || !whole_) return Damaged();
    return false;
  }

  const std::string path_;
  const UniqueFd file_;
  const uint64_t size_;
  ZSTD_DCtx* const context_;
  std::string buffer_;  // as read
  ZSTD_inBuffer in_{nullptr, 0, 0};
  bool whole_ = false;  // the frame has ended
  std::string plain_;   // decompressed, from at_ on not yet taken
  size_t at_ = 0;
  Blake3Sum sum_;
  uint64_t rows_ = 0, files_ = 0, bytes_ = 0;
};

}  // namespace

Result<std::unique_ptr<BackupWriter>> BackupWriter::Create(const std::string& path) {
  // It takes the place of what is there: not of a device, which the whole machine would miss.
  struct stat st = {};
  if (::lstat(path.c_str(), &st) == 0 && !S_ISREG(st.st_mode)) {
    return Error(Code::kInvalid, "write " + Escape(path) + ": not a regular file: name one, or a new one");
  }
  // Without a name nothing is left of it, however this process ends.
  UniqueFd file(::open(ParentDirectory(path).c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  const bool named = !file;
  if (named)
    file = UniqueFd(::open(TemporaryName(path).c_str(), O_CREAT | O_TRUNC | O_RDWR | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file) return ErrnoError("write " + Escape(path));
  if (::fchmod(file.get(), 0600) != 0) return ErrnoError("chmod " + Escape(path));
  auto writer = std::make_unique<ZstdWriter>(path, std::move(file), named);
  VRUN_TRY(writer->Start());
  return std::unique_ptr<BackupWriter>(std::move(writer));
}

Result<std::unique_ptr<BackupReader>> BackupReader::Open(const std::string& path) {
  VRUN_ASSIGN(UniqueFd file, OpenFile(path, O_RDONLY));
  struct stat st {};
  if (::fstat(file.get(), &st) != 0) return ErrnoError("stat " + Escape(path));
  auto reader = std::make_unique<ZstdReader>(path, std::move(file), static_cast<uint64_t>(st.st_size));
  VRUN_TRY(reader->Start());
  return std::unique_ptr<BackupReader>(std::move(reader));
}

}  // namespace vrun::control
