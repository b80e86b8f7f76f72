// SPDX-License-Identifier: Apache-2.0
#include "base/secrets/seal.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/files.h"

namespace vrun {
namespace {

class SealTest : public ::testing::Test {
 protected:
  SealTest() { VRUN_CHECK(::mkdtemp(directory_) != nullptr); }
  ~SealTest() override { static_cast<void>(RemoveTree(directory_)); }
  std::string Path(const char* name) { return std::string(directory_) + "/" + name; }
  char directory_[32] = "/tmp/vrun-seal-XXXXXX";
};

TEST_F(SealTest, OnlyTheKeyAndTheOwnerOpenIt) {
  const SealKey key = *SealKey::Create(Path("a")), other = *SealKey::Create(Path("b"));
  for (const std::string& text : {std::string(), std::string("secret"), std::string(1 << 20, 'x')}) {
    const std::string sealed = key.Seal(text, "anna");
    EXPECT_EQ(sealed.size(), text.size() + SealKey::kOverhead);
    EXPECT_NE(sealed, key.Seal(text, "anna"));
    EXPECT_EQ(*SealKey::Read(Path("a"))->Open(sealed, "anna"), text);
    EXPECT_FALSE(key.Open(sealed, "bob"));
    EXPECT_FALSE(other.Open(sealed, "anna"));
    for (size_t at : {size_t{0}, sealed.size() / 2, sealed.size() - 1}) {
      std::string changed = sealed;
      changed[at] = static_cast<char>(changed[at] ^ 1);
      EXPECT_FALSE(key.Open(changed, "anna")) << at;
    }
    EXPECT_FALSE(key.Open(std::string_view(sealed).substr(1), "anna"));
  }
  EXPECT_FALSE(key.Open("", "anna"));
}

TEST_F(SealTest, AKeyThatOthersReadIsNone) {
  ASSERT_TRUE(SealKey::Create(Path("a")));
  EXPECT_EQ(SealKey::Create(Path("a")).error().code(), Code::kExists);
  struct stat st {};
  ASSERT_EQ(::stat(Path("a").c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 07777, 0600u);
  ASSERT_EQ(::chmod(Path("a").c_str(), 0640), 0);
  EXPECT_EQ(SealKey::Read(Path("a")).error().code(), Code::kDenied);
  ASSERT_TRUE(WriteFileAtomic(Path("a"), "short", 0600));
  EXPECT_EQ(SealKey::Read(Path("a")).error().code(), Code::kCorrupt);
  EXPECT_EQ(SealKey::Read(Path("none")).error().code(), Code::kNotFound);
}

}  // namespace
}  // namespace vrun
