// SPDX-License-Identifier: Apache-2.0
#include "telemetry/trace_context.h"

#include <gtest/gtest.h>

#include <vector>

#include "telemetry/telemetry.h"

namespace vrun::telemetry {
namespace {

// From the standard.
constexpr const char* kGood = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

TEST(TraceParentTest, SaysWhoCalled) {
  const auto parent = ParseTraceParent(kGood);
  ASSERT_TRUE(parent);
  EXPECT_EQ(parent->trace.Hex(), "0af7651916cd43dd8448eb211c80319c");
  EXPECT_EQ(parent->span.Hex(), "b7ad6b7169203331");
  EXPECT_TRUE(parent->sampled);
  EXPECT_EQ(FormatTraceParent(*parent), kGood);
  EXPECT_FALSE(ParseTraceParent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")->sampled);
  EXPECT_TRUE(ParseTraceParent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-ff")->sampled);
}

TEST(TraceParentTest, ReadsWhatItKnowsOfALaterVersion) {
  EXPECT_TRUE(ParseTraceParent("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-the-future-brings"));
  EXPECT_TRUE(ParseTraceParent("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"));
  EXPECT_FALSE(ParseTraceParent("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01.what"));
}

TEST(TraceParentTest, IgnoresWhatIsNone) {
  const std::string good = kGood;
  for (size_t n = 0; n < good.size(); ++n) EXPECT_FALSE(ParseTraceParent(good.substr(0, n))) << n;
  for (const char* bad : {
           "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",  // of version 00
           "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",       // capitals
           "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",       // no version
           "00-00000000000000000000000000000000-b7ad6b7169203331-01",       // no trace
           "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",       // no span
           "00_0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
           "00-0af7651916cd43dd8448eb211c80319-cb7ad6b7169203331-01",
           "00-0af7651916cd43dd8448eb211c80319g-b7ad6b7169203331-01",
           " 0-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
           "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0\n",
       }) {
    EXPECT_FALSE(ParseTraceParent(bad)) << bad;
  }
}

TEST(TraceParentTest, IsFoundInAnEnvironment) {
  const std::vector<std::string> environment = {"PATH=/bin",   "TRACEPARENT=first", "TRACEPARENTS=no",
                                                "TRACEPARENT", "TRACEPARENT=last",  "traceparent=no"};
  EXPECT_EQ(TraceParentIn(environment), "last");
  EXPECT_EQ(TraceParentIn(std::vector<std::string>{"A=b"}), "");
}

constexpr const char* kAuthority = "-----BEGIN CERTIFICATE-----\nAAAA\nBBBB\n-----END CERTIFICATE-----\n";

TEST(JobTraceTest, ProgramsOfOneClusterFindTheSameNames) {
  UseCluster(kAuthority);
  const JobTrace one(7, "");
  // As another program has the file.
  UseCluster("# ours\n-----BEGIN CERTIFICATE-----\r\nAAAABBBB\r\n-----END CERTIFICATE-----");
  const JobTrace same(7, "not a trace");
  EXPECT_EQ(one.trace(), same.trace());
  EXPECT_EQ(one.Name("run", 1, 2), same.Name("run", 1, 2));
  EXPECT_NE(one.Name("run", 1, 2), one.Name("run", 2, 1));
  EXPECT_NE(one.Name("run", 1), one.Name("attempt", 1));
  EXPECT_NE(one.trace(), JobTrace(8, "").trace());
  UseCluster("-----BEGIN CERTIFICATE-----\nAAAC\n-----END CERTIFICATE-----\n");
  EXPECT_NE(one.trace(), JobTrace(7, "").trace());
  EXPECT_EQ(one.MakeRoot(1, 2).parent, SpanId());
}

TEST(JobTraceTest, ContinuesTheTraceOfItsCaller) {
  UseCluster(kAuthority);
  const JobTrace trace(7, kGood), other(8, kGood);
  EXPECT_EQ(trace.trace().Hex(), "0af7651916cd43dd8448eb211c80319c");
  EXPECT_NE(trace.root(), other.root()) << "two jobs of one caller";
  const Span root = trace.MakeRoot(1, 2);
  EXPECT_EQ(root.parent.Hex(), "b7ad6b7169203331");
  EXPECT_EQ(trace.Make("run", 1, 2, 1).parent, root.id);
  const auto for_program = ParseTraceParent(trace.ForProgram(trace.Name("run", 1)));
  ASSERT_TRUE(for_program);
  EXPECT_EQ(for_program->trace, trace.trace());
  EXPECT_EQ(for_program->span, trace.Name("run", 1));
  EXPECT_TRUE(for_program->sampled);
  EXPECT_FALSE(JobTrace(7, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00").sampled());
}

}  // namespace
}  // namespace vrun::telemetry
