// SPDX-License-Identifier: Apache-2.0
#include "home/serve/private_files.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/unique_fd.h"
#include "home/root/secrets/own_list.h"
#include "home/testing/test_directory.h"

namespace vrun::home {
namespace {

class PrivateFilesTest : public ::testing::Test {
 protected:
  PrivateFilesTest() { Rules(); }

  void Rules() {
    trees_.SetRules(DenyList({root_.path(), {"/root"}, {}, {}, root_ / "admin", root_ / "user"}).Current());
  }
  void Put(const std::string& name, const std::string& content, mode_t mode) {
    root_.Put(name, content);
    ::chmod((root_ / name).c_str(), mode);
  }
  bool Served(const std::string& name) {
    const UniqueFd fd(::open((root_ / name).c_str(), O_RDONLY | O_CLOEXEC));
    struct stat st;
    EXPECT_EQ(0, ::fstat(fd.get(), &st)) << name;
    return bool(files_.Check(fd.get(), st, "/" + name));
  }

  TestDirectory root_;
  TreeTable trees_;
  PrivateFiles files_{&trees_, root_ / "memory"};
};

TEST_F(PrivateFilesTest, KeysAnywhere) {
  const std::string key = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3Blb\n";
  Put("srv/deploy", key, 0600);
  Put("srv/example.pem", key, 0644);
  Put("srv/aws", "[default]\naws_secret_access_key = x\n", 0600);
  Put("srv/notes", "nothing\n", 0600);
  Put("srv/empty", "", 0600);
  Put("srv/large", key + std::string(100'000, 'x'), 0600);
  EXPECT_FALSE(Served("srv/deploy"));
  EXPECT_FALSE(Served("srv/aws"));
  EXPECT_TRUE(Served("srv/example.pem")) << "test data of a project";
  EXPECT_TRUE(Served("srv/notes"));
  EXPECT_TRUE(Served("srv/empty"));
  EXPECT_TRUE(Served("srv/large"));
}

TEST_F(PrivateFilesTest, OtherNamesOfWhatIsDenied) {
  Put("root/.netrc", "machine x password y\n", 0600);
  Put("root/.aws/credentials", "a token\n", 0600);
  Put("srv/a", "x\n", 0600);
  ASSERT_EQ(0, ::link((root_ / "srv/a").c_str(), (root_ / "srv/b").c_str()));
  EXPECT_TRUE(Served("srv/b"));
  ASSERT_EQ(0, ::link((root_ / "root/.netrc").c_str(), (root_ / "srv/copy").c_str()));
  ASSERT_EQ(0, ::link((root_ / "root/.aws/credentials").c_str(), (root_ / "srv/other").c_str()));
  EXPECT_FALSE(Served("srv/copy"));
  EXPECT_FALSE(Served("srv/other"));
  EXPECT_TRUE(Served("srv/b"));
}

TEST_F(PrivateFilesTest, WhatWasPrivateOnceStaysSoUnderItsNextNames) {
  Put("root/.netrc", "machine x password y\n", 0600);
  Put("root/.aws/credentials", "a token\n", 0600);
  Put("root/notes", "nothing\n", 0600);
  const auto noted = [&](PrivateFiles* files) {
    files->Remember(*DenyList({root_.path(), {"/root"}, {}, {}, root_ / "admin", root_ / "user"}).Current(), true);
  };
  noted(&files_);
  ASSERT_EQ(0, ::rename((root_ / "root/.netrc").c_str(), (root_ / "root/x").c_str()));
  ASSERT_EQ(0, ::rename((root_ / "root/.aws/credentials").c_str(), (root_ / "root/y").c_str()));
  Rules();
  noted(&files_);
  EXPECT_FALSE(Served("root/x"));
  EXPECT_FALSE(Served("root/y"));
  EXPECT_TRUE(Served("root/notes"));
  // Its content in another file is not known again.
  Put("root/z", "machine x password y\n", 0600);
  EXPECT_TRUE(Served("root/z"));
  // After a restart of home.
  const auto served = [&](const PrivateFiles& files, const std::string& name) {
    const UniqueFd fd(::open((root_ / name).c_str(), O_RDONLY | O_CLOEXEC));
    struct stat st;
    EXPECT_EQ(0, ::fstat(fd.get(), &st));
    return bool(files.Check(fd.get(), st, "/" + name));
  };
  const PrivateFiles again(&trees_, root_ / "memory");
  EXPECT_FALSE(served(again, "root/x"));
  EXPECT_FALSE(served(again, "root/y"));
  EXPECT_TRUE(served(again, "root/z"));
  struct stat st;
  ASSERT_EQ(0, ::stat((root_ / "memory").c_str(), &st));
  EXPECT_EQ(st.st_mode & 0777, 0600u);
  // Exposed, it is served.
  const auto pin = trees_.Add(std::make_shared<tree::Tree>(), {"/root/x"});
  EXPECT_TRUE(served(again, "root/x"));
}

// Whoever takes a line out of his list wants the file served.
TEST_F(PrivateFilesTest, WhatAListWithheldIsNotRemembered) {
  Put("srv/data", "x\n", 0600);
  root_.Put("user", "/srv/data\n");
  files_.Remember(*DenyList({root_.path(), {"/root"}, {}, {}, root_ / "admin", root_ / "user"}).Current(), true);
  EXPECT_TRUE(Served("srv/data"));
}

TEST_F(PrivateFilesTest, WhatIsExposedIsServed) {
  Put("srv/deploy", "-----BEGIN RSA PRIVATE KEY-----\n", 0600);
  Put("srv/other", "-----BEGIN RSA PRIVATE KEY-----\n", 0600);
  auto tree = std::make_shared<tree::Tree>();
  const auto pin = trees_.Add(tree, {"/srv/deploy"});
  EXPECT_TRUE(Served("srv/deploy"));
  EXPECT_FALSE(Served("srv/other"));
  root_.Put("user", "!/srv/other\n");
  Rules();
  EXPECT_TRUE(Served("srv/other"));
}

TEST(OwnList, Lines) {
  const OwnList list =
      ParseOwnList("# c\n\n /srv/keys/ \r\n~/k\n!~/.netrc\n! /a\nrel\n/\n~/\n!", {"/root", "/home/ann"});
  EXPECT_THAT(list.withheld, testing::ElementsAre("/srv/keys", "/root/k", "/home/ann/k"));
  EXPECT_THAT(list.opened, testing::ElementsAre("/root/.netrc", "/home/ann/.netrc", "/a"));
  EXPECT_THAT(list.wrong, testing::ElementsAre("rel", "/", "~/", "!"));
}

}  // namespace
}  // namespace vrun::home
