// SPDX-License-Identifier: Apache-2.0
// The file system server as a process of its own, for fs_server_test: DIRECTORY HOME_ID; the agent's socket is fd 3.
#include <unistd.h>

#include "base/files.h"
#include "node/fs_server.h"

int main(int argc, char** argv) {
  if (argc != 3) return 64;
  const std::string directory = argv[1];
  return vrun::node::FsServerMain({.agent_fd = 3,
                                   .home_id = argv[2],
                                   .tenant = "tenant",
                                   .uid_base = 0,
                                   .store_directory = directory + "/store",
                                   .views_directory = directory + "/views",
                                   .listen_host = "127.0.0.1",
                                   .pki_directory = directory + "/pki",
                                   .node_name = "n1",
                                   .cache_bytes = 64u << 20});
}
