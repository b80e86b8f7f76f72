// SPDX-License-Identifier: Apache-2.0
// How home applies single messages of a live view's series. The whole path is tested in tests/writeback/live_*_test.cc.
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
#include "home/apply/apply.h"
#include "home/apply/apply_journal.h"
#include "home/root/deny_list.h"

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
  // Also simulates a crash of the previous process.
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

// Somebody at home writes to a file that the job has just put there, or replaces it: the node must not take that for
// its own version.
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
      if (now == when) {
        ASSERT_EQ(::pwrite(fd.get(), "ONE", 3, 0), 3);
      }
    };
    ASSERT_TRUE(Begin(path, v1::APPEND, 18));
    write(0);
    ASSERT_TRUE(Data(path, "three ", 8, false));
    write(1);
    ASSERT_TRUE(Data(path, "four", 14, true));
    EXPECT_EQ(applier_->TakeApplied().size(), when == 2 ? 1u : 0u);
    EXPECT_EQ(Read(path), when == 2 ? "one two three four" : "ONE two three four");
    // The next data still goes behind that.
    write(2);
    ASSERT_TRUE(Put(path, "five", v1::APPEND, 18));
    EXPECT_EQ(Read(path), "ONE two three fourfive");
    EXPECT_EQ(applier_->TakeApplied().size(), 0u);
    EXPECT_EQ(applier_->TakeWantWhole(), 0u);
  }
}

