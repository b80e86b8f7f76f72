// SPDX-License-Identifier: Apache-2.0
// Posts a batch to the collector. Separate from the exporter, whose tests have one of their own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "telemetry/settings.h"

namespace vrun::telemetry {

struct Answer {
  // kUnavailable: worth another try. Other errors are final.
  Status status;
  // With kUnavailable: the collector wants to be left alone for so long (Retry-After); 0: it does not say.
  int64_t wait_us = 0;
  // Without an error: spans that the collector did not take, and why.
  uint64_t refused = 0;
  std::string why;
};

class Sender {
 public:
  virtual ~Sender() = default;
  // Blocks, for `timeout_ms` (at least 1) at most, or until `stop` is true, which is asked every 50 ms.
  virtual Answer Send(const std::string& body, int64_t timeout_ms, const std::function<bool()>& stop) = 0;
};

// By libcurl. Keeps its connection. One thread at a time.
std::unique_ptr<Sender> MakeHttpSender(const Settings& settings);

}  // namespace vrun::telemetry
