// SPDX-License-Identifier: Apache-2.0
#include "home/runs/command/mirrored.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "home/testing/test_directory.h"

namespace vrun::home {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class NamedCheckTest : public ::testing::Test {
 protected:
  void Name(v1::NamedPath::Role role, const std::string& path, const std::string& leads_to = "") {
    v1::NamedPath* named = run_.add_named();
    named->set_role(role);
    named->set_path(path);
    named->set_leads_to(leads_to.empty() ? path : leads_to);
  }
  NamedCheck Check() {
    MirroredPlaces places(root_.path());
    return CheckNamed(run_, &places, DenyList({root_.path(), {"/root"}, {}, {root_ / "own"}}).Current().get());
  }
  std::string Refusal() {
    const NamedCheck check = Check();
    return check.refusal ? check.refusal->message() : "";
  }

  TestDirectory root_;
  v1::Run run_;
};

TEST_F(NamedCheckTest, WhatJobsSeeIsNotSpokenOf) {
  Name(v1::NamedPath::DIRECTORY, "/project");
  Name(v1::NamedPath::COMMAND, "/usr/bin/python3");
  Name(v1::NamedPath::ARGUMENT, "/project/train.py");
  Name(v1::NamedPath::ARGUMENT, "/dev/null");
  Name(v1::NamedPath::ARGUMENT, "/proc/cpuinfo");
  Name(v1::NamedPath::ARGUMENT, "/tmp");  // as a place for the job's own files
  Name(v1::NamedPath::ARGUMENT, "/var/tmp/x");
  Name(v1::NamedPath::ARGUMENT, "/tmpx");
  Name(v1::NamedPath::CACHE, "/root/.cache");
  const NamedCheck check = Check();
  EXPECT_FALSE(check.refusal);
  EXPECT_THAT(check.notices, IsEmpty());
  EXPECT_EQ("/root/.cache", check.cache);
}

TEST_F(NamedCheckTest, ACommandInTmpIsRefusedByName) {
  Name(v1::NamedPath::COMMAND, "/tmp/x.sh");
  EXPECT_EQ(
      "/tmp/x.sh: /tmp is not mirrored, the job has its own: copy it to a directory that is mirrored, such as your "
      "home "
      "directory",
      Refusal());
  EXPECT_TRUE(Check().not_found);
}

TEST_F(NamedCheckTest, ALinkThatLeadsToTmpIsToo) {
  Name(v1::NamedPath::SCRIPT, "/project/x.sh", "/tmp/x.sh");
  EXPECT_THAT(Refusal(), HasSubstr("/project/x.sh (/tmp/x.sh): /tmp is not mirrored"));
  EXPECT_FALSE(Check().not_found);
}

TEST_F(NamedCheckTest, ACommandThatAnotherOneOfPathWouldReplaceIsSaid) {
  Name(v1::NamedPath::COMMAND, "/tmp/venv/bin/python");
  Name(v1::NamedPath::COMMAND, "/usr/bin/python");
  const NamedCheck check = Check();
  EXPECT_FALSE(check.refusal);
  EXPECT_THAT(check.notices, ElementsAre("/tmp/venv/bin/python: /tmp is not mirrored, the job has its own: "
                                         "/usr/bin/python runs instead"));
}

TEST_F(NamedCheckTest, AWorkingDirectoryInTmpIsRefusedAndTmpItselfIsSaid) {
  Name(v1::NamedPath::DIRECTORY, "/tmp/work");
  EXPECT_THAT(Refusal(), HasSubstr("working directory /tmp/work: /tmp is not mirrored"));
  run_.clear_named();
  Name(v1::NamedPath::DIRECTORY, "/tmp");
  EXPECT_EQ("", Refusal());
  EXPECT_THAT(Check().notices, ElementsAre(HasSubstr("working directory /tmp: /tmp is not mirrored")));
}

TEST_F(NamedCheckTest, ArgumentsThatTheJobWillNotSeeAreSaid) {
  Name(v1::NamedPath::ARGUMENT, "/run/user/1000/x");
  Name(v1::NamedPath::ARGUMENT, "/dev/shm/x");
  Name(v1::NamedPath::ARGUMENT, "/root/.ssh/id_rsa");
  Name(v1::NamedPath::ARGUMENT, "/own/x");
  const NamedCheck check = Check();
  EXPECT_FALSE(check.refusal);
  EXPECT_THAT(
      check.notices,
      ElementsAre(HasSubstr("/run is not mirrored"), HasSubstr("/dev/shm is not mirrored"),
                  "/root/.ssh/id_rsa: it is private and not served to jobs: `--expose /root/.ssh/id_rsa` serves "
                  "it to this one",
                  HasSubstr("vrun's own")));
  EXPECT_THAT(check.hidden, ElementsAre("/root/.ssh/id_rsa", "/own/x"));
  run_.add_expose("/root/.ssh");
  run_.clear_named();
  Name(v1::NamedPath::ARGUMENT, "/root/.ssh/id_rsa");
  EXPECT_THAT(Check().notices, IsEmpty());
}

TEST_F(NamedCheckTest, ACacheDirectoryThatJobsDoNotSeeIsNone) {
  Name(v1::NamedPath::CACHE, "/root/.cache", "/tmp/cache");
  EXPECT_EQ("", Check().cache);
}

TEST(MirroredPlaces, AFileSystemThatIsNotLocalIsNamed) {
  TestDirectory directory;
  directory.Put("mountinfo",
                "20 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
                "21 20 0:30 / /data rw - nfs4 server:/data rw\n"
                "22 20 8:2 / /scratch rw - xfs /dev/sdb1 rw\n");
  MirroredPlaces places("/", directory / "mountinfo");
  EXPECT_FALSE(places.WhyNot("/home/x", nullptr, {}));
  EXPECT_FALSE(places.WhyNot("/scratch/x", nullptr, {}));
  EXPECT_FALSE(places.WhyNot("/database", nullptr, {}));
  const auto absence = places.WhyNot("/data/set/x", nullptr, {});
  ASSERT_TRUE(absence);
  EXPECT_EQ("/data (nfs4) is not a local file system and not mirrored", absence->why);
  EXPECT_FALSE(absence->itself);
  EXPECT_TRUE(places.WhyNot("/data", nullptr, {})->itself);
}

}  // namespace
}  // namespace vrun::home
