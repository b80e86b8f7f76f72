// SPDX-License-Identifier: Apache-2.0
#include "home/streams/log_spool.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/escape.h"
#include "base/files.h"
#include "base/log.h"

namespace vrun::home {
namespace {

// u8 stream (kNote: a note), 3 bytes 'V','R','L', u32 length, u64 offset; then the data.
constexpr size_t kHeader = 16;
constexpr size_t kMaxRecord = 4u << 20;
constexpr size_t kMaxOpen = 64;
constexpr char kNote = 'N';

std::string Header(char stream, size_t size, uint64_t offset) {
  std::string h(kHeader, '\0');
  h[0] = stream;
  h[1] = 'V';
  h[2] = 'R';
  h[3] = 'L';
  for (size_t i = 0; i < 4; ++i) h[4 + i] = static_cast<char>(size >> (8 * i));
  for (size_t i = 0; i < 8; ++i) h[8 + i] = static_cast<char>(offset >> (8 * i));
  return h;
}

struct Parsed {
  bool note;
  v1::StreamId stream;
  size_t size;
  uint64_t offset;
};

bool Parse(const char* h, Parsed* out) {
  if (h[1] != 'V' || h[2] != 'R' || h[3] != 'L') return false;
  out->note = h[0] == kNote;
  if (!out->note && h[0] != v1::STDOUT && h[0] != v1::STDERR) return false;
  out->stream = out->note ? v1::STDERR : static_cast<v1::StreamId>(h[0]);
  out->size = 0;
  out->offset = 0;
  for (size_t i = 0; i < 4; ++i) out->size |= static_cast<size_t>(static_cast<uint8_t>(h[4 + i])) << (8 * i);
  for (size_t i = 0; i < 8; ++i) out->offset |= static_cast<uint64_t>(static_cast<uint8_t>(h[8 + i])) << (8 * i);
  return out->size <= kMaxRecord;
}

}  // namespace

class LogSpool::Handle : public LogSpool::Subscription {
 public:
  Handle(LogSpool* spool, uint64_t job, std::function<void()> changed)
      : spool_(spool), job_(job), changed_(std::move(changed)) {
    spool_->subscribers_.emplace(job_, this);
  }
  ~Handle() override {
    auto [begin, end] = spool_->subscribers_.equal_range(job_);
    for (auto it = begin; it != end; ++it) {
      if (it->second != this) continue;
      spool_->subscribers_.erase(it);
      return;
    }
  }
  const std::function<void()>& changed() const { return changed_; }

