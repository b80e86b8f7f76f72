// SPDX-License-Identifier: Apache-2.0
#include "vfs/testing/fake_kernel.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

namespace vrun::vfs {
namespace {

template <typename T>
std::string Bytes(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

}  // namespace

uint64_t FakeKernel::Notification::node() const {
  uint64_t value = 0;  // the first field of both messages
  std::memcpy(&value, body.data(), std::min(body.size(), sizeof value));
  return value;
}

std::string FakeKernel::Notification::stored() const {
  return code == FUSE_NOTIFY_STORE && body.size() >= sizeof(fuse_notify_store_out)
             ? body.substr(sizeof(fuse_notify_store_out))
             : std::string();
}

std::string FakeKernel::Notification::name() const {
  fuse_notify_inval_entry_out out{};
  if (code != FUSE_NOTIFY_INVAL_ENTRY || body.size() < sizeof out) return {};
  std::memcpy(&out, body.data(), sizeof out);
  return body.substr(sizeof out, out.namelen);
}

uint64_t FakeKernel::Queue(uint32_t opcode, uint64_t nodeid, std::string_view body, uint32_t pid, bool answered) {
  fuse_in_header header{};
  header.len = static_cast<uint32_t>(sizeof header + body.size());
  header.opcode = opcode;
  header.nodeid = nodeid;
  header.pid = pid;
  MutexLock lock(mutex_);
  header.unique = next_unique_;
  next_unique_ += 2;  // the kernel's ids are even; the odd bit marks an interrupt
  if (answered) waiting_[header.unique] = Waiting{opcode, std::nullopt};
  requests_.push_back(Bytes(header) + std::string(body));
  changed_.notify_all();
  return header.unique;
}

uint64_t FakeKernel::Send(uint32_t opcode, uint64_t nodeid, std::string_view body, uint32_t pid) {
  return Queue(opcode, nodeid, body, pid, true);
}

void FakeKernel::SendRaw(std::string packet) {
  MutexLock lock(mutex_);
  requests_.push_back(std::move(packet));
  changed_.notify_all();
}

std::optional<FakeKernel::Answer> FakeKernel::Wait(uint64_t unique, int timeout_ms) {
  MutexLock lock(mutex_);
  const bool done = changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [&] {
    const auto it = waiting_.find(unique);
    return it == waiting_.end() || it->second.answer.has_value();
  });
  const auto it = waiting_.find(unique);
  if (!done || it == waiting_.end()) return std::nullopt;
  Answer answer = *std::move(it->second.answer);
  waiting_.erase(it);
  return answer;
}

bool FakeKernel::Answered(uint64_t unique) {
  MutexLock lock(mutex_);
  const auto it = waiting_.find(unique);
  return it != waiting_.end() && it->second.answer.has_value();
}

FakeKernel::Answer FakeKernel::Call(uint32_t opcode, uint64_t nodeid, std::string_view body) {
  const auto answer = Wait(Send(opcode, nodeid, body));
  return answer ? *answer : Answer{ETIMEDOUT, {}};
}

void FakeKernel::Withdraw(uint64_t unique) {
  MutexLock lock(mutex_);
  waiting_.erase(unique);
  changed_.notify_all();
}

void FakeKernel::Interrupt(uint64_t unique) {
  fuse_in_header header{};
  const fuse_interrupt_in in{unique};
  header.len = sizeof header + sizeof in;
  header.opcode = FUSE_INTERRUPT;
  header.unique = unique | 1;
  SendRaw(Bytes(header) + Bytes(in));
}

InitOut FakeKernel::Init(uint64_t flags, uint32_t minor) {
  fuse_init_in in{};
  in.major = 7;
  in.minor = minor;
  in.max_readahead = 131072;
  in.flags = static_cast<uint32_t>(flags);
  in.flags2 = static_cast<uint32_t>(flags >> 32);
  return Call(FUSE_INIT, 0, Bytes(in)).As<InitOut>();
}

uint64_t FakeKernel::SendLookup(uint64_t parent, std::string_view name) {
  return Send(FUSE_LOOKUP, parent, std::string(name) + '\0');
}

FakeKernel::Answer FakeKernel::Lookup(uint64_t parent, std::string_view name) {
  const auto answer = Wait(SendLookup(parent, name));
  return answer ? *answer : Answer{ETIMEDOUT, {}};
}

FakeKernel::Answer FakeKernel::GetAttr(uint64_t node) { return Call(FUSE_GETATTR, node, Bytes(fuse_getattr_in{})); }

FakeKernel::Answer FakeKernel::Open(uint64_t node) {
  fuse_open_in in{};
  in.flags = O_RDONLY;
  return Call(FUSE_OPEN, node, Bytes(in));
}

uint64_t FakeKernel::SendRead(uint64_t node, uint64_t offset, uint32_t size, uint32_t open_flags) {
  fuse_read_in in{};
  in.flags = open_flags;
  in.offset = offset;
  in.size = size;
  return Send(FUSE_READ, node, Bytes(in));
}

FakeKernel::Answer FakeKernel::Read(uint64_t node, uint64_t offset, uint32_t size) {
  const auto answer = Wait(SendRead(node, offset, size));
  return answer ? *answer : Answer{ETIMEDOUT, {}};
}

FakeKernel::Answer FakeKernel::Xattr(uint64_t node, std::string_view name, uint32_t size) {
  return Call(FUSE_GETXATTR, node, Bytes(fuse_getxattr_in{size, 0}) + std::string(name) + '\0');
}

FakeKernel::Answer FakeKernel::ListXattr(uint64_t node, uint32_t size) {
  return Call(FUSE_LISTXATTR, node, Bytes(fuse_getxattr_in{size, 0}));
}

std::vector<FakeKernel::DirectoryEntry> FakeKernel::ReadDir(uint64_t node, bool plus, uint32_t size) {
  std::vector<DirectoryEntry> all;
  uint64_t offset = 0;
  for (;;) {
    fuse_read_in in{};
    in.offset = offset;
    in.size = size;
    const Answer answer = Call(plus ? FUSE_READDIRPLUS : FUSE_READDIR, node, Bytes(in));
    if (answer.error != 0 || answer.body.empty()) return all;
    size_t at = 0;
    const size_t prefix = plus ? sizeof(fuse_entry_out) : 0;
    while (at + prefix + FUSE_NAME_OFFSET < answer.body.size()) {
      DirectoryEntry entry;
      if (plus) std::memcpy(&entry.entry, answer.body.data() + at, sizeof entry.entry);
      fuse_dirent dirent{};
      std::memcpy(&dirent, answer.body.data() + at + prefix, FUSE_NAME_OFFSET);
      entry.name = answer.body.substr(at + prefix + FUSE_NAME_OFFSET, dirent.namelen);
      entry.ino = dirent.ino;
      entry.type = dirent.type;
      offset = dirent.off;
      at += FUSE_DIRENT_ALIGN(prefix + FUSE_NAME_OFFSET + dirent.namelen);
      all.push_back(std::move(entry));
    }
  }
}

void FakeKernel::Release(uint64_t node, uint64_t handle) {
  fuse_release_in in{};
  in.fh = handle;
  Call(FUSE_RELEASE, node, Bytes(in));
}

void FakeKernel::Forget(uint64_t node, uint64_t count) {
  {
    MutexLock lock(mutex_);
    auto& known = lookups_[node];
    known -= std::min(known, count);
    if (known == 0) lookups_.erase(node);
  }
  Queue(FUSE_FORGET, node, Bytes(fuse_forget_in{count}), 0, false);
}

void FakeKernel::ForgetAll() {
  std::map<uint64_t, uint64_t> all;
  {
    MutexLock lock(mutex_);
    all.swap(lookups_);
  }
  std::string body = Bytes(fuse_batch_forget_in{static_cast<uint32_t>(all.size()), 0});
  for (const auto& [node, count] : all) body += Bytes(fuse_forget_one{node, count});
  Queue(FUSE_BATCH_FORGET, 0, body, 0, false);
}

uint64_t FakeKernel::lookups(uint64_t node) {
  MutexLock lock(mutex_);
  const auto it = lookups_.find(node);
  return it == lookups_.end() ? 0 : it->second;
}

void FakeKernel::HoldStores(bool on) {
  MutexLock lock(mutex_);
  hold_stores_ = on;
  changed_.notify_all();
}

bool FakeKernel::WaitHeldStores(int n, int timeout_ms) {
  MutexLock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [&] { return held_stores_ >= n; });
}

