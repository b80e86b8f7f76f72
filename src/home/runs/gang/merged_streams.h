// SPDX-License-Identifier: Apache-2.0
// Merges stdout and stderr of all ranks of a gang into one stream each, by whole lines.
//
//   rank's bytes ──Add──▶ up to the last line end ──▶ segment ──on_merged──▶ the reader ──Passed──▶ on_passed to the
//   node
//
// A carriage return ends a line too, because a progress bar writes nothing else. A line of more than 64 KiB is passed
// on in pieces. What the reader has not confirmed is not acknowledged to the nodes, which then stop reading from their
// commands: this is the back-pressure, and it bounds what is held here to the nodes' windows.
//
// With labels each line begins with its rank ("3: "), and gets a newline if its end is none.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "home/runs/gang/merge_journal.h"
#include "proto/task.pb.h"

namespace vrun::home {

// Where the last whole line of `text` ends; 0: there is none.
size_t EndOfLines(std::string_view text);

// Loop thread only. Callbacks may call any method of this object.
class MergedStreams {
 public:
  static constexpr size_t kLongestLine = 64u << 10;

  struct Events {
    // The next bytes of the merged stdout or stderr.
    std::function<void(v1::StreamId stream, uint64_t offset, std::string data)> on_merged;
    // The reader has everything below `offset` of a pod's stream.
    std::function<void(uint32_t pod, v1::StreamId stream, uint64_t offset)> on_passed;
  };

  // `journal` is not owned and outlives this object.
  MergedStreams(MergeJournal* journal, bool label, Events events);

  // The streams of the ranks begin at 0, unless the journal knows this attempt.
  void BeginAttempt(uint32_t attempt, uint32_t pods, uint32_t ranks_per_pod);

  // More pods have joined the attempt.
  void AddPods(uint32_t pods);

  // Bytes of a rank's stdout or stderr. Repeated bytes are ignored; a gap is skipped.
  void Add(uint32_t pod, v1::StreamId stream, uint64_t offset, std::string_view data, bool eof);
  // The offset from which the stream is wanted.
  uint64_t Wanted(uint32_t pod, v1::StreamId stream) const;
  // The reader has all of the stream, and its end is known.
  bool Ended(uint32_t pod, v1::StreamId stream) const;
  // Nothing more will come from this pod.
  void Drop(uint32_t pod);

  // The reader has everything below `offset` of the merged stream.
  void Passed(v1::StreamId stream, uint64_t offset);
  // A new reader wants the merged streams from these offsets. All pods must connect again and send from Wanted().
  void Repeat(uint64_t stdout_offset, uint64_t stderr_offset);
  // End of the merged stream so far.
  uint64_t end(v1::StreamId stream) const { return journal_->end(stream == v1::STDERR); }

 private:
  struct Source {
    std::string held;     // received, and not part of a segment that was passed on
    uint64_t merged = 0;  // where `held` begins
    uint64_t confirmed = 0;
    bool fresh = true;  // nothing was received since the streams were opened
    bool ended = false;
    bool gone = false;
    uint64_t received() const { return merged + held.size(); }
  };
  struct Stream {
    std::vector<Source> sources;
    uint64_t sent = 0;  // number of the next segment to pass on
    bool blocked = false;
    bool busy = false;
    bool all = false;  // look at the lines of all sources
  };

  uint32_t SourceOf(uint32_t pod, v1::StreamId stream) const;
  void Reset(int err);
  void Work(int err, std::optional<uint32_t> source);  // none: all
  bool RepeatSegments(int err);
  // Passes on the whole lines of a source. False: the journal is full.
  bool MergeLines(int err, uint32_t source);
  void PassOn(int err, const MergeJournal::Segment& segment);
  std::string Rendered(uint32_t source, std::string_view text) const;

  MergeJournal* const journal_;
  const bool label_;
  const Events events_;
  uint32_t pods_ = 0;
  uint32_t ranks_ = 1;
  Stream streams_[2];
};

}  // namespace vrun::home
