// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace vrun::node {

// A server for a keeper with one view, DIRECTORY/view, that has only a root. The first server is killed while one of
// its own threads, and a process that outlives it, wait for its replies. The next server replies. The process's result
// ("0", or an errno) is written to DIRECTORY/answered.
int SelfWaitingServer(const std::string& directory);

}  // namespace vrun::node
