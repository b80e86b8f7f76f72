// SPDX-License-Identifier: Apache-2.0
// What home does with single messages of a live view's series. The whole way is in tests/writeback/live_*_test.cc.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <stop_token>
#include <thread>

#include "base/files.h"
#include "home/apply.h"
#include "home/deny_list.h"

namespace vrun::home {
namespace {

using v1::WriteBack;

class ApplyLive : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(::mkdtemp(top_.data()), nullptr);
    ASSERT_EQ(::mkdir((top_ + "/root").c_str(), 0755), 0);
    Open();
  }
  void TearDown() override {
    applier_.reset();
    EXPECT_TRUE(RemoveTree(top_).has_value());
  }
  // Also as if the process before had died.
  void Open() {
    applier_.reset();
    ApplyOptions options;
    options.root = top_ + "/root";
    options.job = 7;
    options.attempt = 1;
    options.live = true;
    options.journal = top_ + "/journal";
    options.rules =
        [rules = DenyList({.root = Path(""), .homes = {}, .home_parents = {}, .own = {Path("/secret")}}).Current()] {
          return rules;
        };
    options.notice = [this](const std::string& text) { notices_.push_back(text); };
    auto applier = Applier::Open(std::move(options));
    ASSERT_TRUE(applier) << applier.error().message();
    applier_ = *std::move(applier);
  }
  std::string Path(const std::string& path) const { return top_ + "/root" + path; }
  std::string Read(const std::string& path) { return ReadFile(Path(path)).value_or("(none)"); }
  void Write(const std::string& path, const std::string& content) {
    const auto fd = OpenFile(Path(path), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    ASSERT_TRUE(fd && WriteAll(fd->get(), content));
  }
  WriteBack Message(const std::string& path) {
    WriteBack message;
    message.set_sequence(++next_);
    message.set_path(path);
    return message;
  }
  static void SetMeta(v1::Meta* meta, uint32_t mode) {
    meta->set_mode(mode);
    meta->set_uid(::geteuid());
    meta->set_gid(::getegid());
  }
  Status Put(const std::string& path, const std::string& content, v1::Over over = v1::NOTHING, uint64_t offset = 0) {
    VRUN_TRY(Begin(path, over, offset + content.size()));
    return Data(path, content, offset, true);
  }
  Status Begin(const std::string& path, v1::Over over, uint64_t size) {
    WriteBack put = Message(path);
    SetMeta(put.mutable_put_file()->mutable_meta(), S_IFREG | 0644);
    put.mutable_put_file()->set_size(size);
    put.mutable_put_file()->set_over(over);
    return applier_->Apply(put);
  }
  Status Data(const std::string& path, const std::string& content, uint64_t offset, bool last) {
    WriteBack data = Message(path);
    data.mutable_file_data()->set_offset(offset);
    data.mutable_file_data()->set_data(content);
    data.mutable_file_data()->set_last(last);
    return applier_->Apply(data);
  }

  std::string top_ = "/var/tmp/vrun-live-XXXXXX";
  std::unique_ptr<Applier> applier_;
  std::vector<std::string> notices_;
  uint64_t next_ = 0;
};

TEST_F(ApplyLive, TheLastWriterWins) {
  Write("/f", "of somebody else");
  ASSERT_TRUE(Put("/f", "of the job"));
  EXPECT_EQ(Read("/f"), "of the job");
  WriteBack remove = Message("/f");
  Write("/f", "changed since");
  remove.mutable_remove();
  ASSERT_TRUE(applier_->Apply(remove));
  EXPECT_FALSE(PathExists(Path("/f")));
  EXPECT_TRUE(notices_.empty());
}

// Somebody at home who writes to what the job has just put there, or puts his own in its place: the node must not take
// that for its own version.
TEST_F(ApplyLive, WhatSomebodyElseWroteMeanwhileIsNeverToldAsTheJobs) {
  const std::jthread somebody([&](const std::stop_token& stop) {
    for (unsigned i = 0; !stop.stop_requested(); ++i) {
      if (i % 4 == 0) {
        Write("/new", "his own, which is longer");
        ::rename(Path("/new").c_str(), Path("/f").c_str());
      }
      const UniqueFd fd(::open(Path("/f").c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
      if (fd) (void)!::write(fd.get(), "more", 4);
    }
  });
  size_t told = 0;
  for (int i = 0; i < 3'000; ++i) {
    ASSERT_TRUE(Put("/f", "of the job"));
    for (const v1::Applied& applied : applier_->TakeApplied()) {
      ASSERT_EQ(applied.size(), 10u) << i;
      ++told;
    }
  }
  EXPECT_GT(told, 0u);
}

TEST_F(ApplyLive, WhatSomebodyElseWroteBesideAnAppendIsNeverToldAsTheJobs) {
  for (const int when : {0, 1, 2}) {
    const std::string path = "/log" + std::to_string(when);
    ASSERT_TRUE(Put(path, "one two "));
    EXPECT_EQ(applier_->TakeApplied().size(), 1u);
    const auto write = [&](int now) {
      const UniqueFd fd(::open(Path(path).c_str(), O_WRONLY | O_CLOEXEC));
      if (now == when) ASSERT_EQ(::pwrite(fd.get(), "ONE", 3, 0), 3);
    };
    ASSERT_TRUE(Begin(path, v1::APPEND, 18));
    write(0);
    ASSERT_TRUE(Data(path, "three ", 8, false));
    write(1);
    ASSERT_TRUE(Data(path, "four", 14, true));
    EXPECT_EQ(applier_->TakeApplied().size(), when == 2 ? 1u : 0u);
    EXPECT_EQ(Read(path), when == 2 ? "one two three four" : "ONE two three four");
    // The next one has to come whole.
    const uint64_t before = applier_->sequence();
    write(2);
    ASSERT_TRUE(Put(path, "five", v1::APPEND, 18));
    EXPECT_EQ(applier_->TakeWantWhole(), before + 1);
    next_ = before;
  }
}

TEST_F(ApplyLive, AnAppendNeedsTheFileThatItIsAppendedTo) {
  ASSERT_TRUE(Put("/log", "one"));
  ASSERT_TRUE(Put("/log", "two", v1::APPEND, 3));
  EXPECT_EQ(Read("/log"), "onetwo");
  Write("/log", "other!");
  const uint64_t before = applier_->sequence();
  ASSERT_TRUE(Put("/log", "three", v1::APPEND, 6));
  ASSERT_TRUE(Put("/after", "x"));  // nothing is applied out of order
  EXPECT_EQ(Read("/log"), "other!");
  EXPECT_FALSE(PathExists(Path("/after")));
  EXPECT_EQ(applier_->sequence(), before);
  EXPECT_EQ(applier_->TakeWantWhole(), before + 1);
  next_ = before;
  ASSERT_TRUE(Put("/log", "onetwothree"));
  ASSERT_TRUE(Put("/after", "x"));
  EXPECT_EQ(Read("/log"), "onetwothree");
  EXPECT_EQ(Read("/after"), "x");
}

TEST_F(ApplyLive, AProcessThatFollowsKnowsWhatWasDone) {
  ASSERT_TRUE(Put("/a", "1"));
  ASSERT_TRUE(Put("/b", "2"));
  WriteBack exchange = Message("/b");
  exchange.mutable_rename()->set_from("/a");
  exchange.mutable_rename()->set_exchange(true);
  ASSERT_TRUE(applier_->Apply(exchange));
  Open();
  EXPECT_EQ(applier_->sequence(), next_);
  ASSERT_TRUE(applier_->Apply(exchange));  // again: nothing
  EXPECT_EQ(Read("/a"), "2");
  ASSERT_TRUE(Put("/a", "3", v1::APPEND, 1));
  EXPECT_EQ(Read("/a"), "23");
  EXPECT_EQ(applier_->TakeWantWhole(), 0u);
}

TEST_F(ApplyLive, WhatIsOfAnotherKindIsPutAside) {
  ASSERT_EQ(::mkdir(Path("/d").c_str(), 0755), 0);
  Write("/d/inside", "kept");
  ASSERT_TRUE(Put("/d", "a file"));
  EXPECT_EQ(Read("/d"), "a file");
  EXPECT_EQ(Read("/d.vrun-7/inside"), "kept");
  EXPECT_EQ(notices_.size(), 1u);
}

TEST_F(ApplyLive, WhatIsNotDurableYetCanBeExecuted) {
  ASSERT_TRUE(Put("/tool", "#!/bin/sh\nexit 7\n"));
  ASSERT_EQ(::chmod(Path("/tool").c_str(), 0755), 0);
  const int status = std::system(Path("/tool").c_str());
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 7);
  EXPECT_TRUE(applier_->Sync());
}

TEST_F(ApplyLive, WhatIsHiddenIsRefused) {
  ASSERT_EQ(::mkdir(Path("/secret").c_str(), 0700), 0);
  EXPECT_FALSE(Put("/secret/key", "x"));
  WriteBack away = Message("/elsewhere");
  away.mutable_rename()->set_from("/secret");
  EXPECT_FALSE(applier_->Apply(away));
  EXPECT_TRUE(PathExists(Path("/secret")));
}

}  // namespace
}  // namespace vrun::home
