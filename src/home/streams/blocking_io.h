// SPDX-License-Identifier: Apache-2.0
// Reads and writes on a thread, for descriptors that cannot be non-blocking: regular files, and files that cannot be
// reopened. Destruction does not wait for the process at the other end.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "base/io/event_loop.h"
#include "base/result.h"
#include "base/thread/mutex.h"
#include "base/unique_fd.h"

namespace vrun::home {

// Loop thread, callbacks too. Operations run one after the other, in order.
class BlockingIo {
 public:
  // `regular`: reads and writes return soon. Otherwise each is preceded by poll, and a write is limited to what a
  // writable pipe takes without blocking. The caller owns the descriptor and must keep it open.
  BlockingIo(EventLoop* loop, int fd, bool regular);
  ~BlockingIo();

  // Reads up to n bytes; an empty string is the end.
  void Read(size_t n, std::function<void(Result<std::string>)> done);
  // Writes all of it, or reports the error and how much was written.
  void Write(std::string data, std::function<void(size_t written, Status status)> done);

 private:
  struct Work {
    bool write = false;
    std::string data;
    size_t n = 0;
    std::function<void(Result<std::string>)> read_done;
    std::function<void(size_t, Status)> write_done;
  };
  void Post(Work work);
  void Run();
  Status WaitFor(short events) const;
  Result<std::string> DoRead(size_t n) const;
  Status DoWrite(const std::string& data, size_t* written) const;

  EventLoop* const loop_;
  const int fd_;
  const bool regular_;
  UniqueFd cancel_;                                             // eventfd: readable when the thread must exit
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // loop thread
  Mutex mutex_;
  CondVar wake_;
  std::deque<Work> work_ VRUN_GUARDED_BY(mutex_);
  bool stopping_ VRUN_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace vrun::home
