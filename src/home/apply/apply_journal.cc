// SPDX-License-Identifier: Apache-2.0
#include "home/apply/apply_journal.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "base/escape.h"
#include "base/files.h"

namespace vrun::home {
namespace {
// Header: magic, attempt, last operation, last durable operation, boot id. Records: two (length, bytes) pairs: a
// diversion, or "" and an OwnChange, an Intent, an Append or the number of a refused operation. Native byte order,
// since the same machine writes and reads it.
constexpr char kMagic[8] = {'v', 'r', 'u', 'n', 'a', 'p', 'l', '2'};
struct Header {
  char magic[8];
  uint64_t attempt;
  uint64_t applied;
  uint64_t durable;
  char boot[40];  // in the kernel's format
};
constexpr size_t kHeader = sizeof(Header);
constexpr uint32_t kMaxLength = 1u << 17;

void SetBoot(Header* header) {
  const std::string boot = ReadFile("/proc/sys/kernel/random/boot_id").value_or("");
  std::memcpy(header->boot, boot.data(), std::min(boot.size(), sizeof header->boot));
}

bool TakeString(std::string_view* data, std::string* out) {
  uint32_t length;
  if (data->size() < sizeof length) return false;
  std::memcpy(&length, data->data(), sizeof length);
  if (length > kMaxLength || data->size() - sizeof length < length) return false;
  out->assign(data->substr(sizeof length, length));
  data->remove_prefix(sizeof length + length);
  return true;
}

void PutString(std::string* out, const std::string& s) {
  uint32_t length = static_cast<uint32_t>(s.size());
  out->append(reinterpret_cast<const char*>(&length), sizeof length);
  out->append(s);
}
}  // namespace

Result<ApplyJournal> ApplyJournal::Open(const std::string& path, uint32_t attempt) {
  ApplyJournal journal;
  if (path.empty()) return journal;
  journal.path_ = path;
  VRUN_ASSIGN(journal.fd_, OpenFile(path, O_RDWR | O_CREAT | O_NOFOLLOW, 0600));
  struct stat st;
  if (::fstat(journal.fd_.get(), &st) != 0) return ErrnoError("open " + Escape(path));
  std::string data(static_cast<size_t>(st.st_size), '\0');
  VRUN_ASSIGN(size_t n, PreadUpTo(journal.fd_.get(), data.data(), data.size(), 0));
  data.resize(n);
  Header header = {};
  if (data.size() >= kHeader) std::memcpy(&header, data.data(), kHeader);
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0 || header.attempt != attempt) {
    if (::ftruncate(journal.fd_.get(), 0) != 0) return ErrnoError("clear " + Escape(path));
    header = {};
    std::memcpy(header.magic, kMagic, sizeof kMagic);
    header.attempt = attempt;
    SetBoot(&header);
    VRUN_TRY(PwriteAll(journal.fd_.get(), {reinterpret_cast<const char*>(&header), kHeader}, 0));
    journal.end_ = kHeader;
    return journal;
  }
  journal.found_ = true;
  Header now = {};
  SetBoot(&now);
  journal.same_boot_ = std::memcmp(header.boot, now.boot, sizeof now.boot) == 0;
  if (!journal.same_boot_) {
    std::memcpy(header.boot, now.boot, sizeof now.boot);
    VRUN_TRY(PwriteAll(journal.fd_.get(), {reinterpret_cast<const char*>(&header), kHeader}, 0));
  }
  journal.applied_before_ = header.applied;
  journal.durable_before_ = header.durable;
  std::string_view rest = std::string_view(data).substr(kHeader);
  journal.end_ = kHeader;
  std::string from;
  std::string to;
  while (TakeString(&rest, &from) && TakeString(&rest, &to)) {
    if (!from.empty()) {
      journal.diversions_[from] = to;
    } else if (OwnChange change; to.size() == sizeof change) {
      std::memcpy(&change, to.data(), sizeof change);
      journal.own_changes_.push_back(change);
    } else if (to.size() == sizeof journal.intent_) {
      std::memcpy(&journal.intent_, to.data(), sizeof journal.intent_);
    } else if (Append append; to.size() == sizeof append) {
      std::memcpy(&append, to.data(), sizeof append);
      journal.appends_[append.sequence] = append;
    } else if (uint64_t refused = 0; to.size() == sizeof refused) {
      std::memcpy(&refused, to.data(), sizeof refused);
      journal.NoteRefused(refused);
    }
    journal.end_ = data.size() - rest.size();
  }
  if (::ftruncate(journal.fd_.get(), static_cast<off_t>(journal.end_)) != 0)
    return ErrnoError("repair " + Escape(path));
  return journal;
}

