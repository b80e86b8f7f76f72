// SPDX-License-Identifier: Apache-2.0
// `vrund fs`: the file system server of one tenant on one node. The agent connects to it and speaks proto/fsctl.proto;
// home connects and serves /vrun.v1.Content/Serve.
//
// It is the child of a keeper (node/fs/fs_keeper.h), works in its mount namespace and hands out detached clones of its
// mounts. It saves everything that a successor needs with the keeper before anybody relies on it. So when it is killed
// or hands over (SIGHUP, an agent of another version), users of the views only wait for the next server.
//
// When the agent disconnects while views are leased, the server continues: tasks outlive the agent, and the next agent
// connects to it. Without leases it exits with the agent. It exits at once on SIGTERM; users of its views then get
// ENOTCONN.
#pragma once

#include <cstdint>
#include <string>

#include "node/views/view_features.h"

namespace vrun::node {

struct FsServerOptions {
  int listener = -1;  // Unix socket to which the agent connects; takes ownership
  int keeper = -1;    // connected stream socket; takes ownership; -1: no keeper
  std::string home_id;
  std::string tenant;      // name of its directories; unique per tenant (src/node/tenant.h)
  uint32_t uid_base = 0;   // added to every uid and gid of the tree
  std::string uid_ranges;  // file with the host ids of home's ids above 65535 (node/uid_ranges.h); "": they have none
  std::string store_directory;  // the node's directory; each tenant has its own below it
  std::string views_directory;  // the same
  std::string listen_host;      // where home can reach this node; the port is chosen automatically
  std::string pki_directory;    // ca.pem, NAME.pem, NAME.key
  std::string node_name;
  std::string pool;                     // nodes of one pool exchange content
  uint64_t cache_bytes = 0;             // until the agent sets another limit; 0: a quarter of the file system
  uint64_t cache_min_free_bytes = 0;    // to leave free on the file system, whoever fills it; 0: the store's default
  uint32_t cache_min_free_percent = 0;  // replaces cache_min_free_bytes when not 0
  ViewFeatures features;
  bool s3 = false;  // the pool has an S3 store; the agent forwards requests for its URLs
};

// Runs until told to exit. Exit code: 0 orderly, 1 startup failed (the agent is told why), kHandOver.
int FsServerMain(const FsServerOptions& options);

}  // namespace vrun::node
