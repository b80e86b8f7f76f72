// SPDX-License-Identifier: Apache-2.0
#include "rpc/credentials.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <thread>
#include <vector>

#include "base/files.h"
#include "rpc/testing.h"

namespace vrun::rpc {
namespace {

mode_t ModeOf(const std::string& path) {
  struct stat st;
  return stat(path.c_str(), &st) == 0 ? st.st_mode & 07777 : 0;
}

TEST(Credentials, KeysArePrivateAndDirectoriesToo) {
  TestAuthority authority;
  const std::string dir = authority.directory() + "/n1";
  ASSERT_TRUE(EnsureCertificate(authority.directory(), dir, "node", "n1", 30));
  EXPECT_EQ(ModeOf(authority.directory() + "/ca.key"), 0600u);
  EXPECT_EQ(ModeOf(dir), 0700u);
  EXPECT_EQ(ModeOf(dir + "/n1.key"), 0600u);
  auto loaded = LoadCredentials(dir, "n1");
  ASSERT_TRUE(loaded) << loaded.error().message();
  EXPECT_EQ(loaded->ca, *ReadFile(authority.directory() + "/ca.pem"));
}

TEST(Credentials, AKeyThatOthersCanReadIsRefused) {
  TestAuthority authority;
  authority.Make("node", "n1");
  chmod((authority.directory() + "/n1.key").c_str(), 0644);
  auto loaded = LoadCredentials(authority.directory(), "n1");
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code(), Code::kDenied);
  EXPECT_NE(loaded.error().message().find("chmod 600"), std::string::npos);
  EXPECT_FALSE(EnsureCertificate(authority.directory(), authority.directory(), "node", "n1", 30));
  chmod((authority.directory() + "/ca.key").c_str(), 0640);
  EXPECT_EQ(EnsureAuthority(authority.directory()).error().code(), Code::kDenied);
}

TEST(Credentials, AreKeptWhileTheyAreGoodAndReplacedWhenNot) {
  TestAuthority authority;
  const std::string& dir = authority.directory();
  std::string first = authority.Make("node", "n1").certificate;
  EXPECT_EQ(authority.Make("node", "n1").certificate, first);
  EXPECT_TRUE(EnsureAuthority(dir));
  EXPECT_EQ(authority.Make("node", "n1").certificate, first) << "the authority must be kept";

  // Another role under the same name, a lost key, a torn file, and an approaching expiry.
  EXPECT_NE(authority.Make("home", "n1").certificate, first);
  std::filesystem::remove(dir + "/n1.key");
  EXPECT_TRUE(EnsureCertificate(dir, dir, "node", "n1", 30));
  ASSERT_TRUE(WriteFileAtomic(dir + "/n1.pem", "-----BEGIN CERTIFICATE-----\nrubbish", 0644));
  EXPECT_FALSE(LoadCredentials(dir, "n1"));
  EXPECT_TRUE(EnsureCertificate(dir, dir, "node", "n1", 0));
  EXPECT_EQ(LoadCredentials(dir, "n1").error().code(), Code::kDenied) << "has ended";
  EXPECT_TRUE(EnsureCertificate(dir, dir, "node", "n1", 30));
  EXPECT_TRUE(LoadCredentials(dir, "n1"));
}

TEST(Credentials, OfAnotherClusterAreNamedAsSuch) {
  TestAuthority one;
  TestAuthority two;
  Credentials mixed = one.Make("node", "n1");
  mixed.ca = two.Make("node", "n1").ca;
  auto check = CheckCredentials(mixed);
  ASSERT_FALSE(check);
  EXPECT_NE(check.error().message().find("another cluster"), std::string::npos);
  // The same directory under a new authority gets new certificates.
  EXPECT_TRUE(EnsureCertificate(two.directory(), one.directory(), "node", "n1", 30));
  EXPECT_TRUE(LoadCredentials(one.directory(), "n1"));
}

TEST(Credentials, OddNamesAreRefused) {
  TestAuthority authority;
  for (const char* name : {"", "a/b", "..", "ca", "a b", "a\nb", "x,DNS:controller.vrun"}) {
    EXPECT_EQ(EnsureCertificate(authority.directory(), authority.directory(), "node", name, 30).error().code(),
              Code::kInvalid)
        << name;
  }
  EXPECT_TRUE(
      EnsureCertificate(authority.directory(), authority.directory(), "home", std::string(150, 'u') + "@h", 30));
}

TEST(Credentials, ManyAtOnceMakeOneAuthority) {
  TestAuthority scratch;
  const std::string dir = scratch.directory() + "/new";
  std::vector<std::thread> threads;
  std::vector<int> fine(6);
  for (int i = 0; i < 6; ++i) {
    threads.emplace_back([&, i] {
      fine[i] = EnsureAuthority(dir).has_value() && EnsureCertificate(dir, dir, "node", "n1", 30).has_value() &&
                LoadCredentials(dir, "n1").has_value();
    });
  }
  for (auto& t : threads) t.join();
  EXPECT_EQ(fine, std::vector<int>(6, 1));
}

}  // namespace
}  // namespace vrun::rpc