Status ApplyJournal::Add(const std::string& path, const std::string& actual) {
  if (fd_) {
    std::string record;
    PutString(&record, path);
    PutString(&record, actual);
    VRUN_TRY(PwriteAll(fd_.get(), record, end_));
    if (::fdatasync(fd_.get()) != 0) return ErrnoError("write " + Escape(path_));
    end_ += record.size();
  }
  diversions_[path] = actual;
  return {};
}

void ApplyJournal::AddOwnChange(const OwnChange& change) {
  if (!fd_) return;
  std::string record;
  PutString(&record, "");
  PutString(&record, std::string(reinterpret_cast<const char*>(&change), sizeof change));
  // A hint, as below.
  if (PwriteAll(fd_.get(), record, end_)) end_ += record.size();
}

void ApplyJournal::SetIntent(const Intent& intent) {
  intent_ = intent;
  if (!fd_) return;
  std::string record;
  PutString(&record, "");
  PutString(&record, std::string(reinterpret_cast<const char*>(&intent), sizeof intent));
  if (PwriteAll(fd_.get(), record, end_)) end_ += record.size();
}

Status ApplyJournal::AddAppend(const Append& append, bool durable) {
  appends_[append.sequence] = append;
  if (!fd_) return {};
  std::string record;
  PutString(&record, "");
  PutString(&record, std::string(reinterpret_cast<const char*>(&append), sizeof append));
  VRUN_TRY(PwriteAll(fd_.get(), record, end_));
  if (durable && ::fdatasync(fd_.get()) != 0) return ErrnoError("write " + Escape(path_));
  end_ += record.size();
  return {};
}

void ApplyJournal::NoteRefused(uint64_t sequence) {
  constexpr size_t kMost = 256;  // more than can wait for home to tell them
  if (refused_.size() >= 2 * kMost) refused_.erase(refused_.begin(), refused_.end() - kMost);
  refused_.push_back(sequence);
}

void ApplyJournal::AddRefused(uint64_t sequence) {
  NoteRefused(sequence);
  if (!fd_) return;
  std::string record;
  PutString(&record, "");
  PutString(&record, std::string(reinterpret_cast<const char*>(&sequence), sizeof sequence));
  if (PwriteAll(fd_.get(), record, end_)) end_ += record.size();
}

void ApplyJournal::SetApplied(uint64_t sequence) {
  if (!fd_) return;
  // A hint: without it, a repetition after a crash may at worst report a false conflict.
  (void)PwriteAll(fd_.get(), {reinterpret_cast<const char*>(&sequence), sizeof sequence}, offsetof(Header, applied));
}

void ApplyJournal::SetDurable(uint64_t sequence) {
  appends_.erase(appends_.begin(), appends_.upper_bound(sequence));
  if (!fd_) return;
  // If this is lost, the node only sends again what home has.
  (void)PwriteAll(fd_.get(), {reinterpret_cast<const char*>(&sequence), sizeof sequence}, offsetof(Header, durable));
}

void ApplyJournal::Remove() {
  fd_.Reset();
  if (!path_.empty()) ::unlink(path_.c_str());
}

}  // namespace vrun::home
