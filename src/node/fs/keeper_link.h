// SPDX-License-Identifier: Apache-2.0
// A file system server's side of its keeper (node/fs/fs_keeper.h): reads what the previous server left and saves state
// for the next one.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace vrun::v1 {
class KeeperMessage;
}

namespace vrun::node {

// Loop thread only. Calls block until the data is in the keeper's socket. State saved before a reply is sent therefore
// survives any crash of this server.
class KeeperLink {
 public:
  struct Item {
    std::string value;
    std::vector<UniqueFd> fds;
  };
  using Items = std::map<std::string, Item>;

  // Blocks until the keeper has sent everything. Without a socket there is no keeper, and nothing is saved.
  static Result<std::unique_ptr<KeeperLink>> Start(UniqueFd socket, Items* left);

  bool present() const { return static_cast<bool>(socket_); }
  // Descriptors are duplicated. No descriptors: the earlier ones stay.
  void Keep(std::string_view name, std::string value, const std::vector<int>& fds = {});
  void Drop(std::string_view name);
  // The program to start as the next server.
  void SetProgram(const std::string& path);

 private:
  explicit KeeperLink(UniqueFd socket) : socket_(std::move(socket)) {}
  void Send(const v1::KeeperMessage& message, const std::vector<int>& fds);

  UniqueFd socket_;
};

}  // namespace vrun::node