void FakeKernel::RefuseStores(int error, int times) {
  MutexLock lock(mutex_);
  refuse_stores_ = error;
  refuse_times_ = times;
}

std::vector<FakeKernel::Notification> FakeKernel::TakeNotifications() {
  MutexLock lock(mutex_);
  return std::exchange(notifications_, {});
}

int FakeKernel::open_backings() {
  MutexLock lock(mutex_);
  return static_cast<int>(backings_.size());
}

size_t FakeKernel::Receive(void* buffer, size_t size) {
  MutexLock lock(mutex_);
  changed_.wait(lock, [this] { return aborted_ || !requests_.empty(); });
  if (aborted_) return 0;
  const std::string packet = std::move(requests_.front());
  requests_.pop_front();
  const size_t n = std::min(size, packet.size());
  std::memcpy(buffer, packet.data(), n);
  return n;
}

int FakeKernel::Send(const iovec* parts, int count) {
  std::string packet;
  for (int i = 0; i < count; ++i) packet.append(static_cast<const char*>(parts[i].iov_base), parts[i].iov_len);
  fuse_out_header header{};
  if (packet.size() < sizeof header) return EINVAL;
  std::memcpy(&header, packet.data(), sizeof header);
  if (header.len != packet.size()) return EINVAL;
  MutexLock lock(mutex_);
  if (header.unique == 0 && header.error == FUSE_NOTIFY_STORE) {
    ++held_stores_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return aborted_ || !hold_stores_; });
    --held_stores_;
  }
  if (aborted_) return ENODEV;
  if (header.unique == 0) {
    if (header.error == FUSE_NOTIFY_STORE && refuse_stores_ != 0 && refuse_times_-- > 0) return refuse_stores_;
    notifications_.push_back({header.error, packet.substr(sizeof header)});
    return 0;
  }
  const auto it = waiting_.find(header.unique);
  if (it == waiting_.end() || it->second.answer) return ENOENT;
  if (header.error > 0 || (header.error != 0 && packet.size() != sizeof header)) return EINVAL;
  it->second.answer = Answer{-header.error, packet.substr(sizeof header)};
  CountLookups(it->second.opcode, *it->second.answer);
  changed_.notify_all();
  return 0;
}

