// SPDX-License-Identifier: Apache-2.0
// What the tests of the store share.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "base/files.h"
#include "store/store.h"
#include "store/testing/names_testing.h"

namespace vrun::store {

// Bytes determined only by (n, seed).
inline std::string Bytes(size_t n, int seed) {
  std::mt19937_64 random(static_cast<uint64_t>(seed) * 7919 + 1);
  std::string out(n + 8, '\0');
  for (size_t i = 0; i < n; i += 8) {
    const uint64_t v = random();
    for (size_t k = 0; k < 8; ++k) out[i + k] = static_cast<char>(v >> (8 * k));
  }
  out.resize(n);
  return out;
}

inline Status PutUnits(Object& object, std::string_view content, uint64_t first, uint64_t count) {
  std::vector<PutUnit> units;
  for (uint64_t u = first; u < first + count; ++u)
    units.push_back({UnitDigest(UnitOf(content, u)), UnitOf(content, u)});
  return object.Put(first, units);
}

inline Status PutAll(Object& object, std::string_view content) {
  return PutUnits(object, content, 0, UnitCount(content.size()));
}

// "" when a part is missing.
inline std::string ReadAll(Object& object) {
  std::string out(object.size(), '\0');
  auto n = object.Read(0, out.data(), out.size());
  out.resize(n ? *n : 0);
  return out;
}

// Reads every unit: each must be correct or absent.
inline void ExpectOnlyTrue(Object& object, std::string_view content) {
  for (uint64_t u = 0; u < UnitCount(content.size()); ++u) {
    std::string buffer(UnitOf(content, u).size(), '\0');
    auto n = object.Read(u * UnitBytes(content.size()), buffer.data(), buffer.size());
    if (n) {
      EXPECT_TRUE(buffer == UnitOf(content, u)) << "unit " << u;
    } else {
      EXPECT_EQ(n.error().code(), Code::kNotFound);
    }
  }
}

class StoreTestBase : public testing::Test {
 protected:
  StoreTestBase() {
    const char* tmp = std::getenv("TMPDIR");
    directory_ = std::string(tmp ? tmp : "/var/tmp") + "/vrun-store-test.XXXXXX";
    VRUN_CHECK(::mkdtemp(directory_.data()) != nullptr);
  }
  ~StoreTestBase() override { (void)RemoveTree(directory_); }

  std::unique_ptr<Store> Open(Options options = {.min_free_bytes = 0}) const {
    options.directory = directory_ + "/store";
    auto store = Store::Open(options);
    VRUN_CHECK(store);
    return std::move(*store);
  }
  std::string PathOf(const ObjectId& id) const {
    const std::string hex = id.digest.Hex();
    return directory_ + "/store/objects/" + hex.substr(0, 2) + "/" + hex + "." +
           static_cast<char>('0' + static_cast<int>(id.algorithm));
  }
  // The number of object files whose name contains `part`.
  int CountFiles(const std::string& part) const {
    int n = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory_ + "/store/objects")) {
      n += entry.is_regular_file() && entry.path().filename().string().find(part) != std::string::npos;
    }
    return n;
  }
  uint64_t DiskUse() const {
    uint64_t sum = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory_ + "/store")) {
      struct stat st;
      if (entry.is_regular_file() && ::stat(entry.path().c_str(), &st) == 0)
        sum += static_cast<uint64_t>(st.st_blocks) * 512;
    }
    return sum;
  }
  static int OpenDescriptors() {
    int n = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++n;
    return n;
  }

  std::string directory_;
};

}  // namespace vrun::store
