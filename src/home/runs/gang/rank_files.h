// SPDX-License-Identifier: Apache-2.0
// The output files of a gang's ranks, when their names contain the rank or the node (vbatch -o out-%t).
//
// Bytes go through here on their way to the merged stream, so that an acknowledgement to the node means both. Ranks
// whose names come to the same file share it, by whole lines.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/io/event_loop.h"
#include "base/io/work_queue.h"
#include "base/unique_fd.h"
#include "home/runs/run_files.h"
#include "proto/task.pb.h"

namespace vrun::home {

// Loop thread only, callbacks too. Files are written on a thread, because they may be on a slow file system.
class RankFiles {
 public:
  struct Events {
    // These bytes are written; all of a stream come in order.
    std::function<void(uint32_t pod, v1::StreamId stream, uint64_t offset, std::string data, bool eof)> on_written;
    std::function<void(std::string text)> on_notice;
  };
  RankFiles(EventLoop* loop, const RunFiles* run_files, uint64_t job, DetachedFiles files, Events events);
  ~RankFiles();

  // `nodes`: of the pods, in order. `fresh`: what is in existing files goes, unless it is to be appended to.
  void BeginAttempt(const std::vector<std::string>& nodes, uint32_t ranks_per_pod, bool fresh);
  // More pods have joined the attempt.
  void AddPods(const std::vector<std::string>& nodes);
  // The streams come again from what the merged stream wants; what is in the files already is not written twice.
  void Repeat();

  void Add(uint32_t pod, v1::StreamId stream, uint64_t offset, std::string data, bool eof);
  // End of what was received of the stream; `least`: where it begins if nothing was.
  uint64_t Wanted(uint32_t pod, v1::StreamId stream, uint64_t least) const;

 private:
  struct Stream {
    bool fresh = true;
    uint64_t begin = 0;  // of `held`
    std::string held;    // no line end yet
    uint64_t written = 0;
    std::shared_ptr<UniqueFd> fd;
  };
  void Open(const std::vector<std::string>& nodes);
  Stream* Find(uint32_t pod, v1::StreamId stream);
  void Write(uint32_t pod, v1::StreamId stream, Stream* to, std::string data, bool eof);
  void TellFailure(const std::string& text);

  EventLoop* const loop_;
  const RunFiles* const run_files_;
  const uint64_t job_;
  const DetachedFiles files_;
  const Events events_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  uint32_t ranks_ = 1;
  bool fresh_ = false;
  std::map<std::string, std::shared_ptr<UniqueFd>> opened_;  // in the attempt
  std::vector<Stream> streams_;                              // stdout and stderr of each rank
  bool told_ = false;
  uint64_t generation_ = 0;  // of the streams: what belongs to an earlier one is not passed on
  WorkQueue worker_{"rank files"};
};

}  // namespace vrun::home