void FakeKernel::CountLookups(uint32_t opcode, const Answer& answer) {
  if (answer.error != 0) return;
  if (opcode == FUSE_LOOKUP) {
    const auto entry = answer.As<fuse_entry_out>();
    if (entry.nodeid != 0) ++lookups_[entry.nodeid];
  } else if (opcode == FUSE_READDIRPLUS) {
    size_t at = 0;
    while (at + FUSE_NAME_OFFSET_DIRENTPLUS <= answer.body.size()) {
      fuse_direntplus entry;
      std::memcpy(static_cast<void*>(&entry), answer.body.data() + at, FUSE_NAME_OFFSET_DIRENTPLUS);
      if (entry.entry_out.nodeid != 0) ++lookups_[entry.entry_out.nodeid];
      at += FUSE_DIRENTPLUS_SIZE(&entry);
    }
  }
}

int FakeKernel::OpenBacking(int fd) {
  if (::fcntl(fd, F_GETFD) < 0) return -EBADF;
  MutexLock lock(mutex_);
  backings_.insert(next_backing_);
  return next_backing_++;
}

void FakeKernel::CloseBacking(int id) {
  MutexLock lock(mutex_);
  backings_.erase(id);
}

void FakeKernel::Abort() {
  MutexLock lock(mutex_);
  aborted_ = true;
  changed_.notify_all();
}

}  // namespace vrun::vfs
