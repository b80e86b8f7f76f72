// SPDX-License-Identifier: Apache-2.0
// Verifies what the kernel is to read by itself (passthrough) and nobody has verified since this process started, or
// since somebody touched its file: about a second a gigabyte, which neither the threads of requests nor that of the
// timers have.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "base/io/work_queue.h"

namespace vrun::vfs {

class FileContent;

// Thread safety: any thread. Works on one thread of its own, on a piece of each file in turn: a large one does not keep
// the others waiting.
class Verifier {
 public:
  // `whole`: all of it is here and verified. Otherwise it is incomplete, perhaps since something in it was damaged, or
  // somebody touched it meanwhile.
  using Done = std::function<void(bool whole)>;

  // `done` runs once, on the thread of this, unless the Verifier goes before. Null: nobody waits. Of a file once at a
  // time: whoever comes meanwhile waits with the others.
  void Verify(const std::shared_ptr<FileContent>& content, Done done = nullptr);

 private:
  struct Job {
    std::shared_ptr<FileContent> content;
    uint64_t left = 0;  // to be read: whoever touches a file again and again does not keep us busy
    std::vector<Done> done;
  };
  void VerifyPiece(FileContent* content);

  std::mutex mutex_;
  std::unordered_map<FileContent*, Job> jobs_;  // guarded by mutex_
  WorkQueue queue_{"verifier"};                 // last: its thread uses the others
};

}  // namespace vrun::vfs
