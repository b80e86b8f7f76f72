// SPDX-License-Identifier: Apache-2.0
// Where spans go and which: from a daemon's options and OpenTelemetry's standard variables
// (https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/). An option has the last word, but
// for OTEL_SDK_DISABLED=true.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "telemetry/span.h"

namespace vrun::telemetry {

// Options of a daemon.
struct Options {
  std::string endpoint;      // as in CheckCollector (base/config.h); /v1/traces is added; "": as the environment says
  std::string headers_file;  // lines "NAME: value", for the collector; nobody but its owner may read it; "": none
  std::string ratio;         // part of the jobs that are traced, 0 to 1; "": as the environment says
};

struct Sampler {
  enum class Rule : uint8_t { kOn, kOff, kRatio } rule = Rule::kOn;
  bool parent_decides = true;  // where there is one
  double ratio = 1;            // of kRatio

  // For a trace without a parent the same in every program, as it depends on the trace's name alone: the last 63 bits
  // of it, as the SDKs of OpenTelemetry do.
  bool Takes(const TraceId& trace, const TraceParent* parent) const;
};

struct Settings {
  std::string url;  // "": nothing is sent
  std::vector<std::pair<std::string, std::string>> headers;
  std::string ca_file;          // of the collector's certificate; "": the system's authorities
  int64_t timeout_ms = 10'000;  // of one try to send a batch
  int64_t batch_ms = 30'000;    // of all tries of a batch and the pauses between them
  int64_t pause_ms = 1'000;     // before the second try; the next ones are longer
  int64_t delay_ms = 5'000;     // spans wait so long for others
  size_t most_queued = 16'384;
  size_t most_queued_bytes = 32u << 20;  // bytes as BytesOf counts them (span.h)
  size_t most_at_once = 512;
  size_t most_at_once_bytes = 1u << 20;  // but for a single span
  std::string service;                   // OTEL_SERVICE_NAME; "": the program's own
  Attributes resource;                   // OTEL_RESOURCE_ATTRIBUTES
  Sampler sampler;
};

// As std::getenv.
using GetVariable = std::function<const char*(const char*)>;

// kInvalid: a setting that cannot be meant, with its name.
Result<Settings> ReadSettings(const Options& options, const GetVariable& variable);

// "a=b,c=d" of OTEL_EXPORTER_OTLP_HEADERS and OTEL_RESOURCE_ATTRIBUTES: percent-encoded values. An error repeats none
// of it, as headers are secret.
Result<std::vector<std::pair<std::string, std::string>>> ParseList(std::string_view text);

}  // namespace vrun::telemetry
