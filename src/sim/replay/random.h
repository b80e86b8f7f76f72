// SPDX-License-Identifier: Apache-2.0
// The standard's distributions differ between libraries; these do not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

namespace vrun::sim {

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  size_t Below(size_t n) { return static_cast<size_t>(static_cast<unsigned __int128>(engine_()) * n >> 64); }
  template <typename T>
  void Shuffle(std::vector<T>* v) {
    for (size_t i = v->size(); i > 1; --i) std::swap((*v)[i - 1], (*v)[Below(i)]);
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace vrun::sim
