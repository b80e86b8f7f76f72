// SPDX-License-Identifier: Apache-2.0
#include "node/carry.h"

#include <gtest/gtest.h>

namespace vrun::node {
namespace {

TEST(Carry, AnUpperThatIsNotThereIsAnError) {
  CarryOptions options;
  options.upper = "/nonexistent/upper";
  options.lower = "/";
  EXPECT_FALSE(Carry::Open(options).has_value());
}

}  // namespace
}  // namespace vrun::node
