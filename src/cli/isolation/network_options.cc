// SPDX-License-Identifier: Apache-2.0
#include "cli/isolation/network_options.h"

#include "base/escape.h"
#include "ports/published_port.h"

namespace vrun::cli {

Status ParseNetwork(const std::string& value, v1::RunSpec* out) {
  if (value != "host" && value != "private") {
    return Error(Code::kInvalid, Escape(value) + ": no such network: write host or private");
  }
  out->set_network(value == "private" ? v1::NETWORK_PRIVATE : v1::NETWORK_HOST);
  return {};
}

Status ParsePublish(const std::string& value, v1::RunSpec* out) {
  VRUN_ASSIGN(*out->add_ports(), ParsePublishedPort(value));
  return CheckPublishedPorts(*out);
}

Status ParsePortOrPool(const std::string& value, v1::RunSpec* out) {
  if (LooksLikePublishedPort(value)) return ParsePublish(value, out);
  if (value.empty()) return Error(Code::kInvalid, "an empty value: write a port or a pool");
  out->set_pool(Escape(value));
  return {};
}

Status CheckNetwork(const v1::RunSpec& spec, bool array) {
  if (array && spec.ports_size() > 0) {
    return Error(Code::kInvalid,
                 "--publish: the elements of an array cannot share a port of this machine: leave it out");
  }
  if (spec.network() == v1::NETWORK_PRIVATE && spec.gang().pods() > 1) {
    return Error(
        Code::kInvalid,
        "--network private: the processes on several nodes would not reach each other: leave it out, or use one "
        "node");
  }
  return {};
}

}  // namespace vrun::cli
