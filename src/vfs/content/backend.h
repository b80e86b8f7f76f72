// SPDX-License-Identifier: Apache-2.0
// State shared by all views of one home: the source of content, the disk store, the directory objects and the fetches
// under way. So two views (or two readers) never fetch the same thing twice.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/hash/digest.h"
#include "base/result.h"
#include "store/format/object_id.h"
#include "tree/tree.h"
#include "vfs/content/source.h"
#include "vfs/cpu_latency.h"

namespace vrun::store {
class Store;
}

namespace vrun::vfs {

class Bursts;
class DirectoryCache;
class FileCache;
class Warmer;
class Prefetcher;
class Recorder;
class TimerThread;
class TracedFiles;
class Verifier;
class Withheld;
class WriteBehind;

struct BackendOptions {
  std::string home_id;                           // goes into provisional object ids
  int64_t home_deadline_micros = 60'000'000;     // how long a reader waits for an unreachable home before EIO
  uint64_t directory_memory_bytes = 256u << 20;  // encoded directory objects kept in memory beyond those in use
  uint64_t write_behind_bytes = 256u << 20;      // content that waits in memory to be written to the store
  uint64_t unstored_memory_bytes = 64u << 20;    // content kept in memory because the store's disk is full
  std::optional<CpuLatencyOptions> cpu_latency;  // nullopt: processors may sleep
  std::shared_ptr<Warmer> warmer;                // null: names of live views are not looked up in advance
};

struct BackendCounters {
  std::atomic<uint64_t> units_from_store{0};  // served from disk
  std::atomic<uint64_t> units_fetched{0};
  std::atomic<uint64_t> bytes_fetched{0};         // content, uncompressed
  std::atomic<uint64_t> fetch_retries{0};         // home was unreachable
  std::atomic<uint64_t> store_write_failures{0};  // served through memory instead
};

// Thread safety: any thread. `source` and `store` must outlive the Backend and every pending callback of the source.
// The Backend must outlive its views (they hold it).
class Backend {
 public:
  static std::shared_ptr<Backend> Create(BackendOptions options, Source* source, store::Store* store);
  ~Backend();
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  // Stores directory objects that arrived in a burst (GetTree) so that lookups find them: in memory now, in the store
  // soon after.
  void Preload(std::vector<FetchedDirectory> directories);
  // Takes all content of a file, verified, that nobody asked for.
  void Offer(const tree::FileVersion& version, FetchedRange content);
  // Whether the object is in memory or in the store, so that it need not be fetched.
  bool HasDirectory(const Digest& digest);

  // Home is reachable again: retries everything that waits, now.
  void HomeIsBack();

  // A run begins: records what it touches, and fetches what its trace lists. Call once per run. `partial`: see
  // Recorder.
  void BeginRun(const RunId& run, bool partial = false);
  // The run has ended. nullopt: it never began.
  std::optional<Recording> EndRun(uint64_t job, uint32_t attempt);

  const BackendCounters& counters() const { return counters_; }

  // For the parts of this module.
  const BackendOptions& options() const { return options_; }
  BackendCounters& mutable_counters() { return counters_; }
  Source* source() const { return source_; }
  store::Store* store() const { return store_; }
  DirectoryCache& directories() { return *directories_; }
  FileCache& files() { return *files_; }
  Prefetcher& prefetcher() { return *prefetcher_; }
  Recorder& recorder() { return *recorder_; }
  TracedFiles& traced() { return *traced_; }
  Bursts& bursts() { return *bursts_; }
  Withheld& withheld() { return *withheld_; }
  WriteBehind& write_behind() { return *write_behind_; }
  Verifier& verifier() { return *verifier_; }
  TimerThread& timers() { return *timers_; }
  CpuLatency* cpu_latency() { return cpu_latency_.get(); }  // null: none

 private:
  Backend(BackendOptions options, Source* source, store::Store* store);

  const BackendOptions options_;
  Source* const source_;
  store::Store* const store_;
  BackendCounters counters_;
  const std::unique_ptr<TimerThread> timers_;
  const std::unique_ptr<CpuLatency> cpu_latency_;
  const std::unique_ptr<DirectoryCache> directories_;
  const std::unique_ptr<FileCache> files_;
  const std::unique_ptr<Prefetcher> prefetcher_;
  const std::unique_ptr<Recorder> recorder_;
  const std::unique_ptr<TracedFiles> traced_;
  const std::unique_ptr<Bursts> bursts_;
  std::unique_ptr<WriteBehind> write_behind_;
  std::unique_ptr<Verifier> verifier_;
  const std::unique_ptr<Withheld> withheld_;
};

}  // namespace vrun::vfs
