// SPDX-License-Identifier: Apache-2.0
// One try to deliver one message, by libcurl.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "control/notify/settings.h"
#include "proto/notify.pb.h"

namespace vrun::control::notify {

struct Outcome {
  enum class Kind : uint8_t {
    kSent,
    kAgain,  // later it may go
    kNever,  // nobody takes it
  } kind = Kind::kSent;
  std::string why;  // for the log; "" if it was sent
  // The server is there: another message may go to it.
  bool answered = false;
};

// Blocks for up to 20 s, or until `*ended`. Any thread. `now_us`: wall clock. Redirects are refused, and so are other
// protocols than SMTP and HTTP. Whether a job may name its URL is asked again, because the configuration may be
// another.
Outcome Deliver(const NotifySettings& settings, const v1::Notification& message, int64_t now_us,
                const std::atomic<bool>* ended);

}  // namespace vrun::control::notify