 private:
  LogSpool* const spool_;
  const uint64_t job_;
  const std::function<void()> changed_;
};

LogSpool::LogSpool(EventLoop* loop, std::string directory, uint64_t total_limit)
    : loop_(loop), directory_(std::move(directory)), total_limit_(total_limit) {}

LogSpool::~LogSpool() {
  *alive_ = false;
  worker_.Drain();
}

std::unique_ptr<LogSpool::Subscription> LogSpool::Subscribe(uint64_t job, std::function<void()> changed) {
  return std::make_unique<Handle>(this, job, std::move(changed));
}

void LogSpool::Append(uint64_t job, v1::StreamId stream, uint64_t offset, std::string data, uint64_t limit,
                      std::function<void(Appended)> done) {
  worker_.Post([this, job, stream, offset, data = std::move(data), limit, done = std::move(done)]() mutable {
    Appended appended = Write(job, stream, offset, std::move(data), limit);
    loop_->Post([this, alive = alive_, job, done = std::move(done), appended = std::move(appended)] {
      if (!*alive) return;
      if (done) done(appended);
      Wake(job);
    });
  });
}

void LogSpool::Note(uint64_t job, std::string line) {
  worker_.Post([this, job, line = std::move(line)] {
    (void)WriteNote(job, line);
    loop_->Post([this, alive = alive_, job] {
      if (*alive) Wake(job);
    });
  });
}

void LogSpool::Wake(uint64_t job) {
  std::vector<std::function<void()>> told;  // a subscriber may be destroyed during its call
  auto [begin, end] = subscribers_.equal_range(job);
  for (auto it = begin; it != end; ++it) told.push_back(it->second->changed());
  for (auto& t : told) t();
}

LogSpool::File* LogSpool::Open(uint64_t job) {
  auto it = files_.find(job);
  if (it != files_.end()) {
    it->second.used = ++uses_;
    return &it->second;
  }
  if (files_.size() >= kMaxOpen) {
    auto oldest = std::min_element(files_.begin(), files_.end(),
                                   [](const auto& a, const auto& b) { return a.second.used < b.second.used; });
    files_.erase(oldest);
  }
  File& file = files_[job];
  file.used = ++uses_;
  Status made = MakeDirs(directory_, 0700);
  auto fd = made ? OpenFile(Path(job), O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW, 0600) : Result<UniqueFd>(made.error());
  if (!fd) {
    if (!complained_) LogWarning("the output of jobs is not saved: {}", fd.error().message());
    complained_ = true;
    file.failed = true;
    return &file;
  }
  // A file of an earlier home: find its end and cut off a partial record.
  uint64_t at = 0;
  char header[kHeader];
  Parsed record;
  for (;;) {
    auto n = PreadUpTo(fd->get(), header, kHeader, at);
    struct stat st;
    if (!n || *n < kHeader || !Parse(header, &record) || ::fstat(fd->get(), &st) != 0 ||
        at + kHeader + record.size > static_cast<uint64_t>(st.st_size)) {
      break;
    }
    at += kHeader + record.size;
    if (record.note) continue;
    file.size += record.size;
    uint64_t& next = file.next[record.stream == v1::STDERR];
    next = std::max(next, record.offset + record.size);
  }
  if (::ftruncate(fd->get(), static_cast<off_t>(at)) != 0) file.failed = true;
  file.fd = std::move(*fd);
  return &file;
}

LogSpool::Appended LogSpool::Write(uint64_t job, v1::StreamId stream, uint64_t offset, std::string data,
                                   uint64_t limit) {
  File* file = Open(job);
  if (file->failed) return {false, "output of jobs cannot be kept"};
  uint64_t& next = file->next[stream == v1::STDERR];
  if (offset < next) {
    uint64_t known = std::min<uint64_t>(next - offset, data.size());
    data.erase(0, known);
    offset += known;
  }
  if (data.empty()) return {true, ""};
  if (file->size + data.size() > limit) return {false, "the log of the job is full"};
  Appended appended = WriteRecord(file, Header(static_cast<char>(stream), data.size(), offset), data);
  if (!appended.kept) return appended;
  next = offset + data.size();
  file->size += data.size();
  return appended;
}

LogSpool::Appended LogSpool::WriteNote(uint64_t job, const std::string& line) {
  File* file = Open(job);
  if (file->failed) return {false, "output of jobs cannot be kept"};
  return WriteRecord(file, Header(kNote, line.size(), 0), line);
}

LogSpool::Appended LogSpool::WriteRecord(File* file, const std::string& header, const std::string& data) {
  MakeRoom(header.size() + data.size());
  off_t before = ::lseek(file->fd.get(), 0, SEEK_END);
  Status written = WriteAll(file->fd.get(), header);
  if (written) written = WriteAll(file->fd.get(), data);
  if (!written) {
    if (!complained_) LogWarning("the output of jobs is not saved: {}", written.error().message());
    complained_ = true;
    if (before < 0 || ::ftruncate(file->fd.get(), before) != 0) file->failed = true;
    return {false, written.error().message()};
  }
  total_ += header.size() + data.size();
  return {true, ""};
}

// Deletes the least recently written logs until there is room. Open files of running jobs are always recent.
void LogSpool::MakeRoom(uint64_t bytes) {
  if (listed_ && total_ + bytes <= total_limit_) return;
  struct Old {
    int64_t time;
    uint64_t size;
    std::string name;
  };
  std::vector<Old> all;
  total_ = 0;
  listed_ = true;
  DIR* d = ::opendir(directory_.c_str());
  if (d == nullptr) return;
  while (const dirent* e = ::readdir(d)) {
    struct stat st;
    if (e->d_name[0] == '.' || ::fstatat(::dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode))
      continue;
    all.push_back(
        {st.st_mtim.tv_sec * 1'000'000'000 + st.st_mtim.tv_nsec, static_cast<uint64_t>(st.st_size), e->d_name});
    total_ += static_cast<uint64_t>(st.st_size);
  }
  if (total_ + bytes > total_limit_) {
    std::sort(all.begin(), all.end(), [](const Old& a, const Old& b) { return a.time < b.time; });
    // Frees a little more than needed, so that the directory is not listed for each record.
    uint64_t goal = total_limit_ - std::min(total_limit_, bytes + total_limit_ / 16);
    for (const Old& old : all) {
      if (total_ <= goal) break;
      uint64_t job = std::strtoull(old.name.c_str(), nullptr, 10);
      if (files_.contains(job) && files_[job].used + kMaxOpen > uses_) continue;
      if (::unlinkat(::dirfd(d), old.name.c_str(), 0) != 0) continue;
      files_.erase(job);
      total_ -= old.size;
    }
  }
  ::closedir(d);
}

void LogSpool::ReadFrom(uint64_t job, uint64_t position, uint64_t bytes, std::function<void(Result<Read>)> done) {
  worker_.Post([this, job, position, bytes, done = std::move(done)]() mutable {
    Result<Read> result = [&]() -> Result<Read> {
      Read read;
      read.next = position;
      auto fd = OpenFile(Path(job), O_RDONLY | O_NOFOLLOW);
      if (!fd) return fd.error();
      uint64_t got = 0;
      while (got < bytes) {
        char header[kHeader];
        Parsed parsed;
        VRUN_ASSIGN(size_t n, PreadUpTo(fd->get(), header, kHeader, read.next));
        if (n < kHeader || !Parse(header, &parsed)) {
          read.at_end = true;
          break;
        }
        Record record{parsed.note, parsed.stream, parsed.offset, std::string(parsed.size, '\0')};
        VRUN_ASSIGN(n, PreadUpTo(fd->get(), record.data.data(), parsed.size, read.next + kHeader));
        if (n < parsed.size) {
          read.at_end = true;
          break;
        }
        read.next += kHeader + parsed.size;
        got += parsed.size;
        read.records.push_back(std::move(record));
      }
      return read;
    }();
    loop_->Post([alive = alive_, done = std::move(done), result = std::move(result)]() mutable {
      if (*alive) done(std::move(result));
    });
  });
}

}  // namespace vrun::home
