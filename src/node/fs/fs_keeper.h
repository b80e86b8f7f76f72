// SPDX-License-Identifier: Apache-2.0
// `vrund fs-keeper`: the parent of one file system server. It outlives the server, and the agent, and keeps what a new
// server needs to serve on what the old one served: names with values and descriptors, which it does not understand.
// Above all the /dev/fuse of each view: while it is open, users of the mount wait instead of failing.
//
// It makes the mount namespace in which all servers work, and holds the socket to which agents connect, so that an
// agent that connects while no server runs is served by the next one. How a server ends says what follows:
//
//   exit 0                it was to end: the keeper ends too
//   kHandOver             the next one starts at once: an upgrade
//   anything else         a crash: the next one starts at once the first time, then later and later, up to 2 s; after
//                         kMostCrashes in a row the keeper gives up and ends. Users of the views then get ENOTCONN.
//                         One that has served nothing yet gets less patience, and none if it says that it cannot start.
//
// SIGTERM and SIGHUP are passed on. When the keeper is killed the server goes on without it. Why it is a process of its
// own: docs/decisions/0007.
#pragma once

#include <string>
#include <vector>

namespace vrun::node {

inline constexpr int kHandOver = 75;
inline constexpr int kMostCrashes = 30;
inline constexpr int kServerListenerFd = 3;
inline constexpr int kServerKeeperFd = 4;

struct FsKeeperOptions {
  int listener = -1;                 // listening Unix socket for agents; owned from now on
  std::vector<std::string> command;  // of the server: gets the listener as descriptor 3, the keeper's socket as 4
};

// Exit code: the server's last one; 1 after a signal or when there is none.
int FsKeeperMain(const FsKeeperOptions& options);

}  // namespace vrun::node
