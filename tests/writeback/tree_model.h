// SPDX-License-Identifier: Apache-2.0
// For write-back tests: random trees, random operations on them, and a complete description of a tree for comparison.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace vrun::test {

struct Described {
  mode_t mode = 0;
  uid_t uid = 0;
  gid_t gid = 0;
  int64_t mtime_ns = 0;
  ino_t ino = 0;
  nlink_t nlink = 0;
  std::string content;  // content of a file, or target of a symlink
  std::map<std::string, std::string> xattrs;
};
using Description = std::map<std::string, Described>;  // by path relative to the top; "" is the top

Description Describe(const std::string& top);
// Empty when both are equal except for inode numbers; else the differences. For files whose inode in `got` is in
// `shared`, only type and content are compared: they have several names in the lower layer, which the overlay does not
// keep together.
std::string Differences(const Description& want, const Description& got, const std::set<ino_t>& shared);

class RandomWork {
 public:
  RandomWork(std::string top, uint64_t seed) : top_(std::move(top)), random_(seed) {}
  void BuildTree(int entries, bool hard_links = true);
  // Performs one operation. Most succeed; all leave a valid tree.
  void Step();
  const std::vector<std::string>& log() const { return log_; }

 private:
  uint64_t Pick(uint64_t n) { return random_() % n; }
  std::string AnyDirectory();
  std::string AnyPath();
  std::string NewPath();
  std::string Bytes(size_t n);
  void Refresh();

  std::string top_;
  std::mt19937_64 random_;
  std::vector<std::string> directories_;
  std::vector<std::string> paths_;
  std::vector<std::string> log_;
};

}  // namespace vrun::test
