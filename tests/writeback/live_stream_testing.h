// SPDX-License-Identifier: Apache-2.0
// Test fixture: a live view whose stream of writes is received by the test.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <memory>
#include <string>

#include "live_testing_home.h"
#include "vfs/testing/live_testing.h"

namespace vrun::test {

// The parameter: with or without requests for opens.
class LiveStreamTest : public vfs::LiveViewFixture, public testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    vfs::LiveViewFixture::SetUp();
    options_.journal = directory_.path() + "/journal";
    options_.publish_micros = 3'600'000'000;
    options_.no_open = GetParam();
  }
  // Home applies to a copy of its tree, so that tests of one file's content do not depend on what home has of it.
  void Begin() {
    ASSERT_EQ(::system(("cp -a '" + origin_ + "' '" + home_ + "'").c_str()), 0);
    Mount();
    ASSERT_TRUE(view_);
    ASSERT_EQ(view_->stats().no_open, options_.no_open);
    at_home_ = std::make_unique<HomeEnd>(home_, directory_.path() + "/apply");
  }
  void TearDown() override {
    at_home_.reset();
    vfs::LiveViewFixture::TearDown();
  }
  vfs::LiveStream& stream() {
    view_->SeeCloses();
    return *view_->stream();
  }
  void Put(const std::string& path, const std::string& content, int flags = O_TRUNC) {
    const UniqueFd fd(::open(In(path).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0644));
    ASSERT_TRUE(fd) << std::strerror(errno);
    ASSERT_TRUE(WriteAll(fd.get(), content));
  }
  // Makes a directory at home under the name of a removed file of the job; home has been told of the removal.
  void SeeADirectoryOfHomes(const std::string& path) {
    ASSERT_TRUE(MakeDirs(origin_ + path, 0755));
    at_home_->TakeAll(stream());
    ASSERT_TRUE(view_->Advance(Scan(), at_home_->sequence() >> 24));
    struct stat st {};
    ASSERT_EQ(::lstat(In(path).c_str(), &st), 0) << std::strerror(errno);
    EXPECT_TRUE(S_ISDIR(st.st_mode));
  }
  std::string AtHome(const std::string& path) { return ReadFile(home_ + path).value_or("(none)"); }
  ino_t InodeAtHome(const std::string& path) {
    struct stat st {};
    return ::lstat((home_ + path).c_str(), &st) == 0 ? st.st_ino : 0;
  }

  const std::string home_ = directory_.path() + "/home";
  std::unique_ptr<HomeEnd> at_home_;
};

}  // namespace vrun::test
