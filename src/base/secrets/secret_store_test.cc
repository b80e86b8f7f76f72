// SPDX-License-Identifier: Apache-2.0
#include "base/secrets/secret_store.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>

#include "base/files.h"

namespace vrun {
namespace {

class SecretStoreTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(::mkdtemp(directory_.data()), nullptr); }
  void TearDown() override { static_cast<void>(RemoveTree(directory_)); }
  mode_t ModeOf(const std::string& path) const {
    struct stat st {};
    return ::stat((directory_ + path).c_str(), &st) == 0 ? st.st_mode & 07777 : 0;
  }

  std::string directory_ = "/tmp/vrun-secrets-XXXXXX";
};

TEST_F(SecretStoreTest, StoresAnyBytesForTheUserAlone) {
  const SecretStore store(directory_);
  EXPECT_TRUE(store.List()->empty());
  const std::string value("a\0\n\xff", 4);
  ::umask(0);
  ASSERT_TRUE(store.Set("token", value));
  ASSERT_TRUE(store.Set("other.key-1", ""));
  EXPECT_EQ(*store.Get("token"), value);
  EXPECT_EQ(*store.Get("other.key-1"), "");
  EXPECT_EQ(ModeOf("/secrets"), 0700u);
  EXPECT_EQ(ModeOf("/secrets/token"), 0600u);
  ASSERT_TRUE(store.Set("token", "new"));
  EXPECT_EQ(*store.Get("token"), "new");
  ASSERT_EQ(store.List()->size(), 2u);
  EXPECT_EQ((*store.List())[0].name, "other.key-1");
  EXPECT_EQ((*store.List())[1].bytes, 3u);
  ASSERT_TRUE(store.Delete("token"));
  EXPECT_EQ(store.Delete("token").error().code(), Code::kNotFound);
  EXPECT_EQ(store.Get("token").error().code(), Code::kNotFound);
}

TEST_F(SecretStoreTest, NamesLeadNowhereElse) {
  const SecretStore store(directory_);
  ASSERT_TRUE(WriteFileAtomic(directory_ + "/outside", "x", 0600));
  for (const std::string& name :
       {std::string(), std::string("."), std::string(".."), std::string("../outside"), std::string("a/b"),
        std::string("/etc/passwd"), std::string(".hidden"), std::string("-x"), std::string("a b"), std::string("a\n"),
        std::string("a\0b", 3), std::string(65, 'a')}) {
    EXPECT_EQ(store.Set(name, "x").error().code(), Code::kInvalid) << name;
    EXPECT_EQ(store.Get(name).error().code(), Code::kInvalid) << name;
    EXPECT_EQ(store.Delete(name).error().code(), Code::kInvalid) << name;
  }
  EXPECT_TRUE(store.Set(std::string(64, 'a'), "x"));
}

TEST_F(SecretStoreTest, Bounds) {
  const SecretStore store(directory_);
  EXPECT_TRUE(store.Set("large", std::string(kMostSecretBytes, 'x')));
  EXPECT_FALSE(store.Set("large", std::string(kMostSecretBytes + 1, 'x')));
  EXPECT_EQ(store.Get("large")->size(), kMostSecretBytes);
  EXPECT_FALSE(CheckSecretVariable("large", std::string(kMostSecretBytes, 'x')));
  EXPECT_FALSE(CheckSecretVariable("binary", std::string_view("a\0b", 3)));
  EXPECT_TRUE(CheckSecretVariable("text", "a b\n"));
}

}  // namespace
}  // namespace vrun
