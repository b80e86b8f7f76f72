// SPDX-License-Identifier: Apache-2.0
// Posts a batch to the collector. Separate from the exporter, whose tests have one of their own.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "telemetry/settings.h"

namespace vrun::telemetry {

class Sender {
 public:
  virtual ~Sender() = default;
  // Blocks, for Settings::timeout_ms at most, or until `stop` is true, which is asked every 50 ms. kUnavailable: worth
  // another try. Other errors are final.
  virtual Status Send(const std::string& body, const std::function<bool()>& stop) = 0;
};

// By libcurl. Keeps its connection. One thread at a time.
std::unique_ptr<Sender> MakeHttpSender(const Settings& settings);

}  // namespace vrun::telemetry
