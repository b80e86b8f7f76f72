// SPDX-License-Identifier: Apache-2.0
// The places of nodes from a topology file in one of Slurm's forms
// (https://slurm.schedmd.com/topology.conf.html, https://slurm.schedmd.com/topology.yaml.html):
//
//   SwitchName=leaf1 Nodes=n[1-16]            # topology.conf, a tree of switches
//   SwitchName=spine Switches=leaf[1-4]
//
//   BlockName=b1 Nodes=n[1-18]                # topology.conf, blocks
//   BlockSizes=18,72
//
//   - topology: main                          # topology.yaml: the default topology, else the first
//     cluster_default: true
//     tree:
//       switches:
//         - {switch: leaf1, nodes: "n[1-16]"}   # or one key a line
//
// The switch of a node is its rack, the one above that its block, and the next its zone. A block of the other form is a
// set of nodes that share one NVLink fabric: an island. The second and third of its sizes make racks and blocks of
// consecutive islands.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "base/result.h"

namespace vrun::control {

struct NodePlace {
  std::string island, rack, block, zone;
  bool operator==(const NodePlace&) const = default;
};
using NodePlaces = std::map<std::string, NodePlace>;  // by node

// kInvalid: "NAME:LINE: what: what to do".
Result<NodePlaces> ParseTopology(std::string_view text, const std::string& name);

}  // namespace vrun::control
