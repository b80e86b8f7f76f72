// SPDX-License-Identifier: Apache-2.0
// Runs a fuzz target in builds without a fuzzer: on its seeds, and on inputs that a fixed generator derives from them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/files.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

constexpr int kMade = 20'000;

// Copies to memory of exactly this size, so that a sanitizer detects reads past its end.
void Take(const std::string& input) {
  const auto bytes = std::make_unique<uint8_t[]>(input.size());
  std::copy(input.begin(), input.end(), bytes.get());
  LLVMFuzzerTestOneInput(bytes.get(), input.size());
}

std::string Near(std::string input, std::mt19937& random) {
  const auto below = [&](size_t n) { return n == 0 ? 0 : random() % n; };
  for (size_t changes = 1 + below(4); changes > 0; --changes) {
    const size_t at = below(input.size()), n = 1 + below(std::min<size_t>(input.size() - at, 16));
    switch (below(12)) {  // inputs with shifted bytes are mostly refused at once
      case 0: input.resize(at); break;
      case 1: input.insert(at, input.substr(at, n)); break;
      case 2: input.erase(at, n); break;
      case 3: input.insert(at, n, static_cast<char>(random())); break;
      default:
        if (at < input.size()) input[at] = static_cast<char>(input[at] ^ (1 << below(8)));
    }
  }
  return input;
}

TEST(Fuzz, SeedsAndWhatIsNearThem) {
  std::vector<std::string> seeds;
  for (const auto& file : std::filesystem::directory_iterator(VRUN_SEEDS)) {
    const auto seed = vrun::ReadFile(file.path());
    ASSERT_TRUE(seed) << seed.error().message();
    seeds.push_back(*seed);
  }
  ASSERT_FALSE(seeds.empty());
  std::sort(seeds.begin(), seeds.end());  // the directory order differs between runs
  for (const std::string& seed : seeds) Take(seed);
  std::mt19937 random(1);
  for (int i = 0; i < kMade; ++i) Take(Near(seeds[static_cast<size_t>(i) % seeds.size()], random));
}

}  // namespace
