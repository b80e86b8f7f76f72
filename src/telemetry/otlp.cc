// SPDX-License-Identifier: Apache-2.0
#include "telemetry/otlp.h"

#include <algorithm>

#include "base/escape.h"
#include "proto/otlp.pb.h"

namespace vrun::telemetry {
namespace {

constexpr size_t kMostText = 4096;
constexpr int kError = 2;  // of Status.code

// A collector refuses a whole request for one text that is not UTF-8.
std::string Clean(const std::string& text) {
  if (text.size() <= kMostText) return Escape(text);
  size_t end = kMostText;
  // Not within a letter.
  while (end > kMostText - 3 && (static_cast<uint8_t>(text[end]) & 0xc0) == 0x80) --end;
  return Escape(std::string_view(text).substr(0, end));
}

uint64_t Nanos(int64_t micros) { return static_cast<uint64_t>(std::max<int64_t>(micros, 0)) * 1000; }

struct Fill {
  otlp::Value* to;
  void operator()(const std::string& text) const { to->set_text(Clean(text)); }
  void operator()(int64_t whole) const { to->set_whole(whole); }
  void operator()(double real) const { to->set_real(real); }
  void operator()(bool truth) const { to->set_truth(truth); }
  void operator()(const std::vector<std::string>& texts) const {
    to->mutable_list();
    for (const std::string& text : texts) to->mutable_list()->add_values()->set_text(Clean(text));
  }
};

void AddAll(const Attributes& attributes, google::protobuf::RepeatedPtrField<otlp::KeyValue>* to) {
  for (const auto& [key, value] : attributes) {
    otlp::KeyValue* pair = to->Add();
    pair->set_key(Clean(key));
    std::visit(Fill{pair->mutable_value()}, value);
  }
}

void Convert(const Span& span, otlp::Span* to) {
  to->set_trace_id(std::string(span.trace.view()));
  to->set_span_id(std::string(span.id.view()));
  if (!span.parent.is_zero()) to->set_parent_span_id(std::string(span.parent.view()));
  to->set_name(Clean(span.name));
  to->set_kind(static_cast<int>(span.kind));
  to->set_start_ns(Nanos(span.start_us));
  to->set_end_ns(Nanos(std::max(span.end_us, span.start_us)));
  AddAll(span.attributes, to->mutable_attributes());
  for (const Span::Event& event : span.events) {
    otlp::Span::Event* e = to->add_events();
    e->set_at_ns(Nanos(event.at_us));
    e->set_name(Clean(event.name));
    AddAll(event.attributes, e->mutable_attributes());
  }
  for (const auto& [trace, id] : span.links) {
    otlp::Span::Link* link = to->add_links();
    link->set_trace_id(std::string(trace.view()));
    link->set_span_id(std::string(id.view()));
  }
  to->set_flags(1);  // sampled
  if (!span.failed) return;
  to->mutable_status()->set_code(kError);
  to->mutable_status()->set_message(Clean(span.failure));
}

}  // namespace

std::string EncodeOtlp(const Attributes& resource, const std::vector<Span>& spans) {
  otlp::ExportRequest request;
  otlp::ResourceSpans* all = request.add_resource_spans();
  AddAll(resource, all->mutable_resource()->mutable_attributes());
  otlp::ScopeSpans* ours = all->add_scope_spans();
  ours->mutable_scope()->set_name("vrun");
  ours->mutable_scope()->set_version(VRUN_VERSION);
  for (const Span& span : spans) Convert(span, ours->add_spans());
  return request.SerializeAsString();
}

Refusal RefusalIn(const std::string& answer) {
  otlp::ExportReply reply;
  if (!reply.ParseFromString(answer) || reply.partial_success().rejected_spans() <= 0) return {};
  return {static_cast<uint64_t>(reply.partial_success().rejected_spans()),
          "it says: " + Clean(reply.partial_success().error_message())};
}

}  // namespace vrun::telemetry
