// SPDX-License-Identifier: Apache-2.0
#include "telemetry/span.h"

namespace vrun::telemetry {
namespace {

struct Count {
  size_t operator()(const std::string& text) const { return text.size(); }
  size_t operator()(const std::vector<std::string>& texts) const {
    size_t bytes = 0;
    for (const std::string& text : texts) bytes += sizeof text + text.size();
    return bytes;
  }
  template <typename Number>
  size_t operator()(Number) const {
    return 0;
  }
};

size_t BytesOf(const Attributes& attributes) {
  size_t bytes = 0;
  for (const auto& attribute : attributes) {
    bytes += sizeof attribute + attribute.first.size() + std::visit(Count(), attribute.second);
  }
  return bytes;
}

}  // namespace

size_t BytesOf(const Span& span) {
  size_t bytes = sizeof span + span.name.size() + span.failure.size() + BytesOf(span.attributes);
  for (const Span::Event& event : span.events) bytes += sizeof event + event.name.size() + BytesOf(event.attributes);
  return bytes + span.links.size() * sizeof span.links[0];
}

}  // namespace vrun::telemetry
