// SPDX-License-Identifier: Apache-2.0
// A frozen job's appended data goes to the end of home's present file.
#include <stop_token>
#include <thread>

#include "home/apply/apply_journal.h"
#include "home/testing/apply_testing.h"

namespace vrun::home {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

class ApplyAppend : public Apply {
 protected:
  std::vector<WriteBack> Appended(const std::string& path, const std::string& data, const BaseVersion& base) {
    auto messages = Put(path, data, base);
    messages[0].mutable_put_file()->set_appended(true);
    return messages;
  }
  void AppendAtHome(const std::string& path, const std::string& text) {
    const UniqueFd fd(::open(Path(path).c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
    ASSERT_EQ(::write(fd.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  void Job(uint64_t job) {
    next_ = 0;
    Open(job);
  }
};

TEST_F(ApplyAppend, TheRowsOfAllJobsOfASweepAreThere) {
  Write("/results.csv", "lr,acc\n");
  const BaseVersion base = Base("/results.csv");
  for (const uint64_t job : {7, 8, 9}) {
    Job(job);
    EXPECT_OK(Do(Appended("/results.csv", "lr,acc\n" + std::to_string(job) + ",0.5\n", base)));
    EXPECT_OK(applier_->Finish());
  }
  EXPECT_EQ(Read("/results.csv"), "lr,acc\n7,0.5\n8,0.5\n9,0.5\n");
  EXPECT_EQ(Stat("/results.csv").st_ino, base.ino()) << "`tail -f` goes on";
  EXPECT_THAT(notices_, IsEmpty());
  EXPECT_THAT(List("/"), ElementsAre("results.csv"));
}

TEST_F(ApplyAppend, TheSameRowOfTwoJobsIsThereTwice) {
  Write("/log", "");
  const BaseVersion base = Base("/log");
  for (const uint64_t job : {7, 8}) {
    Job(job);
    EXPECT_OK(Do(Appended("/log", "done\n", base)));
  }
  EXPECT_EQ(Read("/log"), "done\ndone\n");
}

TEST_F(ApplyAppend, ModeAndTimesAreTheJobsWhereNobodyElseHasWritten) {
  Write("/log", "1\n");
  auto messages = Appended("/log", "1\n2\n", Base("/log"));
  messages[0].mutable_put_file()->mutable_meta()->set_mode(S_IFREG | 0600);
  EXPECT_OK(Do(messages));
  EXPECT_EQ(Stat("/log").st_mode & 07777, 0600u);
  EXPECT_EQ(Base("/log").mtime_ns(), kMtime);
}

TEST_F(ApplyAppend, WhatHomeAppendsAtTheSameMomentIsThere) {
  Write("/log", "");
  const BaseVersion base = Base("/log");
  size_t lines = 0;
  {
    const std::jthread home([&](const std::stop_token& stop) {
      for (; !stop.stop_requested(); ++lines) AppendAtHome("/log", "home\n");
    });
    for (uint64_t job = 1; job <= 200; ++job) {
      Job(job);
      EXPECT_OK(Do(Appended("/log", "job\n", base)));
    }
  }
  const std::string all = Read("/log");
  size_t of_home = 0, of_jobs = 0;
  for (size_t at = 0; at < all.size(); at = all.find('\n', at) + 1) {
    of_home += all.compare(at, 5, "home\n") == 0 ? 1u : 0u;
    of_jobs += all.compare(at, 4, "job\n") == 0 ? 1u : 0u;
  }
  EXPECT_EQ(of_home, lines);
  EXPECT_EQ(of_jobs, 200u);
}

TEST_F(ApplyAppend, AFileThatWasReplacedByALongerOneIsAppendedTo) {
  Write("/log", "1\n");
  const BaseVersion base = Base("/log");
  Write("/new", "1\nhome\n");
  ASSERT_EQ(::rename(Path("/new").c_str(), Path("/log").c_str()), 0);
  EXPECT_OK(Do(Appended("/log", "1\njob\n", base)));
  EXPECT_EQ(Read("/log"), "1\nhome\njob\n");
  EXPECT_THAT(notices_, IsEmpty());
}

TEST_F(ApplyAppend, WhatHomeHasChangedBeforeTheEndIsAConflict) {
  Write("/f", "1\n2\n");
  const BaseVersion base = Base("/f");
  Write("/f", "one\n2\n3\n");
  EXPECT_OK(Do(Appended("/f", "1\n2\njob\n", base)));
  EXPECT_EQ(Read("/f"), "one\n2\n3\n");
  EXPECT_EQ(Read("/f.vrun-7"), "1\n2\njob\n");
  EXPECT_THAT(notices_, ElementsAre(HasSubstr("its version is in /f.vrun-7")));
  EXPECT_THAT(conflicts_, ElementsAre("/f"));
}

TEST_F(ApplyAppend, OtherNamesOfAFileKeepTheirContent) {
  Write("/a", "1\n");
  ASSERT_EQ(::link(Path("/a").c_str(), Path("/b").c_str()), 0);
  EXPECT_OK(Do(Appended("/a", "1\n2\n", Base("/a"))));
  EXPECT_EQ(Read("/a"), "1\n2\n");
  EXPECT_EQ(Read("/b"), "1\n");
}

TEST_F(ApplyAppend, NothingIsAppendedTwiceWhenHomeDies) {
  Write("/log", "base\n");
  const BaseVersion base = Base("/log");
  const std::string rows = std::string(3'000'000, 'r') + "\n";
  const auto messages = Appended("/log", "base\n" + rows, base);
  // The process died when everything was applied but not durable, and somebody at home appends more.
  EXPECT_OK(Do(messages));
  AppendAtHome("/log", "home\n");
  Open();
  EXPECT_OK(Do(messages));
  EXPECT_EQ(Read("/log"), "base\n" + rows + "home\n");
  // Or it died after any number of bytes.
  for (const size_t written : {size_t{0}, size_t{1}, size_t{4096}, size_t{1'048'576}, rows.size()}) {
    const BaseVersion now = Base("/log");
    const std::string before = Read("/log");
    auto more = Appended("/log", before + rows, now);
    const uint64_t part = written / 1'048'576 * 1'048'576;
    auto journal = ApplyJournal::Open(top_ + "/journal.7", 1);
    ASSERT_TRUE(journal && journal->AddAppend(
                               {more[0].sequence(), Stat("/log").st_dev, now.ino(), part, now.size() + part}, true));
    AppendAtHome("/log", rows.substr(0, written));
    if (written >= 4096) AppendAtHome("/log", "home\n");
    Open();
    EXPECT_OK(Do(more));
    const std::string rest = rows.substr(written);
    EXPECT_EQ(Read("/log"), before + rows.substr(0, written) + (written >= 4096 ? "home\n" : "") + rest) << written;
  }
  EXPECT_THAT(notices_, IsEmpty());
}

}  // namespace
}  // namespace vrun::home
