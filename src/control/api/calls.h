// SPDX-License-Identifier: Apache-2.0
// What the HTTP API needs of the controller. control/service.h implements it.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>

#include "base/result.h"
#include "control/api/counters.h"
#include "control/state/state.h"
#include "rpc/rpc.h"

namespace vrun::control {

class Calls {
 public:
  using Done = std::function<void(Result<std::string>)>;
  using Observer = std::function<void(State&, const std::set<uint64_t>& jobs)>;

  virtual ~Calls() = default;
  // Any thread. Whether this caller may ask anything now: kDenied if he was shut out, kExhausted if he asks too often
  // by gRPC and HTTP together.
  virtual Status Admit(const rpc::Peer& peer) = 0;
  // Any thread. Does what gRPC does for this caller, with the same checks and the same audit. `method` is a unary one:
  // "/vrun.v1.Control/List". `done` is called on the state thread, or at once when the call is refused.
  virtual void Call(const std::string& method, const rpc::Peer& peer, std::string request, Done done) = 0;
  // Any thread. Calls `read` on the state thread between transactions. It must change nothing. Null: the state cannot
  // be read from the database.
  virtual void Read(std::function<void(State*)> read) = 0;
  // State thread. The observer is called on it after each commit that changed jobs. Null ends that.
  virtual void Observe(Observer observer) = 0;
  // State thread.
  virtual const Counters& counters() const = 0;
};

}  // namespace vrun::control
