// SPDX-License-Identifier: Apache-2.0
// The list that a user or an administrator adds to the deny-list (deny_list.h), one path a line:
//
//   /srv/keys       not served, nor what is below
//   ~/team.key      in each home directory that home knows
//   !~/.netrc       served, although vrun's own list has it
//   # a comment
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace vrun::home {

struct OwnList {
  std::vector<std::string> withheld, opened;  // absolute and clean
  std::vector<std::string> wrong;             // lines that are none of the above
};

OwnList ParseOwnList(std::string_view text, const std::vector<std::string>& homes);
// Empty if there is no file. Problems are logged.
OwnList ReadOwnList(const std::string& file, const std::vector<std::string>& homes);

}  // namespace vrun::home
