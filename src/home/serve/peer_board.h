// SPDX-License-Identifier: Apache-2.0
// Which nodes read from this home at the moment, told to each of them, so that they fetch from one another what one of
// them has fetched from here; and the key with which home signs what they pass on.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "base/hash/secret.h"
#include "proto/content.pb.h"
#include "store/format/statement.h"

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

  // Key and secret are those in `file`, made there the first time: what was signed holds over restarts, and nodes go on
  // with one another. "", or a file that cannot be written: of this board alone.
  explicit PeerBoard(const std::string& file = "");

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
  explicit PeerBoard(const std::pair<std::string, std::string>& seed_and_secret);
  void TellLocked(const std::string& pool);

  const SigningKey key_;
  const std::string secret_;  // with which members prove to each other that they are
  std::mutex mutex_;
  uint64_t next_id_ = 1;
  std::map<uint64_t, Listed> members_;
};

// What home signs of the content that nodes pass on to one another. Any thread.
class Signer {
 public:
  Signer(const PeerBoard* key, std::string home_id) : key_(key), home_id_(std::move(home_id)) {}
  std::string Units(const tree::FileVersion& version, uint64_t offset, std::string_view digests,
                    std::string_view object_id) const {
    return key_->Sign(store::UnitsStatement(home_id_, version, offset, digests, object_id));
  }
  std::string Frame(const Digest& name, std::string_view digests) const {
    return key_->Sign(store::FrameStatement(home_id_, name, digests));
  }

 private:
  const PeerBoard* const key_;
  const std::string home_id_;
};

}  // namespace vrun::home
