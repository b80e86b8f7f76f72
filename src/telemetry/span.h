// SPDX-License-Identifier: Apache-2.0
// One span, complete: what is sent to the collector. Times are microseconds since 1970, of this machine's clock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "telemetry/trace_context.h"

namespace vrun::telemetry {

// Text may be any bytes: what is no UTF-8 is escaped when it is sent.
using Value = std::variant<std::string, int64_t, double, bool, std::vector<std::string>>;
using Attributes = std::vector<std::pair<std::string, Value>>;

// As in OTLP.
enum class SpanKind : int { kInternal = 1, kServer = 2 };

struct Span {
  TraceId trace;
  SpanId id;
  SpanId parent;  // zero: a root
  std::string name;
  SpanKind kind = SpanKind::kInternal;
  int64_t start_us = 0;
  int64_t end_us = 0;  // one before the start counts as the start
  Attributes attributes;
  struct Event {
    int64_t at_us = 0;
    std::string name;
    Attributes attributes;
  };
  std::vector<Event> events;
  std::vector<std::pair<TraceId, SpanId>> links;
  bool failed = false;
  std::string failure;  // one line; only with `failed`
};

// What it takes of memory, without what the allocator adds.
size_t BytesOf(const Span& span);

}  // namespace vrun::telemetry
