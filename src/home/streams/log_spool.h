// SPDX-License-Identifier: Apache-2.0
// The output of home's jobs on disk: for `vctl logs`, and for clients that reconnect after a crash of home.
//
// One file per job: records of (stream, offset, bytes), so that the two streams keep their order and a reader can
// continue at an offset. In between are notes: lines that home itself says about the job, of no stream. Bounded in
// total (the oldest jobs go first) and per job. A full or read-only disk costs the log, never the run: Append reports
// it and the caller continues.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/io/event_loop.h"
#include "base/io/work_queue.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "proto/task.pb.h"

namespace vrun::home {

class LogSpool {
 public:
  static constexpr uint64_t kJobBytes = 16u << 20;     // of an attached or detached run
  static constexpr uint64_t kOrphanBytes = 64u << 20;  // while the log is the only place of the output
  static constexpr uint64_t kTotalBytes = 512u << 20;

  struct Record {
    bool note = false;    // a line from home; stream and offset are meaningless
    v1::StreamId stream;  // STDERR for a note
    uint64_t offset;
    std::string data;
  };
  struct Appended {
    bool kept = false;  // written to the file; false: over the job's limit, or the disk does not accept it
    std::string error;
  };

  // Loop thread; callbacks too. Files are written on a thread of the spool.
  LogSpool(EventLoop* loop, std::string directory, uint64_t total_limit = kTotalBytes);
  ~LogSpool();  // writes what is queued

  // Appends bytes of a stream, up to a total of `limit` bytes for the job. `done` may be null.
  void Append(uint64_t job, v1::StreamId stream, uint64_t offset, std::string data, uint64_t limit,
              std::function<void(Appended)> done = nullptr);

  // Appends a line from home (with its newline) at the present position of the streams. Works even if the job's log is
  // full.
  void Note(uint64_t job, std::string line);

  // Reads records from file position `position` on, about `bytes` of data at most. `next`: where to continue.
  struct Read {
    std::vector<Record> records;
    uint64_t next = 0;
    bool at_end = false;
  };
  void ReadFrom(uint64_t job, uint64_t position, uint64_t bytes, std::function<void(Result<Read>)> done);

  // Calls `changed` (on the loop) after each append to the job's file and at each Wake, until the handle is destroyed.
  class Subscription {
   public:
    virtual ~Subscription() = default;
  };
  std::unique_ptr<Subscription> Subscribe(uint64_t job, std::function<void()> changed);
  void Wake(uint64_t job);

 private:
  class Handle;
  struct File {
    UniqueFd fd;
    uint64_t size = 0;          // of data
    uint64_t next[2] = {0, 0};  // first byte that is not stored, for each stream
    bool failed = false;
    uint64_t used = 0;
  };
  std::string Path(uint64_t job) const { return directory_ + "/" + std::to_string(job); }
  // On the worker.
  Appended Write(uint64_t job, v1::StreamId stream, uint64_t offset, std::string data, uint64_t limit);
  Appended WriteNote(uint64_t job, const std::string& line);
  Appended WriteRecord(File* file, const std::string& header, const std::string& data);
  File* Open(uint64_t job);
  void MakeRoom(uint64_t bytes);

  EventLoop* const loop_;
  const std::string directory_;
  const uint64_t total_limit_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::multimap<uint64_t, Handle*> subscribers_;

  // Used by the worker only.
  std::map<uint64_t, File> files_;
  uint64_t total_ = 0;
  uint64_t uses_ = 0;
  bool listed_ = false;
  bool complained_ = false;
  WorkQueue worker_{"spool"};
};

}  // namespace vrun::home
