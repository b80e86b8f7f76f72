// SPDX-License-Identifier: Apache-2.0
// Verifies content that the kernel will read by itself (passthrough), if nobody has verified it since this process
// started or since its file was touched. That takes about a second per gigabyte, too long for the request threads and
// the timer thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/io/work_queue.h"
#include "base/thread/mutex.h"

namespace vrun::vfs {

class FileContent;

// Thread safety: any thread. Works on one thread of its own, on a piece of each file in turn, so that a large file does
// not delay the others.
class Verifier {
 public:
  // `whole`: all of it is here and verified. Otherwise it is incomplete, perhaps because damaged content was dropped,
  // or its file was touched meanwhile.
  using Done = std::function<void(bool whole)>;

  // `done` runs once, on the Verifier's thread, unless the Verifier is destroyed first. Null: nobody waits. A file is
  // verified once at a time: later callers wait for the same run.
  void Verify(const std::shared_ptr<FileContent>& content, Done done = nullptr);

 private:
  struct Job {
    std::shared_ptr<FileContent> content;
    uint64_t left = 0;  // bytes to read: bounds the work if a file is touched again and again
    std::vector<Done> done;
  };
  void VerifyPiece(FileContent* content);

  Mutex mutex_;
  std::unordered_map<FileContent*, Job> jobs_ VRUN_GUARDED_BY(mutex_);
  WorkQueue queue_{"verifier"};  // last: its thread uses the others
};

}  // namespace vrun::vfs
