// SPDX-License-Identifier: Apache-2.0
#include "home/root/deny_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "home/testing/test_directory.h"
#include "tree/diff.h"

namespace vrun::home {
namespace {

TEST(DenyList, PatternsHomesAndExpose) {
  TestDirectory root;
  root.Put("root/.ssh/id_ed25519", "k");
  root.Put("root/.ssh/deploy.pem", "k");
  root.Put("root/.ssh/known_hosts", "k");
  root.Put("home/ann/.mozilla/x", "k");
  root.Put("home/ann/.config/gcloud/a/b", "k");
  root.Put("home/ann/.config/gcloud/a/c", "k");
  root.Put("elsewhere/kube", "k");
  root.Put("own/key", "k");
  ASSERT_EQ(::symlink((root / "elsewhere").c_str(), (root / "home/ann/.kube").c_str()), 0);
  DenyList list({root.path(), {"/root"}, {"/home"}, {root / "own"}});
  auto rules = list.Current();
  EXPECT_TRUE(rules->Denies("/root/.ssh/id_ed25519"));
  EXPECT_TRUE(rules->Denies("/root/.ssh/id_of_tomorrow"));
  EXPECT_FALSE(rules->Denies("/root/.ssh/id_ed25519.pub"));
  EXPECT_TRUE(rules->Denies("/root/.ssh/deploy.pem"));
  EXPECT_FALSE(rules->Denies("/root/.ssh/known_hosts"));
  EXPECT_FALSE(rules->Denies("/root/.ssh"));
  EXPECT_TRUE(rules->Denies("/home/ann/.aws"));
  EXPECT_TRUE(rules->Denies("/home/bob/.aws/credentials"));
  EXPECT_FALSE(rules->Denies("/home/ann/.awsome"));
  EXPECT_FALSE(rules->Denies("/srv/.aws/x"));
  EXPECT_TRUE(rules->Denies("/home/ann/.config/gcloud/a/b"));
  EXPECT_FALSE(rules->Denies("/home/ann/.config"));
  EXPECT_TRUE(rules->Denies("/elsewhere/kube")) << "what a denied link points at";
  EXPECT_TRUE(rules->Denies("/own/key"));
  EXPECT_TRUE(rules->Denies("/own/key", {"/own"})) << "our own state cannot be exposed";

  EXPECT_FALSE(rules->Denies("/home/ann/.config/gcloud/a/b", {"/home/ann/.config/gcloud/a"}));
  EXPECT_TRUE(rules->Denies("/home/ann/.aws/x", {"/home/ann/.config"}));

  auto hidden = rules->Hidden();
  EXPECT_THAT(hidden, testing::IsSupersetOf({"/root/.ssh/id_ed25519", "/root/.ssh/deploy.pem",
                                             "/home/ann/.config/gcloud", "/own", "/elsewhere"}));
  hidden = rules->Hidden({"/home/ann/.config/gcloud/a/b"});
  EXPECT_THAT(hidden, testing::Not(testing::Contains("/home/ann/.config/gcloud")));
  EXPECT_THAT(hidden, testing::Contains("/home/ann/.config/gcloud/a/c"));
  EXPECT_THAT(hidden, testing::Not(testing::Contains("/home/ann/.config/gcloud/a/b")));

  tree::DirtySet dirty;
  dirty.names["/var/log"] = {"x"};
  EXPECT_FALSE(list.Concerns(dirty));
  dirty.names["/root/.ssh"] = {"id_new"};
  EXPECT_TRUE(list.Concerns(dirty));
}

TEST(DenyList, WhatAProgramMayMissIsInItsUsersHomeAndThere) {
  TestDirectory root;
  root.Put("root/.ssh/id_of_a_customer", "k");
  root.Put("root/.netrc", "k");
  root.Put("home/ann/.netrc", "k");
  root.Put("etc/shadow", "k");
  root.Put("own/key", "k");
  root.Put("srv/private", "k");
  root.Put("admin", "/srv\n");
  DenyList::Options options{root.path(), {"/root"}, {"/home"}, {root / "own"}};
  options.admin_list = root / "admin";
  const auto rules = DenyList(options).Current();
  const auto names = rules->Missable(256);
  EXPECT_THAT(names, testing::IsSupersetOf({"/root/.netrc", "/root/.aws", "/root/.ssh/id_ed25519",
                                            "/root/.ssh/id_of_a_customer", "/etc/shadow"}));
  for (const std::string& name : names) {
    EXPECT_FALSE(name.starts_with("/home") || name.starts_with("/own") || name.starts_with("/srv")) << name;
  }
  EXPECT_EQ(rules->Missable(3).size(), 3u);
  EXPECT_TRUE(rules->Misses("/root/.netrc"));
  EXPECT_TRUE(rules->Misses("/root/.ssh/id_of_a_customer"));
  EXPECT_FALSE(rules->Misses("/root/.aws"));
  EXPECT_FALSE(rules->Misses("/root/.ssh"));
}

// A move of a directory is checked against what exists now, not at the time of the rules.
TEST(DenyList, WhatADirectoryHidesIsAskedOfTheDisk) {
  TestDirectory root;
  root.Put("root/.ssh/known_hosts", "k");
  root.Put("root/.config/editor/settings", "k");
  root.Put("home/notes.txt", "k");
  root.Put("own/key", "k");
  const auto rules = DenyList({root.path(), {"/root"}, {"/home"}, {root / "own"}}).Current();
  for (const char* path :
       {"/root", "/root/.ssh", "/root/.config", "/home", "/home/notes.txt", "/home/bob", "/srv", "/owner"}) {
    EXPECT_FALSE(rules->HidesBelow(path)) << path;
  }
  EXPECT_TRUE(rules->HidesBelow("/own"));
  EXPECT_TRUE(rules->HidesBelow("/"));

  root.Put("root/.ssh/id_rsa.pub", "k");
  EXPECT_FALSE(rules->HidesBelow("/root"));
  root.Put("root/.ssh/id_rsa", "k");
  root.Put("home/bob/.config/gcloud/token", "k");
  root.Put("home/notes/.aws/credentials", "k");
  for (const char* path : {"/root", "/root/.ssh", "/root/.ssh/id_rsa", "/home", "/home/bob", "/home/bob/.config",
                           "/home/bob/.config/gcloud", "/home/notes"}) {
    EXPECT_TRUE(rules->HidesBelow(path)) << path;
  }
  for (const char* path :
       {"/root/.ssh/known_hosts", "/root/.config", "/home/notes.txt", "/home/bo", "/home/bob/.cache"}) {
    EXPECT_FALSE(rules->HidesBelow(path)) << path;
  }
  EXPECT_FALSE(rules->HidesBelow("/root/.ssh", {"/root/.ssh/id_rsa"}));
  EXPECT_TRUE(rules->HidesBelow("/home/bob", {"/home/bob/.config/gcloud/another"}));
}

TEST(DenyList, TheMachinesOwnAndListsOfPeople) {
  TestDirectory root;
  for (const char* name : {"etc/shadow", "etc/ssh/ssh_host_rsa_key", "etc/ssh/ssh_host_rsa_key.pub", "etc/passwd",
                           "root/.netrc", "root/.cache/huggingface/token", "srv/keys/a", "srv/team/key"}) {
    root.Put(name, "k");
  }
  root.Put("admin", "/srv/keys\n");
  root.Put("user", "/srv/team\n!~/.netrc\n!/srv/keys\n");
  const auto rules = DenyList({root.path(), {"/root"}, {}, {}, root / "admin", root / "user"}).Current();
  for (const char* path :
       {"/etc/shadow", "/etc/ssh/ssh_host_rsa_key", "/root/.cache/huggingface/token", "/srv/keys/a", "/srv/team/key"}) {
    EXPECT_TRUE(rules->Denies(path)) << path;
  }
  for (const char* path :
       {"/etc/passwd", "/etc/ssh/ssh_host_rsa_key.pub", "/root/.netrc", "/root/.cache/huggingface"}) {
    EXPECT_FALSE(rules->Denies(path)) << path;
  }
  EXPECT_TRUE(rules->Denies("/srv/keys/a", {"/srv/keys"})) << "what the administrator withholds is not opened";
  EXPECT_FALSE(rules->Denies("/srv/team/key", {"/srv/team"}));
  const auto hidden = rules->Hidden();
  EXPECT_THAT(hidden, testing::IsSupersetOf({"/etc/shadow", "/etc/ssh/ssh_host_rsa_key", "/srv/keys", "/srv/team"}));
  EXPECT_THAT(hidden, testing::Not(testing::Contains("/root/.netrc")));
  EXPECT_TRUE(rules->HidesBelow("/etc/ssh"));
}

}  // namespace
}  // namespace vrun::home
