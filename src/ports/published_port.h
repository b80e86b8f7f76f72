// SPDX-License-Identifier: Apache-2.0
// Published ports as people write them: [ADDRESS:]PORT[:POD_PORT][/tcp].
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "proto/common.pb.h"

namespace vrun {

inline constexpr int kMostPublishedPorts = 64;

// kInvalid: not a port, port 0 or above 65535, no numeric address, or not tcp.
Result<v1::PublishedPort> ParsePublishedPort(std::string_view text);
// Only digits, colons, dots and "/tcp": nobody calls a pool that.
bool LooksLikePublishedPort(std::string_view text);
// "127.0.0.1:8888", as people may put it into a browser.
std::string HomeAddressText(const v1::PublishedPort& port);
// The same with the pod's port, if that is another one: "127.0.0.1:8888 -> 80".
std::string PublishedPortText(const v1::PublishedPort& port);

// kInvalid: a port of home is there twice, or there are too many.
Status CheckPublishedPorts(const v1::RunSpec& spec);

}  // namespace vrun
