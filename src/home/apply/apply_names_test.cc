// SPDX-License-Identifier: Apache-2.0
// What a batch job removes, renames and replaces; names that a live view wants only if they are free.
#include <atomic>
#include <filesystem>
#include <iterator>
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
using ApplyNames = Apply;

TEST_F(ApplyNames, AChangedFileIsNotRemovedNorIsItsDirectory) {
  ASSERT_EQ(::mkdir(Path("/d").c_str(), 0755), 0);
  Write("/d/f", "old");
  BaseVersion file = Base("/d/f");
  BaseVersion directory = Base("/d");
  Write("/d/f", "edited");
  EXPECT_OK(Do(Remove("/d/f", file)));
  EXPECT_OK(Do(Remove("/d", directory)));
  EXPECT_EQ(Read("/d/f"), "edited");
  EXPECT_THAT(notices_, ElementsAre("/d/f changed at home while job 7 ran: the job removed it, but it stays"));
}

TEST_F(ApplyNames, ADirectoryWithSomethingNewStays) {
  ASSERT_EQ(::mkdir(Path("/d").c_str(), 0755), 0);
  BaseVersion directory = Base("/d");
  Write("/d/new", "x");
  EXPECT_OK(Do(Remove("/d", directory)));
  EXPECT_EQ(Read("/d/new"), "x");
  ASSERT_EQ(notices_.size(), 1u);
  EXPECT_THAT(notices_[0], HasSubstr("/d was removed by job 7, but it stays"));
}

TEST_F(ApplyNames, ARenamedDirectoryWhoseNewNameIsTakenLandsBesideWithAllThatFollows) {
  ASSERT_EQ(::mkdir(Path("/a").c_str(), 0755), 0);
  Write("/a/f", "f");
  BaseVersion source = Base("/a");
  BaseVersion file = Base("/a/f");
  ASSERT_EQ(::mkdir(Path("/b").c_str(), 0755), 0);
  Write("/b/mine", "home's");
  auto rename = Rename("/a", "/b", source);
  EXPECT_OK(Do(rename));
  EXPECT_OK(Do(Put("/b/new", "new")));
  Open();  // home restarts
  EXPECT_OK(Do(rename));
  EXPECT_OK(Do(Put("/b/f", "changed", file)));
  EXPECT_THAT(List("/b"), ElementsAre("mine"));
  EXPECT_THAT(List("/b.vrun-7"), UnorderedElementsAre("f", "new"));
  EXPECT_EQ(Read("/b.vrun-7/f"), "changed");
  EXPECT_THAT(notices_, ElementsAre("/b changed at home while job 7 ran: its version is in /b.vrun-7"));
}

TEST_F(ApplyNames, AFileThatWasEditedIsNotRenamed) {
  Write("/a", "old");
  BaseVersion source = Base("/a");
  Write("/a", "edited");
  EXPECT_OK(Do(Rename("/a", "/b", source)));
  EXPECT_EQ(Read("/a"), "edited");
  EXPECT_THAT(notices_, ElementsAre("/a changed at home while job 7 ran: it was not renamed to /b"));
}

TEST_F(ApplyNames, AnInodeNumberThatHomeUsesAgainIsNoRenameThatWasDone) {
  Write("/a", "as the job saw it");
  const auto source = Base("/a");
  ASSERT_EQ(::unlink(Path("/a").c_str()), 0);
  for (int i = 0; i < 200 && Stat("/b").st_ino != source.ino(); ++i) {
    if (i > 0) {
      ASSERT_EQ(::rename(Path("/b").c_str(), Path("/other" + std::to_string(i)).c_str()), 0);
    }
    Write("/b", "home's");
  }
  if (Stat("/b").st_ino != source.ino()) GTEST_SKIP() << "this file system does not use inode numbers again";
  EXPECT_OK(Do(Rename("/a", "/b", source)));
  EXPECT_EQ(Read("/b"), "home's");
  EXPECT_THAT(notices_, ElementsAre(HasSubstr("was not renamed")));
}

TEST_F(ApplyNames, AFileThatHomeRemovedWhileItMadeAnotherIsNoRenameThatWasDone) {
  Write("/a", "as the job saw it");
  const auto source = Base("/a");
  ASSERT_EQ(::rename(Path("/a").c_str(), Path("/c").c_str()), 0);
  Write("/b", "home's");
  EXPECT_OK(Do(Rename("/a", "/b", source)));
  EXPECT_EQ(Read("/b"), "home's");
  EXPECT_THAT(notices_, ElementsAre(HasSubstr("was not renamed")));
}

TEST_F(ApplyNames, WhatWasPutAsideIsToldOfByTheNameThatTheJobKnows) {
  ASSERT_EQ(::mkdir(Path("/d").c_str(), 0755), 0);
  Write("/d/f", "as the job saw it");
  const auto source = Base("/d/f");
  EXPECT_OK(Do(Rename("/d", "/.vrun-7-1", Base("/d"))));
  Write("/.vrun-7-1/f", "edited at home");
  EXPECT_OK(Do(Rename("/.vrun-7-1/f", "/g", source)));
  EXPECT_THAT(notices_, ElementsAre("/d/f changed at home while job 7 ran: it was not renamed to /g"));
}

