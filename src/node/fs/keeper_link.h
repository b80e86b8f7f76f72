// SPDX-License-Identifier: Apache-2.0
// A file system server's end of its keeper (node/fs/fs_keeper.h): what it was left by the server before, and what it
// wants the next one to get.
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

// Loop thread only. Calls block until the keeper's socket has taken them: what was kept before an answer goes out is
// kept, whatever happens to us next.
class KeeperLink {
 public:
  struct Item {
    std::string value;
    std::vector<UniqueFd> fds;
  };
  using Items = std::map<std::string, Item>;

  // Blocks until the keeper has told all. Without a socket there is no keeper, and nothing is kept.
  static Result<std::unique_ptr<KeeperLink>> Start(UniqueFd socket, Items* left);

  bool present() const { return static_cast<bool>(socket_); }
  // The descriptors are duplicated; none: those of before stay.
  void Keep(std::string_view name, std::string value, const std::vector<int>& fds = {});
  void Drop(std::string_view name);
  // What is to be started the next time.
  void SetProgram(const std::string& path);

 private:
  explicit KeeperLink(UniqueFd socket) : socket_(std::move(socket)) {}
  void Send(const v1::KeeperMessage& message, const std::vector<int>& fds);

  UniqueFd socket_;
};

}  // namespace vrun::node
