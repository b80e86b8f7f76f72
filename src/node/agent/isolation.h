// SPDX-License-Identifier: Apache-2.0
// What a node allows its jobs, from the options of its administrator and from what the node is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "proto/common.pb.h"
#include "proto/supervisor.pb.h"

namespace vrun::node {

struct IsolationOptions {
  bool allow_setuid = false;
  bool refuse_namespaces = false;
  bool allow_fuse = false;
  bool require_device_filter = false;
  std::vector<std::string> refuse;  // ADDRESS[/BITS][:PORT] or [ADDRESS][/BITS]:PORT: where jobs may not connect
};

// "10.0.0.1", "10.0.0.0/8", "10.0.0.1:443", "[fd00::1]:443", ":443" (of the node itself). kInvalid: "TEXT: why".
Result<v1::Isolation::Destination> ParseRefused(const std::string& text);

// Of one job. `controller`: HOST:PORT; a name is not refused, since it has no address here. `own_ports`: those on which
// this node's daemons listen. `cpus`: processors of this machine.
Result<v1::Isolation> IsolationOf(const IsolationOptions& options, const std::string& controller,
                                  const std::vector<uint32_t>& own_ports);

// The memory of a job that asks for none: its part of the machine, by processors or GPUs, whichever is more, and at
// least 2 GiB; never more than nine tenths of the machine.
uint64_t DefaultMemory(uint64_t machine_bytes, uint32_t job_milli_cpus, uint32_t machine_cpus, uint32_t job_gpus,
                       uint32_t machine_gpus);

}  // namespace vrun::node
