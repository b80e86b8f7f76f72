// SPDX-License-Identifier: Apache-2.0
// Tells each node which other nodes read from this home, so that they can fetch from one another what one of them
// already has. Also holds the key with which home signs the content that they pass on.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "base/hash/secret.h"
#include "base/thread/mutex.h"
#include "proto/content.pb.h"
#include "store/format/statement.h"

namespace vrun::home {

// Any thread.
class PeerBoard {
 public:
  // Receives the list for one member. Called with the board's lock held, so that the last list is the latest: it must
  // not call the board.
  using Tell = std::function<void(const v1::Peers&)>;
  struct Member {
    std::string name;
    std::string address;
    std::string pool;
  };
  static constexpr size_t kMaxMembers = 1024;

  // Key and secret are stored in `file`, created at the first start, so that signatures stay valid across restarts and
  // nodes keep exchanging. With "" or an unwritable file they last only as long as this object.
  explicit PeerBoard(const std::string& file = "");

  // Tells all members of the pool, this one included, before it returns. Returns the member's id; ids ascend.
  // kExhausted: too many members.
  Result<uint64_t> Join(Member member, Tell tell);
  // An unknown id is ignored.
  void Leave(uint64_t id);
  std::string Sign(std::string_view statement) const { return key_.Sign(statement); }

 private:
  struct Listed {
    Member member;
    Tell tell;
  };
  explicit PeerBoard(const std::pair<std::string, std::string>& seed_and_secret);
  void TellLocked(const std::string& pool) VRUN_REQUIRES(mutex_);

  const SigningKey key_;
  const std::string secret_;  // proves membership between peers
  Mutex mutex_;
  uint64_t next_id_ VRUN_GUARDED_BY(mutex_) = 1;
  std::map<uint64_t, Listed> members_ VRUN_GUARDED_BY(mutex_);
};

// Signs content that nodes pass on to one another. Any thread.
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
