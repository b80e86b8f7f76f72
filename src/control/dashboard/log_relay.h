// SPDX-License-Identifier: Apache-2.0
// What jobs print, for their users' browsers. The controller has no logs: home keeps them. If home is on this machine
// (`vctl up`), this asks it as `vctl logs -f` does and passes on what it says.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "base/io/event_loop.h"
#include "http/message.h"

namespace vrun::control {

// Any thread. Works on a thread of its own.
//
// Events: `output` {"text", "stderr"}, in order; `skipped` {} if more came than a browser wants to show, of which only
// the end follows; `end` {}; `problem` {"detail"}.
class LogRelay {
 public:
  // `home_socket`: of the home that runs as this user; "": there is none.
  explicit LogRelay(std::string home_socket);
  ~LogRelay();

  bool possible() const { return !home_socket_.empty(); }
  // The caller has checked that this client may read the job's output. `may_go_on` is asked every few seconds.
  void Start(uint64_t job, std::shared_ptr<http::Events> events, std::function<bool()> may_go_on);

 private:
  class Stream;

  void Open(uint64_t job, std::shared_ptr<http::Events> events, std::function<bool()> may_go_on);
  void Check();

  const std::string home_socket_;
  EventLoop loop_;
  std::map<uint64_t, std::shared_ptr<Stream>> streams_;  // loop's thread
  uint64_t last_ = 0;
  bool checks_ = false;
  std::thread thread_;
};

}  // namespace vrun::control
