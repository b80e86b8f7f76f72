// SPDX-License-Identifier: Apache-2.0
// Runs the file system server as a separate process for fs_server_test; descriptor 3 is the agent's socket.
//   DIRECTORY HOME_ID          alone
//   DIRECTORY HOME_ID keeper   by a keeper, which starts DIRECTORY HOME_ID kept
//   DIRECTORY HOME_ID waits    by a keeper; another server, which dies once: SelfWaitingServer
#include <unistd.h>

#include <string>

#include "node/fs/fs_keeper.h"
#include "node/fs/fs_server.h"
#include "node/tenant.h"
#include "node/testing/self_waiting_fixture.h"

int main(int argc, char** argv) {
  if (argc < 3) return 64;
  const std::string directory = argv[1], how = argc > 3 ? argv[3] : "";
  if (how == "keeper") {
    return vrun::node::FsKeeperMain({.listener = 3, .command = {argv[0], directory, argv[2], "kept"}});
  }
  if (how == "waits") {
    return vrun::node::FsKeeperMain({.listener = 3, .command = {argv[0], directory, argv[2], "waiting"}});
  }
  if (how == "waiting") return vrun::node::SelfWaitingServer(directory);
  return vrun::node::FsServerMain({.listener = vrun::node::kServerListenerFd,
                                   .keeper = how == "kept" ? vrun::node::kServerKeeperFd : -1,
                                   .home_id = argv[2],
                                   .tenant = vrun::node::Tenant{argv[2], argv[2]}.Key(),
                                   .uid_base = 0,
                                   .store_directory = directory + "/store",
                                   .views_directory = directory + "/views",
                                   .listen_host = "127.0.0.1",
                                   .pki_directory = directory + "/pki",
                                   .node_name = "n1",
                                   .cache_bytes = 64u << 20});
}