TEST_F(ApplyNames, ARenameIntoItselfIsRefused) {
  ASSERT_EQ(::mkdir(Path("/a").c_str(), 0755), 0);
  EXPECT_EQ(Do(Rename("/a", "/a/b", Base("/a"))).error().code(), Code::kInvalid);
}

TEST_F(ApplyNames, TwoNamesOfOneFileThatTheJobMovedTogetherAreStillItsOwn) {
  Write("/a", "text");
  for (const char* name : {"/b", "/c"}) ASSERT_EQ(::link(Path("/a").c_str(), Path(name).c_str()), 0);
  const BaseVersion base = Base("/a");
  // The overlay sees three files: /a got other times and replaced /b, /c got another mode.
  WriteBack moved = Rename("/a", "/b", base);
  *moved.mutable_base() = base;
  *moved.mutable_rename()->mutable_meta() = Meta(S_IFREG | 0644);
  ASSERT_TRUE(Do(moved));
  WriteBack changed = Message("/c", base);
  *changed.mutable_set_meta()->mutable_meta() = Meta(S_IFREG | 0600);
  changed.mutable_set_meta()->mutable_meta()->set_mtime_ns(base.mtime_ns());
  ASSERT_TRUE(Do(changed));
  EXPECT_TRUE(notices_.empty()) << notices_.front();
  EXPECT_EQ(Stat("/c").st_mode & 07777, 0600u);
  EXPECT_EQ(Stat("/a").st_ino, 0u) << "gone";
}

TEST_F(ApplyNames, KindsReplaceEachOther) {
  Write("/to-directory", "x");
  ASSERT_EQ(::mkdir(Path("/to-file").c_str(), 0755), 0);
  Write("/to-fifo", "x");
  EXPECT_OK(Do(MakeDirectory("/to-directory", Base("/to-directory"))));
  EXPECT_OK(Do(Put("/to-file", "file", Base("/to-file"))));
  WriteBack fifo = Message("/to-fifo", Base("/to-fifo"));
  *fifo.mutable_make_special()->mutable_meta() = Meta(S_IFIFO | 0600);
  EXPECT_OK(Do(fifo));
  WriteBack socket = Message("/socket");
  *socket.mutable_make_special()->mutable_meta() = Meta(S_IFSOCK | 0600);
  EXPECT_OK(Do(socket));
  EXPECT_TRUE(S_ISDIR(Stat("/to-directory").st_mode));
  EXPECT_EQ(Read("/to-file"), "file");
  EXPECT_TRUE(S_ISFIFO(Stat("/to-fifo").st_mode));
  EXPECT_TRUE(S_ISSOCK(Stat("/socket").st_mode));
  EXPECT_THAT(notices_, IsEmpty());
}

TEST_F(ApplyNames, WhatTheJobMovedBetweenFileSystemsIsCopied) {
  if (!PrivateMounts()) GTEST_SKIP() << "needs root to mount";
  ASSERT_EQ(::mkdir(Path("/other").c_str(), 0755), 0);
  Mount(Path("/other"), "size=8m");
  ASSERT_EQ(::mkdir(Path("/d").c_str(), 0750), 0);
  Write("/d/f", "content");
  ASSERT_EQ(::symlink("f", Path("/d/s").c_str()), 0);
  BaseVersion file = Base("/d/f");
  auto rename = Rename("/d", "/other/d", Base("/d"));
  const auto journal = ReadFile(top_ + "/journal.7");
  EXPECT_OK(Do(rename));
  // Home died before it noted that.
  ASSERT_TRUE(journal && WriteFileAtomic(top_ + "/journal.7", *journal, 0600));
  Open();
  EXPECT_OK(Do(rename));
  EXPECT_THAT(notices_, IsEmpty());
  EXPECT_EQ(Read("/other/d/f"), "content");
  EXPECT_EQ(Stat("/other/d").st_mode & 07777, 0750u);
  EXPECT_EQ(Base("/other/d/f").mtime_ns(), file.mtime_ns());
  EXPECT_THAT(List("/"), ElementsAre("other"));
  WriteBack link = Message("/here");
  link.mutable_make_hard_link()->set_existing("/other/d/f");
  EXPECT_OK(Do(link));
  EXPECT_EQ(Read("/here"), "content");
}

// --- exclusive operations of a live view -----------------------------------------------------------------------------

