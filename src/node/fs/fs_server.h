// SPDX-License-Identifier: Apache-2.0
// `vrund fs`: the file system server of one home on one node. The agent connects to it and speaks proto/fsctl.proto;
// home dials in and answers /vrun.v1.Content/Serve.
//
// It is the child of a keeper (node/fs/fs_keeper.h), works in its mount namespace and hands out detached clones of its
// mounts. All that the next server needs is with the keeper before anybody relies on it: when this one is killed, or
// hands over (SIGHUP, an agent of another version), users of the views wait for the next and notice nothing.
//
// When the agent goes away while views are leased, it stays and goes on serving them, because tasks outlive the agent,
// and the next agent connects to it. Without leases it ends with the agent. It also ends on SIGTERM at once: users of
// its views then get ENOTCONN.
#pragma once

#include <cstdint>
#include <string>

#include "node/views/view_features.h"

namespace vrun::node {

struct FsServerOptions {
  int listener = -1;  // Unix socket to which the agent connects; owned from now on
  int keeper = -1;    // connected stream socket; owned from now on; -1: nothing is kept
  std::string home_id;
  std::string tenant;           // name of its directories; two tenants never share one (src/node/tenant.h)
  uint32_t uid_base = 0;        // added to every uid and gid of the tree
  std::string uid_ranges;       // where what is above 65535 has its ids (node/uid_ranges.h); "": nowhere
  std::string store_directory;  // the node's; each tenant has its own directory below it
  std::string views_directory;  // likewise
  std::string listen_host;      // where home can reach this node; the port is chosen
  std::string pki_directory;    // ca.pem, NAME.pem, NAME.key
  std::string node_name;
  std::string pool;                     // nodes of one pool pass content on to each other
  uint64_t cache_bytes = 0;             // until the agent says otherwise; 0: a quarter of the file system
  uint64_t cache_min_free_bytes = 0;    // of the file system, whoever fills it; 0: the store's default
  uint32_t cache_min_free_percent = 0;  // instead of an amount, when not 0
  ViewFeatures features;
  bool s3 = false;  // the pool has an S3 store; the agent forwards what is asked of it
};

// Runs until it is told to end. Exit code: 0 orderly, 1 it could not start (the agent is told why), kHandOver.
int FsServerMain(const FsServerOptions& options);

}  // namespace vrun::node
