// SPDX-License-Identifier: Apache-2.0
// Kernel features that this node's views use. If a kernel lacks a feature, views work without it. If the kernel has it
// but it is broken, turn it off in the configuration: fuse_NAME in config.toml, `vrund node --fuse NAME=off`.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace vrun::node {

struct ViewFeatures {
  bool passthrough = true;  // the kernel reads large files directly from the store's file; frozen views only
  bool push = true;         // puts content into the kernel's cache before it is read
  bool readdirplus = true;  // directory listings include attributes
  bool no_open = true;      // no requests for opens of which the server need not know
  bool cpu_latency = true;  // keeps processors from sleeping while requests arrive fast (decisions/0027)
};

// Each is "NAME=auto", "NAME=on" or "NAME=off". auto and on: used if the kernel supports it.
Result<ViewFeatures> ParseViewFeatures(const std::vector<std::string>& settings);

}  // namespace vrun::node
