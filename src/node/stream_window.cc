// SPDX-License-Identifier: Apache-2.0
#include "node/stream_window.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

namespace vrun::node {

void FreeBlock::operator()(char* block) const {
  if (mapped) {
    ::munmap(block, kStreamMessage);  // OutputWindow::kBlock
  } else {
    delete[] block;
  }
}

void OutputWindow::SpoolTo(UniqueFd file, uint64_t bytes) {
  spool_ = std::move(file);
  spool_bytes_ = bytes;
}

// Allocated first: a write to a mapped hole of a full disk would be a SIGBUS.
OutputWindow::Block OutputWindow::NewBlock(uint64_t offset) {
  if (spool_ && ::fallocate(spool_.get(), 0, static_cast<off_t>(offset), kBlock) == 0) {
    void* mapped =
        ::mmap(nullptr, kBlock, PROT_READ | PROT_WRITE, MAP_SHARED, spool_.get(), static_cast<off_t>(offset));
    if (mapped != MAP_FAILED) return Block(static_cast<char*>(mapped), FreeBlock{true});
  }
  if (spool_ && !unbounded_ && end_ - acknowledged_ >= limit_) return nullptr;
  // Not zeroed: the kernel provides pages as they are touched.
  return spare_ ? std::move(spare_) : Block(new char[kBlock]);
}

OutputWindow::Space OutputWindow::Reserve() {
  uint64_t limit = unbounded_ ? UINT64_MAX : acknowledged_ + capacity();
  if (end_ >= limit) return {nullptr, 0};
  size_t block = static_cast<size_t>((end_ - BlockStart()) / kBlock);
  if (block == blocks_.size()) {
    Block fresh = NewBlock(BlockStart() + blocks_.size() * kBlock);
    no_space_ = !fresh;
    if (no_space_) return {nullptr, 0};
    blocks_.push_back(std::move(fresh));
  }
  size_t at = static_cast<size_t>(end_ % kBlock);
  return {blocks_[block].get() + at, static_cast<size_t>(std::min<uint64_t>(kBlock - at, limit - end_))};
}

void OutputWindow::Commit(size_t n) { end_ += n; }

void OutputWindow::Append(std::string_view data) {
  while (!data.empty()) {
    Space space = Reserve();
    VRUN_CHECK(space.size > 0);
    size_t n = std::min(space.size, data.size());
    std::memcpy(space.data, data.data(), n);
    Commit(n);
    data.remove_prefix(n);
  }
}

Status OutputWindow::Acknowledge(uint64_t offset) {
  if (offset > end_) {
    return Error(Code::kInvalid, "acknowledgement of byte " + std::to_string(offset) + " of a stream: it has only " +
                                     std::to_string(end_));
  }
  if (offset <= acknowledged_) return {};
  sent_ = std::max(sent_, offset);  // was sent over an earlier connection
  size_t whole = static_cast<size_t>(offset / kBlock - acknowledged_ / kBlock);
  for (size_t i = 0; i < whole && !blocks_.empty(); ++i) {
    const auto start = static_cast<off_t>(BlockStart() + i * kBlock);
    if (blocks_.front().get_deleter().mapped) {
      ::fallocate(spool_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, start, kBlock);
    } else {
      spare_ = std::move(blocks_.front());
    }
    blocks_.pop_front();
  }
  acknowledged_ = offset;
  no_space_ = false;
  return {};
}

Status OutputWindow::SendFrom(uint64_t offset) {
  if (offset > end_) {
    return Error(Code::kInvalid,
                 "a stream is wanted from byte " + std::to_string(offset) + ": it has only " + std::to_string(end_));
  }
  sent_ = std::max(offset, acknowledged_);
  end_sent_ = false;
  return Acknowledge(sent_);
}

std::optional<OutputWindow::Piece> OutputWindow::Next() {
  if (sent_ == end_) {
    if (!ended_ || end_sent_) return std::nullopt;
    end_sent_ = true;
    return Piece{sent_, {}, true};
  }
  if (spool_ && sent_ - acknowledged_ >= limit_) return std::nullopt;
  size_t block = static_cast<size_t>((sent_ - BlockStart()) / kBlock);
  size_t at = static_cast<size_t>(sent_ % kBlock);
  size_t n = static_cast<size_t>(std::min<uint64_t>(kBlock - at, end_ - sent_));
  Piece piece{sent_, {blocks_[block].get() + at, n}, false};
  sent_ += n;
  if (ended_ && sent_ == end_) piece.end = end_sent_ = true;
  return piece;
}

Status InputWindow::Receive(uint64_t offset, std::string data, bool end) {
  if (offset > received_ || offset + data.size() < offset) {
    return Error(Code::kInvalid, "input from byte " + std::to_string(offset) + " on: the bytes from " +
                                     std::to_string(received_) + " on are missing");
  }
  uint64_t known = std::min<uint64_t>(received_ - offset, data.size());
  size_t fresh = data.size() - static_cast<size_t>(known);
  if (fresh > 0 && ended_) return Error(Code::kInvalid, "input after its end");
  if (!discarded_ && received_ + fresh - passed_ > kStreamWindow) {
    return Error(Code::kInvalid, "more than " + std::to_string(kStreamWindow) + " bytes of input on their way");
  }
  received_ += fresh;
  if (end) ended_ = true;
  if (discarded_) {
    passed_ = received_;
    return {};
  }
  if (fresh == 0) return {};
  if (known > 0) data.erase(0, static_cast<size_t>(known));
  pending_.push_back(std::move(data));
  return {};
}

int InputWindow::Pending(iovec* vectors, int count) const {
  int n = 0;
  for (const std::string& s : pending_) {
    if (n == count) break;
    size_t used = n == 0 ? first_used_ : 0;
    vectors[n++] = {const_cast<char*>(s.data()) + used, s.size() - used};
  }
  return n;
}

void InputWindow::Passed(size_t n) {
  passed_ += n;
  while (n > 0) {
    size_t left = pending_.front().size() - first_used_;
    if (n < left) {
      first_used_ += n;
      return;
    }
    n -= left;
    pending_.pop_front();
    first_used_ = 0;
  }
}

void InputWindow::Discard() {
  discarded_ = true;
  pending_.clear();
  first_used_ = 0;
  passed_ = received_;
}

}  // namespace vrun::node
