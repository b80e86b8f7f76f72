// SPDX-License-Identifier: Apache-2.0
// Applies one series of kept writes, in its place or below a directory. Works on its own thread with bounded memory:
// the node sends as fast as messages are taken.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>

#include "base/io/event_loop.h"
#include "base/io/work_queue.h"
#include "base/result.h"
#include "home/apply/apply.h"
#include "proto/kept.pb.h"

namespace vrun::home {

// Loop thread, callbacks too; none runs after destruction (which waits for the running operation).
class KeptPull {
 public:
  struct Events {
    // `taken` bytes of messages are processed; `content` bytes of them were file content.
    std::function<void(uint64_t taken, uint64_t content)> on_taken;
    std::function<void(std::string)> on_notice;
    // Called before on_notice: home had changed this path. Null: ignored.
    std::function<void(std::string path)> on_conflict;
    // The end. Error: it had to stop (home is full), and the rest was not written. Else the number of failed
    // operations, each of which was reported.
    std::function<void(Result<uint64_t> failed)> on_finished;
  };

  // `options`: as for the write-back of a job; `notice` is set here. `elsewhere`: options.root is a directory without
  // the root's files: only files, links and directories are written, no removals, renames or changes of attributes
  // alone.
  KeptPull(EventLoop* loop, ApplyOptions options, bool elsewhere, Events events);
  ~KeptPull();

  void Write(v1::WriteBack message);
  void End();

  // Valid after on_finished.
  uint64_t files() const { return applier_ ? applier_->files() : 0; }
  uint64_t bytes() const { return applier_ ? applier_->bytes() : 0; }

 private:
  // On the worker, as all below.
  Status Apply(v1::WriteBack* message);
  Status Place(v1::WriteBack* message, bool* wanted);
  void One(v1::WriteBack message);
  void Finish();
  void Failed(const Error& error);
  template <typename F>
  void OnLoop(F f);

  EventLoop* const loop_;
  ApplyOptions options_;
  const bool elsewhere_;
  const Events events_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);

  // Used by the worker only.
  std::unique_ptr<Applier> applier_;
  uint64_t taken_ = 0, content_ = 0, told_taken_ = 0;
  uint64_t failed_ = 0, left_out_ = 0;
  bool skip_data_ = false;
  bool stopped_ = false;
  std::set<std::string> made_;  // elsewhere: directories

  WorkQueue worker_{"pull"};
};

}  // namespace vrun::home
