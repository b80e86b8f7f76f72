// SPDX-License-Identifier: Apache-2.0
// Gives stdin to the ranks of a gang that shall have it: one, all, or none. The others find it empty.
//
// With all, the slowest rank decides: only what each of them has taken is acknowledged to the reader of stdin.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "proto/task.pb.h"

namespace vrun::home {

// Loop thread only.
class GangInput {
 public:
  static constexpr int32_t kAll = -1;

  struct Events {
    std::function<void(uint32_t pod, v1::StreamId stream, uint64_t offset, std::string_view data, bool eof,
                       bool peeked)>
        send;
    // stdin is wanted from here on.
    std::function<void(uint64_t offset)> wanted;
    std::function<void(uint64_t offset, bool closed, std::optional<uint64_t> taken)> acked;
    std::function<void()> paused;
  };

  // `rank`: its number, kAll, or any other negative number for none.
  GangInput(int32_t rank, Events events) : rank_(rank), events_(std::move(events)) {}

  // `base`: where the streams of the attempt begin in stdin.
  void BeginAttempt(uint32_t pods, uint32_t ranks_per_pod, uint64_t base);
  // Every byte below was taken by the ranks.
  uint64_t acked() const { return acked_; }

  // --- events of a pod, with offsets of its streams ---
  void Wanted(uint32_t pod, v1::StreamId stream, uint64_t offset);
  void Acked(uint32_t pod, v1::StreamId stream, uint64_t offset, bool closed, std::optional<uint64_t> taken);
  void Disconnected(uint32_t pod);
  // It reads no more.
  void Ended(uint32_t pod);

  // Bytes of stdin.
  void Add(uint64_t offset, std::string_view data, bool eof, bool peeked);

 private:
  struct Target {
    uint32_t pod = 0;
    v1::StreamId stream = v1::STDIN;
    uint64_t next = 0;  // first byte that it does not have, in stdin
    uint64_t acked = 0;
    bool ready = false;
    bool closed = false;
    std::optional<uint64_t> taken;
  };
  Target* Find(uint32_t pod, v1::StreamId stream);
  void TellAcked();

  const int32_t rank_;
  const Events events_;
  std::vector<Target> targets_;
  uint64_t base_ = 0;
  uint64_t acked_ = 0;
};

}  // namespace vrun::home
