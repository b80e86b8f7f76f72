// SPDX-License-Identifier: Apache-2.0
// Which nodes read from this home at the moment, told to each of them, so that they fetch from one another what one of
// them has fetched from here; and the key with which home signs what they pass on.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>

#include "base/secret.h"
#include "proto/content.pb.h"

namespace vrun::home {

// Any thread.
class PeerBoard {
 public:
  // Gets the list for one member. Called with the board's lock held, so that the last list is the latest: it must not
  // call the board.
  using Tell = std::function<void(const v1::Peers&)>;
  struct Member {
    std::string name;
    std::string address;
    std::string pool;
  };
  static constexpr size_t kMaxMembers = 1024;

  PeerBoard();

  // Tells all members of that pool, this one too, before it returns. Its id; ids ascend. kExhausted: there are too
  // many.
  Result<uint64_t> Join(Member member, Tell tell);
  // An unknown id is fine.
  void Leave(uint64_t id);
  std::string Sign(std::string_view statement) const { return key_.Sign(statement); }

 private:
  struct Listed {
    Member member;
    Tell tell;
  };
  void TellLocked(const std::string& pool);

  // Of this process: after a restart of home what was signed before is worth nothing, and nodes ask again.
  const SigningKey key_;
  const std::string secret_;
  std::mutex mutex_;
  uint64_t next_id_ = 1;
  std::map<uint64_t, Listed> members_;
};

}  // namespace vrun::home
