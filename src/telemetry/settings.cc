// SPDX-License-Identifier: Apache-2.0
#include "telemetry/settings.h"

#include <sys/stat.h>

#include <algorithm>
#include <charconv>

#include "base/config.h"
#include "base/escape.h"
#include "base/files.h"

namespace vrun::telemetry {
namespace {

constexpr size_t kMostHeaders = 64u << 10;
using Pairs = std::vector<std::pair<std::string, std::string>>;

std::string_view Trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r')) text.remove_suffix(1);
  return text;
}

// What of it is a token of HTTP.
std::string NameIn(std::string_view text) {
  constexpr std::string_view kMarks = "!#$%&'*+-.^_`|~";
  return {text.begin(), std::find_if_not(text.begin(), text.end(), [&](char c) {
            const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
            return letter || kMarks.find(c) != std::string_view::npos;
          })};
}

Status CheckHeader(const std::string& name, const std::string& value) {
  const bool printable = std::all_of(value.begin(), value.end(), [](char c) { return c >= ' ' && c <= '~'; });
  const std::string good = NameIn(name);
  if (!name.empty() && good == name && printable) return {};
  // Behind the name may be what somebody meant to be the value.
  return Error(Code::kInvalid, "header " + good.substr(0, 100) + ": not one of HTTP");
}

std::string PercentDecoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned byte = 0;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(text.data() + i + 1, text.data() + i + 3, byte, 16).ptr == text.data() + i + 3) {
      out += static_cast<char>(byte);
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

Result<Pairs> ReadHeaders(const std::string& file) {
  struct stat st;
  if (::stat(file.c_str(), &st) != 0) return ErrnoError("headers " + Escape(file));
  if ((st.st_mode & 077) != 0) {
    return Error(Code::kDenied, "headers " + Escape(file) + ": others may read it: chmod 600 it");
  }
  VRUN_ASSIGN(const std::string text, ReadFile(file, kMostHeaders));
  Pairs headers;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = Trimmed(std::string_view(text).substr(at, end - at));
    at = end + 1;
    if (line.empty() || line.front() == '#') continue;
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) {
      return Error(Code::kInvalid, "headers " + Escape(file) + ": a line without a colon: write NAME: value");
    }
    headers.emplace_back(Trimmed(line.substr(0, colon)), Trimmed(line.substr(colon + 1)));
    VRUN_TRY(CheckHeader(headers.back().first, headers.back().second));
  }
  return headers;
}

Result<int64_t> ParseWhole(std::string_view name, std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && value > 0 && value <= 3'600'000) return value;
  return Error(Code::kInvalid, std::string(name) + "=" + Escape(text.substr(0, 100)) + ": not a number above 0");
}

Result<Sampler> ReadSampler(const Options& options, const std::string& name, const std::string& argument) {
  Sampler sampler;
  if (!options.ratio.empty()) {
    sampler.rule = Sampler::Rule::kRatio;
    VRUN_ASSIGN(sampler.ratio, ParseRatio(options.ratio));
    return sampler;
  }
  std::string_view rule = name.empty() ? "parentbased_always_on" : std::string_view(name);
  constexpr std::string_view kParentBased = "parentbased_";
  sampler.parent_decides = rule.starts_with(kParentBased);
  if (sampler.parent_decides) rule.remove_prefix(kParentBased.size());
  if (rule == "always_on") return sampler;
  if (rule == "always_off") {
    sampler.rule = Sampler::Rule::kOff;
    return sampler;
  }
  if (rule != "traceidratio") {
    return Error(Code::kInvalid, "OTEL_TRACES_SAMPLER=" + Escape(name.substr(0, 100)) +
                                     ": not known here: use parentbased_traceidratio");
  }
  sampler.rule = Sampler::Rule::kRatio;
  if (argument.empty()) return sampler;
  auto ratio = ParseRatio(argument);
  if (!ratio) return std::move(ratio).error().With("OTEL_TRACES_SAMPLER_ARG");
  sampler.ratio = *ratio;
  return sampler;
}

}  // namespace

bool Sampler::Takes(const TraceId& trace, const TraceParent* parent) const {
  if (parent_decides && parent != nullptr) return parent->sampled;
  if (rule != Rule::kRatio) return rule == Rule::kOn;
  if (ratio >= 1) return true;
  uint64_t number = 0;
  for (size_t i = 8; i < 16; ++i) number = number << 8 | trace.bytes[i];
  return static_cast<double>(number >> 1) < ratio * 0x1p63;
}

