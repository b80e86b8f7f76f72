// SPDX-License-Identifier: Apache-2.0
// Where the processes of a control group may connect and send to, in the node's network or in one of their own.
//
// Programs on connect and sendmsg refuse (EPERM) the metadata services of clouds, link-local addresses, and what the
// node's policy names. In the node's network they also refuse the ports of other jobs on this node: a program on bind
// notes the owner of each port in a table that the programs of all sandboxes of this host share.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace vrun::sandbox {

struct Destination {
  bool v6 = false;
  std::array<uint8_t, 16> address{};  // network order; of version 4 the first 4
  uint32_t bits = 32;                 // of the address that count
  uint16_t port = 0;                  // 0: all
};
// `address` is numeric; bits 0: the whole address. kInvalid.
Result<Destination> ParseDestination(const std::string& address, uint32_t bits, uint16_t port);

struct NetworkPolicy {
  std::vector<Destination> refused;
  std::vector<uint16_t> refused_local_ports;  // of any address of this host
  uint64_t job = 0;                           // whose ports its pods share; 0: ports have no owners
};

// The addresses of this network namespace, loopback included.
std::vector<Destination> LocalAddresses();

// The entries of one pod in the table of ports. Single-threaded.
class NetworkFilter {
 public:
  // `cgroup`: a version 2 group, before anybody is inside. `pod`: unique on this host.
  Status Attach(int cgroup, const NetworkPolicy& policy, uint64_t pod);
  // Removes the pod's ports from the table, once nothing is left inside.
  void Forget();

 private:
  UniqueFd table_;
  uint64_t pod_ = 0;
};

}  // namespace vrun::sandbox
