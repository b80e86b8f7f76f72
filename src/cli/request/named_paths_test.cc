// SPDX-License-Identifier: Apache-2.0
#include "cli/request/named_paths.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "base/files.h"

namespace vrun::cli {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class NamedPathsTest : public ::testing::Test {
 protected:
  NamedPathsTest() {
    std::string pattern = "/var/tmp/vrun-named-XXXXXX";
    root_ = ::mkdtemp(pattern.data());
    for (const char* d : {"/bin", "/tmp", "/project", "/home/ann"}) EXPECT_TRUE(MakeDirs(root_ + d, 0755));
    Put("/bin/prog", 0755);
    Put("/tmp/prog", 0755);
    Put("/tmp/data", 0644);
    Put("/project/data", 0644);
    EXPECT_EQ(0, ::symlink("/tmp/data", (root_ + "/project/link").c_str()));
    run_.mutable_spec()->mutable_command()->set_directory("/project");
  }
  ~NamedPathsTest() override { static_cast<void>(RemoveTree(root_)); }
  void Put(const std::string& path, mode_t mode) { EXPECT_TRUE(WriteFileAtomic(root_ + path, "x", mode)); }

  // The named paths of one role; "->" and the target follow a path that leads elsewhere.
  std::vector<std::string> Named(v1::NamedPath::Role role, const std::vector<std::string>& argv, size_t script = 0) {
    run_.clear_named();
    run_.mutable_spec()->mutable_command()->clear_argv();
    for (const std::string& word : argv) run_.mutable_spec()->mutable_command()->add_argv(word);
    AddNamedPaths(script, root_, &run_);
    std::vector<std::string> out;
    for (const v1::NamedPath& n : run_.named()) {
      if (n.role() == role) out.push_back(n.path() + (n.path() == n.leads_to() ? "" : "->" + n.leads_to()));
    }
    return out;
  }

  std::string root_;
  v1::Run run_;
};

TEST_F(NamedPathsTest, ArgumentsThatAreFilesHereByTheirPathsInTheRoot) {
  EXPECT_THAT(Named(v1::NamedPath::ARGUMENT, {"cat", "data", "link", "/tmp/data", "--in=/tmp/data", "if=/project/data",
                                              "nothing", "-x", "", "a=b"}),
              ElementsAre("/project/data", "/project/link->/tmp/data", "/tmp/data", "/tmp/data", "/project/data"));
  EXPECT_THAT(Named(v1::NamedPath::SCRIPT, {"/bin/sh", "-e", "link", "data"}, 2),
              ElementsAre("/project/link->/tmp/data"));
  EXPECT_THAT(Named(v1::NamedPath::DIRECTORY, {"x"}), ElementsAre("/project"));
}

TEST_F(NamedPathsTest, TheCommandAndWhatRunsWhereItIsNot) {
  run_.mutable_spec()->mutable_command()->add_environment("PATH=/no:/tmp:/bin:/project");
  EXPECT_THAT(Named(v1::NamedPath::COMMAND, {"prog"}), ElementsAre("/tmp/prog", "/bin/prog"));
  EXPECT_THAT(Named(v1::NamedPath::COMMAND, {"data"}), IsEmpty()) << "nobody may run it";
  EXPECT_THAT(Named(v1::NamedPath::COMMAND, {"./link"}), ElementsAre("/project/link->/tmp/data"));
  EXPECT_THAT(Named(v1::NamedPath::COMMAND, {"/nothing"}), IsEmpty());
}

TEST_F(NamedPathsTest, TheCacheDirectoryIsWhereTheUserMayWrite) {
  EXPECT_THAT(Named(v1::NamedPath::CACHE, {"x"}), IsEmpty());
  run_.mutable_spec()->mutable_command()->add_environment("HOME=/home/ann");
  EXPECT_THAT(Named(v1::NamedPath::CACHE, {"x"}), ElementsAre("/home/ann/.cache->/home/ann"));
  run_.mutable_spec()->mutable_command()->add_environment("XDG_CACHE_HOME=/project/c/d");
  EXPECT_THAT(Named(v1::NamedPath::CACHE, {"x"}), ElementsAre("/project/c/d->/project"));
  run_.mutable_spec()->mutable_command()->clear_environment();
  run_.mutable_spec()->mutable_command()->add_environment("HOME=/project/data");
  EXPECT_THAT(Named(v1::NamedPath::CACHE, {"x"}), IsEmpty()) << "it is a file";
}

}  // namespace
}  // namespace vrun::cli
