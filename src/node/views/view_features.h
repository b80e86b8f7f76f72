// SPDX-License-Identifier: Apache-2.0
// What of the kernel's abilities the views of this node use. A kernel that lacks one is served without; where it has
// one and does it wrong, the node's configuration turns it off: fuse_NAME in config.toml, `vrund node --fuse NAME=off`.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace vrun::node {

struct ViewFeatures {
  bool passthrough = true;  // large files are read by the kernel from the store's file; in frozen views
  bool push = true;         // content is put into the kernel ahead of its readers
  bool readdirplus = true;  // listings give attributes
  bool no_open = true;      // opens that say nothing to the server are not asked for
  bool cpu_latency = true;  // processors do not sleep while requests come fast (decisions/0027)
};

// "NAME=auto", "NAME=on" or "NAME=off", each. auto and on: where the kernel can.
Result<ViewFeatures> ParseViewFeatures(const std::vector<std::string>& settings);

}  // namespace vrun::node
