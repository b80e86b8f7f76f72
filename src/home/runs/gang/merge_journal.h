// SPDX-License-Identifier: Apache-2.0
// The order in which the output of a gang's ranks was merged, as far as the reader has not confirmed it.
//
// The nodes keep what is not acknowledged and send it again after a reconnection, to this home or the next. Merged in
// the recorded order it is the same stream again, byte for byte, so that a new reader can continue anywhere above what
// the last one confirmed. The journal is a mapped file: it survives a crash of home, but not of the machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace vrun::home {

// Loop thread only.
class MergeJournal {
 public:
  static constexpr size_t kSegments = 1024;  // unconfirmed ones, for each of stdout and stderr

  // Some whole lines of one rank.
  struct Segment {
    uint32_t source = 0;
    uint32_t bytes = 0;  // of the rank's stream
    uint64_t begin = 0;  // in the rank's stream
    uint64_t merged_begin = 0;
    uint64_t merged_end = 0;
  };
  // What a later home must know about the run.
  struct Settings {
    uint32_t label = 0;
    int32_t input_rank = 0;
    uint64_t input_base = 0;  // where stdin of the present attempt begins
  };

  // `path`: "" for memory only, which is also used if the file cannot be created. `sources`: the most ranks of an
  // attempt. An existing file of another shape is replaced.
  MergeJournal(const std::string& path, uint32_t sources);
  ~MergeJournal();
  MergeJournal(const MergeJournal&) = delete;
  MergeJournal& operator=(const MergeJournal&) = delete;

  // An earlier home has left it.
  bool found() const { return found_; }
  Settings& settings();

  uint32_t attempt() const;
  // Forgets all unconfirmed segments: they belong to an attempt whose streams are gone.
  void BeginAttempt(uint32_t attempt);

  // `err`: 1 for stderr. Segments are numbered; those from head to tail are unconfirmed.
  uint64_t head(int err) const;
  uint64_t tail(int err) const;
  bool full(int err) const { return tail(err) - head(err) >= kSegments; }
  const Segment& at(int err, uint64_t number) const;
  void Push(int err, const Segment& segment);
  // The reader has confirmed the segment at head.
  void Pop(int err);
  // Every byte of the source's stream below this is confirmed.
  uint64_t confirmed(int err, uint32_t source) const;
  // End of the merged stream.
  uint64_t end(int err) const;
  // Only if nothing was merged yet: the merged stream begins here.
  void SetBase(int err, uint64_t base);

 private:
  struct Header;
  Header* header() const;
  uint64_t* Confirmed(int err) const;
  Segment* Ring(int err) const;

  const uint32_t sources_;
  size_t size_ = 0;
  char* at_ = nullptr;
  bool mapped_ = false;
  bool found_ = false;
  std::vector<uint64_t> memory_;
};

}  // namespace vrun::home
