// SPDX-License-Identifier: Apache-2.0
// The files of the dashboard (web/), which are part of this program.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "http/message.h"

namespace vrun::control {

// Paths: "/", "/app.js". Any thread.
std::vector<std::string_view> AssetPaths();
// Compressed if the client takes that; 304 if it has the file. REQUIRES: there is one at the path.
http::Response Asset(std::string_view path, const http::Request& request);

}  // namespace vrun::control
