// SPDX-License-Identifier: Apache-2.0
// `vrund home`: the daemon on the developer's machine, one process per user. It keeps the root's tree current, serves
// it to nodes, applies what jobs wrote, and pumps the streams of attached runs.
//
// The command line starts it on demand. It needs no privilege: it serves only what its user can read.
#pragma once

#include <string>

namespace vrun::home {

struct HomeOptions {
  std::string root;  // directory of this machine that jobs see as "/"; "": the configured one
  // If >= 0: once the socket listens (before the end of the first scan), one line is written to this descriptor, then
  // it is closed: "ok\n", or "error: TEXT\n" if the daemon cannot start.
  int ready_fd = -1;
};

// Runs until SIGTERM, SIGINT or a Shutdown query. Returns the exit status of the process. Paths come from the
// environment and the configuration (base/config.h). A second home of the same user reports that on ready_fd and
// returns 1.
int HomeMain(const HomeOptions& options);

}  // namespace vrun::home