Result<Pairs> ParseList(std::string_view text) {
  Pairs pairs;
  if (text.size() > kMostHeaders) return Error(Code::kInvalid, "a list of more than 64 KiB");
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    const std::string_view one = Trimmed(text.substr(0, comma));
    text.remove_prefix(std::min(comma + 1, text.size()));
    if (one.empty()) continue;
    const size_t equals = one.find('=');
    const std::string_view name = Trimmed(one.substr(0, equals));
    if (equals == std::string_view::npos || name.empty()) {
      return Error(Code::kInvalid, "an entry without a name or a value: write NAME=value,NAME=value");
    }
    pairs.emplace_back(name, PercentDecoded(Trimmed(one.substr(equals + 1))));
  }
  return pairs;
}

Result<Settings> ReadSettings(const Options& options, const GetVariable& variable) {
  const auto get = [&](const char* name) {
    const char* value = variable(name);
    return std::string(value != nullptr ? value : "");
  };
  // Of traces, or else of all kinds of telemetry.
  const auto of_traces = [&](const std::string& name) {
    std::string own = get(("OTEL_EXPORTER_OTLP_TRACES_" + name).c_str());
    return own.empty() ? get(("OTEL_EXPORTER_OTLP_" + name).c_str()) : own;
  };
  Settings settings;
  std::string disabled = get("OTEL_SDK_DISABLED");
  std::transform(disabled.begin(), disabled.end(), disabled.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  if (disabled == "true") return settings;
  std::string base = options.endpoint;
  if (base.empty()) {
    if (get("OTEL_TRACES_EXPORTER") == "none") return settings;
    const std::string protocol = of_traces("PROTOCOL");
    settings.url = get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
    base = settings.url.empty() ? get("OTEL_EXPORTER_OTLP_ENDPOINT") : "";
    if (base.empty() && settings.url.empty()) return settings;
    if (!protocol.empty() && protocol != "http/protobuf") {
      return Error(Code::kUnsupported, "OTEL_EXPORTER_OTLP_PROTOCOL=" + Escape(protocol.substr(0, 100)) +
                                           ": vrun sends http/protobuf only: name that address of the collector");
    }
  }
  VRUN_TRY(CheckCollector(base.empty() ? settings.url : base));
  if (!base.empty()) settings.url = base + (base.ends_with('/') ? "v1/traces" : "/v1/traces");
  if (options.headers_file.empty()) {
    auto headers = ParseList(of_traces("HEADERS"));
    if (!headers) return std::move(headers).error().With("OTEL_EXPORTER_OTLP_HEADERS");
    settings.headers = *std::move(headers);
    for (const auto& [name, value] : settings.headers) VRUN_TRY(CheckHeader(name, value));
  } else {
    VRUN_ASSIGN(settings.headers, ReadHeaders(options.headers_file));
  }
  settings.ca_file = of_traces("CERTIFICATE");
  settings.service = get("OTEL_SERVICE_NAME");
  const auto resource = ParseList(get("OTEL_RESOURCE_ATTRIBUTES"));
  if (!resource) return resource.error().With("OTEL_RESOURCE_ATTRIBUTES");
  for (const auto& [name, value] : *resource) {
    if (name != "service.name") {
      settings.resource.emplace_back(name, value);
    } else if (settings.service.empty()) {
      settings.service = value;
    }
  }
  const std::string timeout = of_traces("TIMEOUT"), delay = get("OTEL_BSP_SCHEDULE_DELAY");
  if (!timeout.empty()) {
    VRUN_ASSIGN(settings.timeout_ms, ParseWhole("OTEL_EXPORTER_OTLP_TIMEOUT", timeout));
  }
  if (!delay.empty()) {
    VRUN_ASSIGN(settings.delay_ms, ParseWhole("OTEL_BSP_SCHEDULE_DELAY", delay));
  }
  VRUN_ASSIGN(settings.sampler, ReadSampler(options, get("OTEL_TRACES_SAMPLER"), get("OTEL_TRACES_SAMPLER_ARG")));
  return settings;
}

}  // namespace vrun::telemetry