class ApplyClaims : public testing::Test {
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
  // Whether home has made it; each call is another operation.
  bool Claim(const std::string& path, const std::function<void(WriteBack*)>& set) {
    WriteBack message = Message(path);
    message.set_exclusive(true);
    set(&message);
    return Apply(message);
  }
  bool Apply(const WriteBack& message) {
    const Status applied = applier_->Apply(message);
    EXPECT_TRUE(applied) << applied.error().message();
    EXPECT_EQ(applier_->sequence(), message.sequence());
    const auto refused = applier_->TakeRefused();
    return refused.empty() || refused.back() != message.sequence();
  }
  static void File(WriteBack* message) { SetMeta(message->mutable_put_file()->mutable_meta(), S_IFREG | 0640); }
  static void Directory(WriteBack* message) {
    SetMeta(message->mutable_make_directory()->mutable_meta(), S_IFDIR | 0500);
  }
  static void Symlink(WriteBack* message) {
    SetMeta(message->mutable_make_symlink()->mutable_meta(), S_IFLNK | 0777);
    message->mutable_make_symlink()->set_target("of the job");
  }
  static void Fifo(WriteBack* message) { SetMeta(message->mutable_make_special()->mutable_meta(), S_IFIFO | 0600); }
  static void Link(WriteBack* message) { message->mutable_make_hard_link()->set_existing("/source"); }
  mode_t ModeOf(const std::string& path) {
    struct stat st {};
    return ::lstat(Path(path).c_str(), &st) == 0 ? st.st_mode : 0;
  }
  size_t Names() {
    const std::filesystem::directory_iterator names(top_ + "/root");
    return static_cast<size_t>(std::distance(begin(names), end(names)));
  }

  std::string top_ = "/var/tmp/vrun-claims-XXXXXX";
  std::unique_ptr<Applier> applier_;
  std::vector<std::string> notices_;
  uint64_t next_ = 0;
};

TEST_F(ApplyClaims, ANameIsMadeWholeAndOnlyIfItIsFree) {
  Write("/source", "of the source");
  const std::vector<std::pair<void (*)(WriteBack*), mode_t>> kinds = {{File, S_IFREG | 0640},
                                                                      {Directory, S_IFDIR | 0500},
                                                                      {Symlink, S_IFLNK | 0777},
                                                                      {Fifo, S_IFIFO | 0600},
                                                                      {Link, S_IFREG | 0644}};
  for (const auto& [set, mode] : kinds) {
    EXPECT_TRUE(Claim("/lock", set));
    EXPECT_EQ(ModeOf("/lock"), mode);
    for (const auto& [other, unused] : kinds) EXPECT_FALSE(Claim("/lock", other));
    EXPECT_EQ(ModeOf("/lock"), mode);
    WriteBack remove = Message("/lock");
    remove.mutable_remove();
    ASSERT_TRUE(applier_->Apply(remove));
    EXPECT_FALSE(PathExists(Path("/lock")));
  }
  Write("/lock", "of home");
  EXPECT_FALSE(Claim("/lock", File));
  EXPECT_EQ(Read("/lock"), "of home");
  EXPECT_EQ(Names(), 2u) << "no temporary name is left";
  EXPECT_TRUE(notices_.empty());
}

TEST_F(ApplyClaims, HomesProgramsAndTheJobNeverHaveItBoth) {
  std::atomic<int> owners = 0;
  std::atomic<bool> both = false;
  const auto own = [&] {
    if (owners.fetch_add(1) != 0) both = true;
    ::usleep(50);
    owners.fetch_sub(1);
  };
  size_t of_home = 0, of_job = 0;
  {
    const std::jthread home([&](const std::stop_token& stop) {
      for (; !stop.stop_requested(); ::usleep(20)) {
        const UniqueFd fd(::open(Path("/lock").c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600));
        if (!fd) continue;
        own();
        ++of_home;
        ::unlink(Path("/lock").c_str());
      }
    });
    for (int i = 0; i < 3000; ++i) {
      if (!Claim("/lock", File)) continue;
      own();
      ++of_job;
      WriteBack remove = Message("/lock");
      remove.mutable_remove();
      ASSERT_TRUE(applier_->Apply(remove));
    }
  }
  EXPECT_FALSE(both);
  EXPECT_GT(of_home, 0u);
  EXPECT_GT(of_job, 0u);
}

TEST_F(ApplyClaims, AProcessThatFollowsGivesTheSameAnswer) {
  Write("/lock", "of home");
  EXPECT_FALSE(Claim("/lock", File));
  const uint64_t refused = next_;
  Open();
  EXPECT_EQ(applier_->TakeRefused(), std::vector<uint64_t>{refused}) << "the node may not have heard";

  // It died after it had refused, and before it noted how far it was.
  applier_.reset();
  ApplyJournal::Open(top_ + "/journal", 1)->AddRefused(next_ + 1);
  ASSERT_EQ(::unlink(Path("/lock").c_str()), 0);
  Open();
  EXPECT_FALSE(Claim("/lock", File));
  EXPECT_FALSE(PathExists(Path("/lock")));

  // After it had made the name.
  Write("/lock", "");
  struct stat st {};
  ASSERT_EQ(::stat(Path("/lock").c_str(), &st), 0);
  applier_.reset();
  ApplyJournal::Open(top_ + "/journal", 1)->SetIntent({next_ + 1, st.st_dev, st.st_ino, 0});
  Open();
  EXPECT_TRUE(Claim("/lock", File));
  EXPECT_FALSE(Claim("/lock", File));
}

}  // namespace
}  // namespace vrun::home
