// SPDX-License-Identifier: Apache-2.0
#include "telemetry/otlp.h"

#include <gtest/gtest.h>

#include "proto/otlp.pb.h"

namespace vrun::telemetry {
namespace {

template <size_t kBytes>
Id<kBytes> IdOf(std::string_view hex) {
  Id<kBytes> id;
  for (size_t i = 0; i < kBytes; ++i) {
    id.bytes[i] = static_cast<uint8_t>(std::stoi(std::string(hex.substr(2 * i, 2)), nullptr, 16));
  }
  return id;
}

std::string HexOf(const std::string& bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (const char c : bytes) {
    hex += kDigits[static_cast<uint8_t>(c) >> 4];
    hex += kDigits[static_cast<uint8_t>(c) & 15];
  }
  return hex;
}

Span Example() {
  Span span;
  // Names and times of the example of the specification.
  span.trace = IdOf<16>("5b8efff798038103d269b633813fc60c");
  span.id = IdOf<8>("eee19b7ec3c1b174");
  span.parent = IdOf<8>("eee19b7ec3c1b173");
  span.name = "run";
  span.start_us = 1'544'712'660'000'000;
  span.end_us = 1'544'712'661'000'000;
  span.attributes = {{"text", std::string("a\xff")},
                     {"whole", int64_t{-7}},
                     {"real", 0.5},
                     {"truth", true},
                     {"list", std::vector<std::string>{"n1", "n2"}}};
  span.events = {{1'544'712'660'500'000, "preempted", {{"vrun.reason", std::string("for job 7")}}}};
  span.links = {{IdOf<16>("5b8efff798038103d269b633813fc60d"), IdOf<8>("eee19b7ec3c1b175")}};
  span.failed = true;
  span.failure = "exit 3";
  return span;
}

// What the classes of the PyPI package opentelemetry-proto 1.45.2 make of the same span.
TEST(OtlpTest, IsWhatTheOfficialSchemaSays) {
  const std::string version = VRUN_VERSION;
  if (version != "0.1.0") GTEST_SKIP() << "the bytes have version 0.1.0";
  const std::string golden =
      "0ab4020a1d0a1b0a0c736572766963652e6e616d65120b0a097672756e2d6e6f64651292020a0d0a047672756e1205302e31"
      "2e301280020a105b8efff798038103d269b633813fc60c1208eee19b7ec3c1b1742208eee19b7ec3c1b1732a0372756e3001"
      "39004859e3faeb6f15410012f41efbeb6f154a0f0a047465787412070a05615c7866664a140a0577686f6c65120b18f9ffff"
      "ffffffffffff014a110a047265616c120921000000000000e03f4a0b0a057472757468120210014a160a046c697374120e2a"
      "0c0a040a026e310a040a026e325a300900ad2601fbeb6f151209707265656d707465641a1a0a0b7672756e2e726561736f6e"
      "120b0a09666f72206a6f6220376a1c0a105b8efff798038103d269b633813fc60d1208eee19b7ec3c1b1757a0a1206657869"
      "7420331802850101000000";
  EXPECT_EQ(HexOf(EncodeOtlp({{"service.name", std::string("vrun-node")}}, {Example()})), golden);
}

TEST(OtlpTest, SendsNothingThatACollectorRefuses) {
  Span span = Example();
  span.name.assign(10'000, 'x');
  span.name += "\xc3";
  span.end_us = span.start_us - 5;  // the clock was set
  span.parent = {};
  otlp::ExportRequest request;
  ASSERT_TRUE(request.ParseFromString(EncodeOtlp({}, {span, Example()})));
  const auto& scope = request.resource_spans(0).scope_spans(0);
  ASSERT_EQ(scope.spans_size(), 2);
  EXPECT_EQ(scope.spans(0).name().size(), 4096u);
  EXPECT_EQ(scope.spans(0).end_ns(), scope.spans(0).start_ns());
  EXPECT_TRUE(scope.spans(0).parent_span_id().empty());
}

TEST(OtlpTest, CutsLongTextsBetweenLetters) {
  const auto sent = [](const std::string& name) {
    Span span;
    span.name = name;
    otlp::ExportRequest request;
    EXPECT_TRUE(request.ParseFromString(EncodeOtlp({}, {span})));
    return request.resource_spans(0).scope_spans(0).spans(0).name();
  };
  for (size_t n = 4090; n <= 4096; ++n) {
    const std::string head(n, 'x'), text = head + "\xf0\x9f\x98\x80\xf0\x9f\x98\x80";
    EXPECT_EQ(sent(text), n + 4 <= 4096 ? head + "\xf0\x9f\x98\x80" : head) << n;
  }
  // What is no text becomes longer, but no more than four times.
  EXPECT_LE(sent(std::string(100'000, '\x80')).size(), 4u * 4096);
  EXPECT_LE(sent(std::string(100'000, '\xff')).size(), 4u * 4096);
}

TEST(OtlpTest, ReadsWhatTheCollectorSays) {
  for (const char* other : {"", "<html>", "\x1f\x8b\x08"}) EXPECT_EQ(RefusalIn(other).spans, 0u) << other;
  otlp::ExportReply reply;
  reply.mutable_partial_success()->set_rejected_spans(2);
  reply.mutable_partial_success()->set_error_message("no room\n");
  EXPECT_EQ(RefusalIn(reply.SerializeAsString()).spans, 2u);
  EXPECT_EQ(RefusalIn(reply.SerializeAsString()).why, "it says: no room\\n");
  reply.mutable_partial_success()->set_rejected_spans(-2);
  EXPECT_EQ(RefusalIn(reply.SerializeAsString()).spans, 0u);
  reply.mutable_partial_success()->set_rejected_spans(0);  // a warning
  EXPECT_EQ(RefusalIn(reply.SerializeAsString()).spans, 0u);
}

}  // namespace
}  // namespace vrun::telemetry
