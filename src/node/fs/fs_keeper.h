// SPDX-License-Identifier: Apache-2.0
// `vrund fs-keeper`: the parent of one file system server. It outlives the server and the agent, and stores what a new
// server needs to continue: names with values and descriptors, whose meaning it does not know. Most important is the
// /dev/fuse of each view: while it is open, users of the mount wait instead of failing.
//
// It creates the mount namespace in which all servers work, and owns the socket to which agents connect, so the next
// server accepts an agent that connected while none was running. The server's exit decides what happens next:
//
//   exit 0                intended: the keeper exits too
//   kHandOver             an upgrade: the next server starts at once
//   anything else         a crash: the next server starts at once the first time, then after growing delays,
//                         up to 2 s. After kMostCrashes in a row the keeper gives up and exits; users of the views get
//                         ENOTCONN. A server that has not served anything yet gets fewer tries, and none if it reports
//                         that it cannot start.
//
// SIGTERM and SIGHUP are forwarded. If the keeper is killed, the server continues without it. Why this is a separate
// process: docs/decisions/0007.
#pragma once

#include <string>
#include <vector>

namespace vrun::node {

inline constexpr int kHandOver = 75;
inline constexpr int kMostCrashes = 30;
inline constexpr int kServerListenerFd = 3;
inline constexpr int kServerKeeperFd = 4;

struct FsKeeperOptions {
  int listener = -1;                 // listening Unix socket for agents; takes ownership
  std::vector<std::string> command;  // the server's; it gets the listener as descriptor 3 and the keeper's socket as 4
};

// Returns the server's last exit code; 1 after a signal or when there is none.
int FsKeeperMain(const FsKeeperOptions& options);

}  // namespace vrun::node
