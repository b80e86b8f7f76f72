// SPDX-License-Identifier: Apache-2.0
// Spans as an ExportTraceServiceRequest of OTLP, in protobuf's binary form (proto/otlp.proto).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "telemetry/span.h"

namespace vrun::telemetry {

// `resource`: who sends them. Texts of more than 4 KiB are cut.
std::string EncodeOtlp(const Attributes& resource, const std::vector<Span>& spans);

// What a collector says that took only some of them. No spans if it took all, or says nothing that can be read.
struct Refusal {
  uint64_t spans = 0;
  std::string why;  // one line
};
Refusal RefusalIn(const std::string& answer);

}  // namespace vrun::telemetry
