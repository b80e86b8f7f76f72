// SPDX-License-Identifier: Apache-2.0
// Keeps the certificate of a machine that has joined by a token from ending: it asks the controller for another one of
// the same key when half of its life is over, and replaces NAME.pem. New connections use it (rpc/credentials.h), open
// ones go on. Certificates that were made by hand, which have no file `joined` beside them, are left alone.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/io/event_loop.h"
#include "base/result.h"
#include "rpc/rpc.h"

namespace vrun::identity {

struct Place {
  std::string directory;   // of ca.pem, NAME.pem, NAME.key and `joined`
  std::string name;        // in the certificate
  std::string controller;  // HOST:PORT
  bool operator==(const Place&) const = default;
};

// For a start: when the certificate has ended, asks at once, and blocks for up to 20 s. kDenied: the controller makes
// no other one for it.
Status RenewIfEnded(const Place& place);

// Loop thread. The loop outlives it.
class Renewal {
 public:
  Renewal(EventLoop* loop, Place place);
  ~Renewal();
  Renewal(const Renewal&) = delete;
  Renewal& operator=(const Renewal&) = delete;

 private:
  void Look();
  void Ask();
  void Answered(const Result<std::string>& answer);

  EventLoop* const loop_;
  const Place place_;
  std::unique_ptr<rpc::Channel> channel_;  // while it asks
  EventLoop::TimerId timer_ = 0;
  int64_t pause_us_ = 0;  // after a failure
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace vrun::identity
