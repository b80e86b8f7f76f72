// SPDX-License-Identifier: Apache-2.0
// What a job asks of the network: which one it has, and which of its ports are those of this machine.
#pragma once

#include <string>

#include "base/result.h"
#include "proto/common.pb.h"

namespace vrun::cli {

// "host" or "private".
Status ParseNetwork(const std::string& value, v1::RunSpec* out);
// Adds a published port (ports/published_port.h).
Status ParsePublish(const std::string& value, v1::RunSpec* out);
// -p: a port to publish if it looks like one, otherwise the pool, as srun has it.
Status ParsePortOrPool(const std::string& value, v1::RunSpec* out);

// kInvalid for options that contradict each other. Call when all of them are known. `array`: the job is one.
Status CheckNetwork(const v1::RunSpec& spec, bool array);

}  // namespace vrun::cli
