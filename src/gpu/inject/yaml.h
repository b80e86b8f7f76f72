// SPDX-License-Identifier: Apache-2.0
// A small YAML document as values, parsed by libyaml. Bounded in depth and number of nodes; anchors and aliases are
// refused, because a few of them can describe any amount of data.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace vrun::gpu {

struct YamlNode {
  enum class Kind { kScalar, kSequence, kMapping };
  Kind kind = Kind::kScalar;
  std::string text;                // of a scalar
  std::vector<std::string> names;  // of the members of a mapping
  std::vector<YamlNode> items;     // of a sequence; the members of a mapping, in the order of `names`

  // The member of a mapping; nullptr if there is none.
  const YamlNode* Get(std::string_view name) const;
  // The text of a scalar member; "" if there is none.
  std::string Text(std::string_view name) const;
  // The items of a sequence member; empty if there is none.
  const std::vector<YamlNode>& Items(std::string_view name) const;
};

Result<YamlNode> ParseYaml(std::string_view text);

}  // namespace vrun::gpu
