// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace vrun::node {

// A server for a keeper, with one view, DIRECTORY/view, of which only the root is there. The first one is killed while
// a thread of it, and a process that outlives it, wait for answers that it has not given; the next one answers what it
// is asked, and what that process got is written to DIRECTORY/answered ("0", or an errno).
int SelfWaitingServer(const std::string& directory);

}  // namespace vrun::node
