// SPDX-License-Identifier: Apache-2.0
#include "home/runs/gang/gang_input.h"

#include <algorithm>

#include "home/runs/gang/rank_streams.h"

namespace vrun::home {

void GangInput::BeginAttempt(uint32_t pods, uint32_t ranks_per_pod, uint64_t base) {
  base_ = base;
  acked_ = std::max(acked_, base);
  targets_.clear();
  for (uint32_t rank = 0; rank < pods * ranks_per_pod; ++rank) {
    if (rank_ != kAll && rank_ != static_cast<int32_t>(rank)) continue;
    Target target;
    target.pod = rank / ranks_per_pod;
    target.stream = RankStream(rank % ranks_per_pod, v1::STDIN);
    target.next = target.acked = base;
    targets_.push_back(target);
  }
}

GangInput::Target* GangInput::Find(uint32_t pod, v1::StreamId stream) {
  const auto it = std::find_if(targets_.begin(), targets_.end(),
                               [&](const Target& t) { return t.pod == pod && t.stream == stream; });
  return it == targets_.end() ? nullptr : &*it;
}

void GangInput::Wanted(uint32_t pod, v1::StreamId stream, uint64_t offset) {
  Target* target = Find(pod, stream);
  if (target == nullptr) return events_.send(pod, stream, offset, {}, true, false);
  if (target->closed) return;
  target->next = base_ + offset;
  target->acked = std::max(target->acked, target->next);
  target->ready = true;
  uint64_t first = target->next;
  for (const Target& t : targets_) {
    if (!t.closed) first = std::min(first, t.next);
  }
  events_.wanted(first);
}

void GangInput::Add(uint64_t offset, std::string_view data, bool eof, bool peeked) {
  for (Target& target : targets_) {
    if (!target.ready || target.closed) continue;
    std::string_view rest = data;
    uint64_t at = offset;
    // One target gets what the reader says, also again: the same bytes may be peeked at first and consumed later.
    if (targets_.size() > 1) {
      if (offset > target.next) continue;  // it gets them when it is wanted from there again
      const uint64_t known = std::min<uint64_t>(target.next - offset, data.size());
      if (!peeked && known == data.size() && !eof && !data.empty()) continue;
      rest.remove_prefix(known);
      at += known;
    }
    target.next = std::max(target.next, at + rest.size());
    if (at >= base_) events_.send(target.pod, target.stream, at - base_, rest, eof, peeked);
  }
}

void GangInput::Acked(uint32_t pod, v1::StreamId stream, uint64_t offset, bool closed, std::optional<uint64_t> taken) {
  Target* target = Find(pod, stream);
  if (target == nullptr) return;
  if (!closed || offset > 0) target->acked = std::max(target->acked, base_ + offset);
  if (taken) target->taken = base_ + *taken;
  if (closed) target->closed = true;
  TellAcked();
}

void GangInput::TellAcked() {
  if (targets_.empty()) return;
  uint64_t slowest = UINT64_MAX;
  uint64_t furthest = acked_;
  bool closed = true;
  std::optional<uint64_t> taken;
  for (const Target& t : targets_) {
    if (!t.closed) slowest = std::min(slowest, t.acked);
    furthest = std::max(furthest, t.acked);
    closed = closed && t.closed;
    if (t.taken) taken = std::max(taken.value_or(0), *t.taken);
  }
  acked_ = std::max(acked_, closed ? furthest : slowest);
  events_.acked(acked_, closed, closed ? taken : std::nullopt);
}

void GangInput::Disconnected(uint32_t pod) {
  bool any = false;
  for (Target& t : targets_) {
    if (t.pod != pod || t.closed) continue;
    t.ready = false;
    any = true;
  }
  if (any) events_.paused();
}

void GangInput::Ended(uint32_t pod) {
  bool any = false;
  for (Target& t : targets_) {
    if (t.pod != pod || t.closed) continue;
    t.closed = any = true;
  }
  if (any) TellAcked();
}

}  // namespace vrun::home