TEST_F(ApplyLive, WhatBothAppendIsAllThere) {
  Write("/log", "home 1\n");
  const auto append = [&](const std::string& text) {
    const UniqueFd fd(::open(Path("/log").c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
    ASSERT_EQ(::write(fd.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  };
  struct stat before {
  }, after{};
  ASSERT_EQ(::stat(Path("/log").c_str(), &before), 0);
  const auto over_homes = [&](const std::string& text) {
    WriteBack put = Message("/log");
    SetMeta(put.mutable_put_file()->mutable_meta(), S_IFREG | 0644);
    put.mutable_put_file()->set_size(7 + text.size());
    put.mutable_put_file()->set_over(v1::APPEND);
    put.mutable_base()->set_ino(before.st_ino);
    put.mutable_base()->set_ctime_ns(int64_t{before.st_ctim.tv_sec} * 1'000'000'000 + before.st_ctim.tv_nsec);
    put.mutable_base()->set_size(7);
    return applier_->Apply(put);
  };
  append("home 2\n");
  ASSERT_TRUE(over_homes("job 1\n"));
  append("home 3\n");  // between the parts
  ASSERT_TRUE(Data("/log", "job 1\n", 7, true));
  EXPECT_EQ(Read("/log"), "home 1\nhome 2\nhome 3\njob 1\n");
  append("home 4\n");
  ASSERT_TRUE(Put("/log", "job 2\n", v1::APPEND, 13));  // the end as the node knows it
  EXPECT_EQ(Read("/log"), "home 1\nhome 2\nhome 3\njob 1\nhome 4\njob 2\n");
  ASSERT_EQ(::stat(Path("/log").c_str(), &after), 0);
  EXPECT_EQ(before.st_ino, after.st_ino) << "`tail -f` goes on";

  // A crashed process may have applied a part: never twice.
  append("home 5\n");
  for (const std::string part : {"", "jo", "job 3\n"}) {
    const std::string all = Read("/log");
    const uint64_t last = next_;
    ASSERT_TRUE(Begin("/log", v1::APPEND, 25));
    ASSERT_TRUE(Data("/log", part, 19, false));
    Open();
    next_ = last;
    ASSERT_TRUE(Begin("/log", v1::APPEND, 25));
    ASSERT_TRUE(Data("/log", "job 3\n", 19, true));
    EXPECT_EQ(applier_->TakeWantWhole(), 0u);
    EXPECT_EQ(Read("/log"), all + "job 3\n") << part;
  }
}

// The given version of home's file is outdated.
TEST_F(ApplyLive, AHoleThatWasAppendedIsThereWhateverHomeHasDone) {
  const auto put = [&](const struct stat& base, uint64_t ctime_ns) {
    WriteBack message = Message("/f");
    SetMeta(message.mutable_put_file()->mutable_meta(), S_IFREG | 0644);
    message.mutable_put_file()->set_size(12);
    message.mutable_put_file()->set_over(v1::APPEND);
    message.mutable_base()->set_ino(base.st_ino);
    message.mutable_base()->set_ctime_ns(static_cast<int64_t>(ctime_ns));
    message.mutable_base()->set_size(5);
    ASSERT_TRUE(applier_->Apply(message));
    ASSERT_TRUE(Data("/f", "", 5, false));
    ASSERT_TRUE(Data("/f", "job", 8, false));
    ASSERT_TRUE(Data("/f", "", 12, true));
  };
  const std::string appended = std::string(3, '\0') + "job" + std::string(1, '\0');
  for (const std::string home : {"home\n", "home\nmore\n"}) {
    Write("/f", home);
    struct stat st {};
    ASSERT_EQ(::stat(Path("/f").c_str(), &st), 0);
    put(st, 1);  // of another ctime
    EXPECT_EQ(Read("/f"), home + appended);
    EXPECT_EQ(applier_->TakeWantWhole(), 0u);
  }
}

TEST_F(ApplyLive, NoLineIsLostHoweverFastBothAppend) {
  ASSERT_TRUE(Put("/log", ""));
  size_t of_home = 0, size = 0;
  {
    const std::jthread home([&](const std::stop_token& stop) {
      const UniqueFd fd(::open(Path("/log").c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
      for (; !stop.stop_requested(); ++of_home) {
        ASSERT_EQ(::write(fd.get(), "home\n", 5), 5);
        ::usleep(20);
      }
    });
    for (int i = 0; i < 500; ++i, size += 4) ASSERT_TRUE(Put("/log", "job\n", v1::APPEND, size));
  }
  const std::string all = Read("/log");
  size_t home = 0, job = 0;
  for (size_t at = 0; at < all.size(); at = all.find('\n', at) + 1) {
    home += all.compare(at, 5, "home\n") == 0 ? 1u : 0u;
    job += all.compare(at, 4, "job\n") == 0 ? 1u : 0u;
  }
  EXPECT_EQ(job, 500u);
  EXPECT_EQ(home, of_home);
}

TEST_F(ApplyLive, WhatIsWrittenInPlaceIsWrittenIntoTheFileThatHomeHasOpen) {
  ASSERT_TRUE(Put("/f", std::string(5'000, 'a')));
  const UniqueFd open(::open(Path("/f").c_str(), O_RDONLY | O_CLOEXEC));
  const auto put = [&](v1::Over over, uint64_t size, const std::string& data, uint64_t offset,
                       uint64_t linked) -> Status {
    WriteBack message = Message("/f");
    SetMeta(message.mutable_put_file()->mutable_meta(), S_IFREG | 0644);
    message.mutable_put_file()->set_size(size);
    message.mutable_put_file()->set_over(over);
    message.mutable_put_file()->set_linked(linked);
    VRUN_TRY(applier_->Apply(message));
    return Data("/f", data, offset, true);
  };
  const auto read = [&] { return ReadFile("/proc/self/fd/" + std::to_string(open.get())).value_or("(none)"); };
  ASSERT_TRUE(put(v1::PATCH, 5'000, "patched", 100, UINT64_MAX));
  EXPECT_EQ(read(), std::string(100, 'a') + "patched" + std::string(4'893, 'a'));
  ASSERT_TRUE(put(v1::NOTHING, 3, "new", 0, UINT64_MAX));
  EXPECT_EQ(read(), "new");
  ASSERT_TRUE(put(v1::NOTHING, 100'000, "end", 99'997, UINT64_MAX));
  EXPECT_EQ(read(), std::string(99'997, '\0') + "end");
  EXPECT_EQ(read(), Read("/f"));
  // The job's replacement is another file.
  ASSERT_TRUE(put(v1::NOTHING, 5, "other", 0, 0));
  EXPECT_EQ(Read("/f"), "other");
  EXPECT_EQ(read().size(), 100'000u);
  // A patch that was applied in part when home died is applied again.
  const std::string before(10'000, 'b');
  ASSERT_TRUE(put(v1::NOTHING, before.size(), before, 0, UINT64_MAX));
  struct stat st {};
  ASSERT_EQ(::stat(Path("/f").c_str(), &st), 0);
  applier_.reset();
  ApplyJournal::Open(top_ + "/journal", 1)->SetIntent({next_ + 1, st.st_dev, st.st_ino, 0});
  const auto half = OpenFile(Path("/f"), O_WRONLY);
  ASSERT_TRUE(PwriteAll(half->get(), "PA", 10));
  Open();
  ASSERT_TRUE(put(v1::PATCH, before.size(), "PATCH", 10, UINT64_MAX));
  EXPECT_EQ(applier_->TakeWantWhole(), 0u);
  EXPECT_EQ(Read("/f"), std::string(10, 'b') + "PATCH" + std::string(9'985, 'b'));
}

TEST_F(ApplyLive, WhatWasOnlyAppendedToAFileThatIsGoneOrAnotherIsNotLost) {
  const auto any = [&](const std::string& path, const std::string& text) {
    WriteBack put = Message(path);
    SetMeta(put.mutable_put_file()->mutable_meta(), S_IFREG | 0644);
    put.mutable_put_file()->set_size(100 + text.size());
    put.mutable_put_file()->set_over(v1::APPEND_ANY);
    put.mutable_put_file()->set_append_from(100);
    ASSERT_TRUE(applier_->Apply(put));
    ASSERT_TRUE(Data(path, text, 100, true));
  };
  Write("/new", "another log\n");
  any("/new", "of the job\n");
  EXPECT_EQ(Read("/new"), "another log\nof the job\n");
  any("/none", "of the job\n");
  EXPECT_EQ(Read("/none"), "of the job\n");
  // What cannot be sent counts as lost.
  WriteBack given_up = Message("/patched");
  given_up.mutable_set_meta()->mutable_meta();
  EXPECT_EQ(applier_->Apply(given_up).error().code(), Code::kAborted);
  given_up = Message("/patched");
  given_up.mutable_set_meta()->mutable_meta();
  EXPECT_TRUE(applier_->Apply(given_up)) << "once";
}

TEST_F(ApplyLive, AFileThatIsMadeToAppendReplacesNothing) {
  const auto made = [&](const std::string& text) {
    WriteBack put = Message("/log");
    SetMeta(put.mutable_put_file()->mutable_meta(), S_IFREG | 0640);
    put.mutable_put_file()->set_size(text.size());
    put.mutable_put_file()->set_over(v1::APPEND_ANY);
    ASSERT_TRUE(applier_->Apply(put));
    ASSERT_TRUE(Data("/log", text, 0, true));
  };
  made("");
  EXPECT_EQ(Read("/log"), "");
  struct stat st {};
  ASSERT_EQ(::stat(Path("/log").c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 07777, 0640u);
  made("of one node\n");
  made("of another\n");
  EXPECT_EQ(Read("/log"), "of one node\nof another\n");
}

TEST_F(ApplyLive, AFileWithOtherNamesChangesUnderAll) {
  Write("/a", "both");
  ASSERT_EQ(::link(Path("/a").c_str(), Path("/b").c_str()), 0);
  struct stat st {};
  ASSERT_EQ(::stat(Path("/a").c_str(), &st), 0);
  const auto put = [&](const std::string& content, uint64_t linked) {
    WriteBack message = Message("/a");
    SetMeta(message.mutable_put_file()->mutable_meta(), S_IFREG | 0640);
    message.mutable_put_file()->set_size(content.size());
    message.mutable_put_file()->set_linked(linked);
    ASSERT_TRUE(applier_->Apply(message));
    ASSERT_TRUE(Data("/a", content, 0, true));
  };
  put("changed by the job", st.st_ino);
  EXPECT_EQ(Read("/b"), "changed by the job");
  const auto applied = applier_->TakeApplied();
  ASSERT_EQ(applied.size(), 1u);
  EXPECT_EQ(applied[0].ino(), st.st_ino);
  put("less", st.st_ino);
  EXPECT_EQ(Read("/b"), "less");
  struct stat now {};
  ASSERT_EQ(::stat(Path("/b").c_str(), &now), 0);
  EXPECT_EQ(now.st_mode & 07777, 0640u);
  EXPECT_EQ(now.st_nlink, 2u);
  // Another file has taken the name: its other names must not change.
  ASSERT_EQ(::unlink(Path("/a").c_str()), 0);
  Write("/c", "of home");
  ASSERT_EQ(::link(Path("/c").c_str(), Path("/a").c_str()), 0);
  put("of the job", st.st_ino);
  EXPECT_EQ(Read("/a"), "of the job");
  EXPECT_EQ(Read("/c"), "of home");
  EXPECT_EQ(Read("/b"), "less");
}

// What a node sends before it knows of a rename at home.
TEST_F(ApplyLive, WhatHomeHasRenamedMeanwhileIsFound) {
  ASSERT_TRUE(MakeDirs(Path("/proj/run"), 0755));
  ASSERT_TRUE(Put("/proj/run/log", "one"));
  ASSERT_TRUE(Put("/proj/run/ck.tmp", "checkpoint"));
  ASSERT_EQ(::rename(Path("/proj").c_str(), Path("/old").c_str()), 0);
  WriteBack rename = Message("/proj/run/ck");
  rename.mutable_rename()->set_from("/proj/run/ck.tmp");
  ASSERT_TRUE(applier_->Apply(rename));
  ASSERT_TRUE(Put("/proj/run/log", "two", v1::APPEND, 3));
  ASSERT_TRUE(Put("/proj/run/deep/new", "x"));
  EXPECT_EQ(Read("/old/run/log"), "onetwo");
  EXPECT_EQ(Read("/old/run/ck"), "checkpoint");
  EXPECT_EQ(Read("/old/run/deep/new"), "x");
  EXPECT_FALSE(PathExists(Path("/proj")) || PathExists(Path("/old/run/ck.tmp")));
  // The file that has the name now is meant; a missing one is created again.
  ASSERT_TRUE(MakeDirs(Path("/proj/run"), 0755));
  ASSERT_TRUE(Put("/proj/run/new", "x"));
  EXPECT_EQ(Read("/proj/run/new"), "x");
  ASSERT_TRUE(RemoveTree(Path("/proj")));
  notices_.clear();
  ASSERT_TRUE(Put("/proj/run/again", "x"));
  EXPECT_EQ(Read("/proj/run/again"), "x");
  EXPECT_EQ(notices_.size(), 1u);
  // A log that is rotated.
  ASSERT_TRUE(Put("/log", "one"));
  ASSERT_EQ(::rename(Path("/log").c_str(), Path("/log.1").c_str()), 0);
  Write("/log", "new");
  ASSERT_TRUE(Put("/log", "two", v1::APPEND, 3));
  EXPECT_EQ(Read("/log") + " " + Read("/log.1"), "new onetwo");
  // Files that the job itself has renamed are at their new names.
  ASSERT_TRUE(Put("/a", "a"));
  ASSERT_TRUE(Put("/b", "b"));
  WriteBack exchange = Message("/b");
  exchange.mutable_rename()->set_from("/a");
  exchange.mutable_rename()->set_exchange(true);
  ASSERT_TRUE(applier_->Apply(exchange));
  ASSERT_TRUE(Put("/a", "2", v1::APPEND, 1));
  EXPECT_EQ(Read("/a") + " " + Read("/b"), "b2 a");
  ASSERT_TRUE(Put("/secret.d/f", "x"));
  ASSERT_EQ(::rename(Path("/secret.d").c_str(), Path("/secret").c_str()), 0);
  EXPECT_FALSE(Put("/secret.d/g", "x"));
  EXPECT_FALSE(PathExists(Path("/secret/g")));
}

TEST_F(ApplyLive, AnAppendNeedsTheFileThatItIsAppendedTo) {
  ASSERT_TRUE(Put("/log", "one"));
  ASSERT_TRUE(Put("/log", "two", v1::APPEND, 3));
  EXPECT_EQ(Read("/log"), "onetwo");
  Write("/other", "other!");
  ASSERT_EQ(::rename(Path("/other").c_str(), Path("/log").c_str()), 0);
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
