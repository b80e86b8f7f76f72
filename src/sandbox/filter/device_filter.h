// SPDX-License-Identifier: Apache-2.0
// Which devices the processes of a control group may open: an allow-list. What is not on it can neither be opened nor
// made, however a process came by its node, and whatever the rights of the file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace vrun::sandbox {

// A character device. No minor: all of them.
struct DeviceRule {
  uint32_t major = 0;
  std::optional<uint32_t> minor;
};

// null, zero, full, random, urandom, tty, ptmx and the terminals of devpts.
std::vector<DeviceRule> HarmlessDevices();
inline constexpr DeviceRule kFuseDevice = {10, 229};

// For a version 2 group: attaches a program to it. Needs host root.
Status FilterDevices(int cgroup, const std::vector<DeviceRule>& allowed);
// For a group `path` of version 1's devices controller.
Status FilterDevicesV1(const std::string& path, const std::vector<DeviceRule>& allowed);

}  // namespace vrun::sandbox
