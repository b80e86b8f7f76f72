// SPDX-License-Identifier: Apache-2.0
// `vrund home`: the developer's side, one process per user. It keeps the tree of the root current, serves it to the
// nodes, applies what the jobs wrote, and pumps the streams of the attached runs.
//
// It is started by the command line when there is none, and needs no privilege: it serves what its user can read.
#pragma once

#include <string>

namespace vrun::home {

struct HomeOptions {
  std::string root;  // directory of this machine that the jobs see as "/"; "": what the configuration says
  // When >= 0: one line is written there and the descriptor closed as soon as the socket listens, which is before the
  // first scan has ended: "ok\n", or "error: TEXT\n" when the daemon cannot start.
  int ready_fd = -1;
};

// Runs until SIGTERM, SIGINT or a Shutdown query; the process's exit status. Places come from the environment and the
// configuration (base/config.h). A second home of the same user reports that on ready_fd and returns 1.
int HomeMain(const HomeOptions& options);

}  // namespace vrun::home
