// SPDX-License-Identifier: Apache-2.0
// Records what each run touches and waits for. The next run's trace is made from it, and users can ask for it.
//
// The recorder sees the kernel's requests, and what was pushed into the kernel because of a trace, which counts as
// used. It does not see hits in the page cache, nor what the kernel reads by itself (passthrough). A record that may
// lack something for that reason is marked partial; records are merged, never replaced. Concurrent runs of one home see
// each other's touches; their records are marked as shared. Runs, ranges and units are bounded.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/thread/mutex.h"
#include "tree/tree.h"
#include "vfs/trace/trace_table.h"

namespace vrun::vfs {

// Thread safety: any thread.
class Recorder {
 public:
  static constexpr size_t kMaxRuns = 256;         // beyond this the oldest run is forgotten
  static constexpr size_t kMaxRanges = 131072;    // per run
  static constexpr uint64_t kMaxUnits = 1048576;  // in all files of a run: 16 GiB of content
  static constexpr size_t kSlowest = 10, kLargest = 10;

  // `partial`: the kernel may already cache parts of the root, which it will not ask for.
  void Begin(uint64_t job, uint32_t attempt, bool partial = false);
  // nullopt: the run never began, or was forgotten.
  std::optional<Recording> End(uint64_t job, uint32_t attempt);
  // False: nothing is being recorded, and the other calls do nothing.
  bool active() const { return active_.load(std::memory_order_relaxed); }

  // Some of the file arrived during a recorded run, and not all of it was used yet. So it is not yet known what readers
  // want of it, and would stay unknown if they read it without asking us.
  bool Fresh(const tree::FileVersion& version);
  // A reader got these units. `path` is called at most once per file and run.
  void Used(const tree::FileVersion& version, uint64_t first, uint64_t count, const std::function<std::string()>& path);
  // `path` "": unknown.
  void Fetched(const tree::FileVersion& version, uint64_t first, uint64_t count, uint64_t bytes, Origin origin,
               const std::string& path = "");
  // The kernel was given the content that is here, so reads of it cause no requests.
  void Unseen(const tree::FileVersion& version);
  void Waited(const std::string& path, uint64_t offset, int64_t micros, Origin origin);

 private:
  struct File {
    int64_t index = -1;    // in the recording
    bool fetched = false;  // some of it was fetched
    uint64_t used = 0;     // units
    std::string path;      // where it was fetched from
    std::array<uint64_t, kOrigins> fetched_bytes{};
    Recording::Span when;        // when it was fetched
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
  // Computes what is known only at the end: what was fetched in vain, and the files of which most was fetched.
  static void Sum(Run* run);

  std::atomic<bool> active_{false};
  Mutex mutex_;
  std::map<std::pair<uint64_t, uint32_t>, Run> runs_ VRUN_GUARDED_BY(mutex_);
  uint64_t next_serial_ VRUN_GUARDED_BY(mutex_) = 0;
};

}  // namespace vrun::vfs
