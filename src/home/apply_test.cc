// SPDX-License-Identifier: Apache-2.0
#include "home/apply.h"

#include <gtest/gtest.h>

namespace vrun::home {
namespace {

TEST(Apply, ARootThatIsNotThereIsAnError) {
  ApplyOptions options;
  options.root = "/nonexistent/root";
  EXPECT_FALSE(Applier::Open(std::move(options)).has_value());
}

}  // namespace
}  // namespace vrun::home
