// SPDX-License-Identifier: Apache-2.0
// The users of the controller's machine join its cluster without an administrator: the kernel says who they are.
//
// Whoever connects to the door, a Unix socket that all may open, gets one frame, "ok TOKEN" or "error TEXT". The token
// is good for a minute and for a home of the user whom the kernel names (SO_PEERCRED).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "base/io/event_loop.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "people/members.h"

namespace vrun::control {

// Loop thread.
class Door {
 public:
  // `path`: of the socket; `controller`: HOST:PORT to dial; `ca`: PEM of its authority. Loop and members outlive it.
  static Result<std::unique_ptr<Door>> Open(EventLoop* loop, const people::Members* members, const std::string& path,
                                            const std::string& controller, const std::string& ca);
  ~Door();
  Door(const Door&) = delete;
  Door& operator=(const Door&) = delete;

 private:
  Door(EventLoop* loop, const people::Members* members, std::string path)
      : loop_(loop), members_(members), path_(std::move(path)) {}
  void OnConnection();
  Result<std::string> TokenFor(uint32_t uid);

  struct Given {
    int64_t at_us = 0;  // monotonic
    std::string secret;
  };

  EventLoop* const loop_;
  const people::Members* const members_;
  const std::string path_;
  std::string controller_, authority_;
  UniqueFd listener_;
  std::map<uint32_t, Given> given_;  // by uid: one token at a time, and not more than one a second
};

}  // namespace vrun::control
