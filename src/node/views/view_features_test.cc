// SPDX-License-Identifier: Apache-2.0
#include "node/views/view_features.h"

#include <gtest/gtest.h>

namespace vrun::node {
namespace {

TEST(ViewFeaturesTest, EachCanBeForcedOff) {
  const auto features =
      ParseViewFeatures({"passthrough=off", "push=off", "readdirplus=off", "no_open=off", "cpu_latency=off"});
  ASSERT_TRUE(features) << features.error().message();
  EXPECT_FALSE(features->passthrough || features->push || features->readdirplus || features->no_open ||
               features->cpu_latency);
}

TEST(ViewFeaturesTest, AutoIsWhatIsNotSaid) {
  const auto features = ParseViewFeatures({"push=off", "push=auto"});
  ASSERT_TRUE(features);
  EXPECT_TRUE(features->push && features->passthrough && features->readdirplus && features->no_open &&
              features->cpu_latency);
}

TEST(ViewFeaturesTest, WhatItDoesNotKnowIsSaid) {
  EXPECT_EQ(ParseViewFeatures({"pusch=off"}).error().message(),
            "fuse pusch=off: no such feature: known are passthrough, push, readdirplus, no_open, cpu_latency");
  for (const char* wrong : {"push", "push=", "push=no", "push=on=off"}) {
    const auto features = ParseViewFeatures({wrong});
    ASSERT_FALSE(features) << wrong;
    EXPECT_EQ(features.error().message(), "fuse " + std::string(wrong) + ": not a choice: give auto, on or off");
  }
  EXPECT_FALSE(ParseViewFeatures({""}));
}

}  // namespace
}  // namespace vrun::node
