// SPDX-License-Identifier: Apache-2.0
// Records what each run touches and waits for, for the trace of the next one and for people who ask.
//
// It sees what the kernel asks for, and what it was given ahead because a trace says so, which counts as used: neither
// what lies in its page cache already nor what it reads by itself (passthrough). So a record may lack things: then it
// says that it is partial, and records are united, never replaced. Runs of one home at the same time see each other's
// touches; such records say so.
// Bounded in runs, ranges and units.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tree/tree.h"
#include "vfs/trace/trace.h"

namespace vrun::vfs {

// Thread safety: any thread.
class Recorder {
 public:
  static constexpr size_t kMaxRuns = 256;         // the one that began first is forgotten
  static constexpr size_t kMaxRanges = 131072;    // of a run
  static constexpr uint64_t kMaxUnits = 1048576;  // of all files of a run: 16 GiB of content
  static constexpr size_t kSlowest = 10, kLargest = 10;

  // `partial`: the kernel has something of the root already that may never be asked for.
  void Begin(uint64_t job, uint32_t attempt, bool partial = false);
  // nullopt: it never began, or was forgotten.
  std::optional<Recording> End(uint64_t job, uint32_t attempt);
  // False: nothing is recorded, and the other calls do nothing.
  bool active() const { return active_.load(std::memory_order_relaxed); }

  // Some of it came during a run that is recorded, and not all of it was used yet: what readers will want of it is not
  // known, and would not be if they got it without asking us.
  bool Fresh(const tree::FileVersion& version);
  // A reader got these units. `path` is asked for at most once a file and run.
  void Used(const tree::FileVersion& version, uint64_t first, uint64_t count, const std::function<std::string()>& path);
  // `path` "": nobody knows it.
  void Fetched(const tree::FileVersion& version, uint64_t first, uint64_t count, uint64_t bytes, Origin origin,
               const std::string& path = "");
  // The kernel was given what is here of it, and asks for nothing when a run reads that.
  void Unseen(const tree::FileVersion& version);
  void Waited(const std::string& path, uint64_t offset, int64_t micros, Origin origin);

 private:
  struct File {
    int64_t index = -1;    // in the recording
    bool fetched = false;  // some of it
    uint64_t used = 0;     // units
    std::string path;      // where it was fetched
    std::array<uint64_t, kOrigins> fetched_bytes{};
    Recording::Span when;        // it was fetched
    std::vector<uint8_t> units;  // bit 0: used; above: Origin
  };
  struct Run {
    Recording recording;
    int64_t began_micros = 0;
    uint64_t serial = 0;
    uint64_t units = 0;  // in all files
    std::unordered_map<tree::FileVersion, File, tree::FileVersionHash> files;
  };
  static File* FileOf(Run* run, const tree::FileVersion& version);
  // What is known at the end only: what was fetched in vain, and of which files most was fetched.
  static void Sum(Run* run);

  std::atomic<bool> active_{false};
  std::mutex mutex_;
  std::map<std::pair<uint64_t, uint32_t>, Run> runs_;  // guarded by mutex_
  uint64_t next_serial_ = 0;
};

}  // namespace vrun::vfs
