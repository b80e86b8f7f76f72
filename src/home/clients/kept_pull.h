// SPDX-License-Identifier: Apache-2.0
// Writes one kept series down: in its place, or below a directory. On a thread of its own, with bounded memory: the
// node sends what was taken.
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

// Loop thread, callbacks too; none runs after destruction (which waits for the operation under way).
class KeptPull {
 public:
  struct Events {
    // So many bytes of messages are done with, of which so many were content.
    std::function<void(uint64_t taken, uint64_t content)> on_taken;
    std::function<void(std::string)> on_notice;
    // The end. An error: it could not go on (home is full); nothing of the rest was written. Else the operations that
    // failed, each told.
    std::function<void(Result<uint64_t> failed)> on_finished;
  };

  // `options`: as for what comes home at the end of a job; `notice` is set here. `elsewhere`: options.root is a
  // directory that has nothing of the root: only files, links and directories go there, not what was removed, renamed
  // or changed in its attributes alone.
  KeptPull(EventLoop* loop, ApplyOptions options, bool elsewhere, Events events);
  ~KeptPull();

  void Write(v1::WriteBack message);
  void End();

  // After on_finished.
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

  // The worker's own.
  std::unique_ptr<Applier> applier_;
  uint64_t taken_ = 0, content_ = 0, told_taken_ = 0;
  uint64_t failed_ = 0, left_out_ = 0;
  bool skip_data_ = false;
  bool stopped_ = false;
  std::set<std::string> made_;  // elsewhere: directories

  WorkQueue worker_{"pull"};
};

}  // namespace vrun::home
