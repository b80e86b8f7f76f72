// SPDX-License-Identifier: Apache-2.0
// For a while the disk of a live view's journal and content is full, or its server has no descriptors left.
#include "vfs/live/data/live_journal.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

#include "vfs/live/data/live_file.h"
#include "vfs/live/tree/live_tree.h"
#include "vfs/testing/live_testing.h"

namespace vrun::vfs {
namespace {

using Of = LiveJournal::Of;

// A file system of 12 MiB.
class SmallDisk {
 public:
  explicit SmallDisk(const std::string& path) : path_(path) {
    EXPECT_TRUE(MakeDirs(path, 0755));
    EXPECT_EQ(::mount("none", path.c_str(), "tmpfs", 0, "size=12m"), 0) << std::strerror(errno);
  }
  ~SmallDisk() { ::umount2(path_.c_str(), MNT_DETACH); }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  void Fill() const {
    const UniqueFd fd(::open(Filler().c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    const std::string block(4096, 'x');
    while (::write(fd.get(), block.data(), block.size()) > 0) {
    }
    EXPECT_EQ(errno, ENOSPC);
  }
  bool Free() const { return ::unlink(Filler().c_str()) == 0; }
  std::string In(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string Filler() const { return path_ + "/filler"; }
  const std::string path_;
};

// While it exists, no descriptor is available.
class NoDescriptors {
 public:
  NoDescriptors() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const int lowest = ::open("/", O_PATH | O_CLOEXEC);
    ::close(lowest);
    const rlimit now{static_cast<rlim_t>(lowest), before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &now), 0);
  }
  ~NoDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;

 private:
  rlimit before_{};
};

std::string AbsentName(int i) { return std::string(200, 'n') + std::to_string(i); }

class LiveJournalTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNot(); !why.empty()) GTEST_SKIP() << why;
    disk_ = std::make_unique<SmallDisk>(directory_.path() + "/disk");
    path_ = disk_->In("journal");
  }
  static LiveFrame Absent(int i) {
    LiveFrame frame;
    frame.Absent(1, AbsentName(i));
    return frame;
  }
  LiveState Parsed() const {
    size_t good = 0;
    const std::string bytes = ReadFile(path_).value_or("");
    auto state = LiveJournal::Parse(bytes, &good);
    EXPECT_TRUE(state) << state.error().message();
    EXPECT_EQ(good, bytes.size());
    return state ? *std::move(state) : LiveState();
  }
  std::shared_ptr<LiveFiles> Files() const {
    EXPECT_TRUE(MakeDirs(disk_->In("written"), 0700));
    return *LiveFiles::Open(disk_->In("written"));
  }

  TestDirectory directory_;
  std::unique_ptr<SmallDisk> disk_;
  std::string path_;
};

TEST_F(LiveJournalTest, OnAFullDiskReadingGoesOnAndChangesWaitForACheckpoint) {
  const auto journal = *LiveJournal::Create(path_);
  disk_->Fill();
  uint64_t lacks = 0;
  EXPECT_EQ(journal->Reserve(&lacks), 0);
  int told = 0;
  while (journal->TakesChange() && journal->Append(Absent(told), Of::kReading)) ++told;
  EXPECT_GT(told, 1'500);
  EXPECT_TRUE(journal->behind());
  EXPECT_FALSE(journal->TakesChange());
  EXPECT_EQ(journal->RoomForReading(), 0u);
  EXPECT_EQ(journal->Reserve(&lacks), ENOSPC);
  EXPECT_EQ(Parsed().absent.size(), static_cast<size_t>(told));

  LiveFrame all;
  for (int i = 0; i < told + 1; ++i) all.Absent(1, AbsentName(i));
  EXPECT_TRUE(journal->WantsCheckpoint());
  journal->BeginCheckpoint();
  EXPECT_FALSE(journal->FinishCheckpoint(all));
  EXPECT_FALSE(PathExists(path_ + ".next")) << "it takes room";
  EXPECT_FALSE(journal->WantsCheckpoint()) << "there is none";

  EXPECT_TRUE(disk_->Free());
  EXPECT_TRUE(journal->WantsCheckpoint());
  journal->BeginCheckpoint();
  EXPECT_FALSE(journal->Append(Absent(told + 1), Of::kReading));  // it will be in the checkpoint
  ASSERT_TRUE(journal->FinishCheckpoint(all));
  EXPECT_FALSE(journal->behind());
  EXPECT_EQ(journal->Reserve(&lacks), 0);
  EXPECT_TRUE(journal->TakesChange());
  EXPECT_TRUE(journal->Append(Absent(told + 2), Of::kChange));
  EXPECT_EQ(Parsed().absent.size(), static_cast<size_t>(told) + 3);
}

// A removal, or a record of what goes home.
TEST_F(LiveJournalTest, WhereNothingMoreCanBeMadeAChangeHasRoom) {
  const auto journal = *LiveJournal::Create(path_);
  disk_->Fill();
  uint64_t lacks = 0;
  int told = 0;
  while (journal->Reserve(&lacks) == 0) ASSERT_TRUE(journal->Append(Absent(told++), Of::kReading));
  EXPECT_GT(lacks, 0u);
  EXPECT_TRUE(journal->TakesChange());
  EXPECT_TRUE(journal->Append(Absent(told), Of::kChange));
  EXPECT_FALSE(journal->TakesChange(1u << 20)) << "of no size";
}

TEST_F(LiveJournalTest, WhatWasAllocatedIsThereForTheNextServer) {
  {
    const auto journal = *LiveJournal::Create(path_);
    ASSERT_TRUE(journal->Append(Absent(0), Of::kChange));
    disk_->Fill();
  }
  LiveState state;
  const auto journal = LiveJournal::Open(path_, &state);
  ASSERT_TRUE(journal) << journal.error().message();
  uint64_t lacks = 0;
  EXPECT_EQ((*journal)->Reserve(&lacks), 0);
  EXPECT_TRUE((*journal)->Append(Absent(1), Of::kChange));
}

TEST_F(LiveJournalTest, OneOfAnotherVersionIsRefusedAndStaysAsItIs) {
  {
    const auto journal = *LiveJournal::Create(path_);
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(journal->Append(Absent(i), Of::kChange));
  }
  std::string bytes = ReadFile(path_).value_or("");
  for (size_t at = bytes.find("vrj1"); at != std::string::npos; at = bytes.find("vrj1")) bytes[at + 3] = '2';
  ASSERT_TRUE(WriteFileAtomic(path_, bytes, 0600));
  LiveState state;
  const auto opened = LiveJournal::Open(path_, &state);
  ASSERT_FALSE(opened);
  EXPECT_NE(opened.error().message().find("another version"), std::string::npos) << opened.error().message();
  EXPECT_EQ(ReadFile(path_).value_or(""), bytes);
}

TEST_F(LiveJournalTest, AWriteThatFindsTheDiskFullIsTriedAgainWhenSomebodyGivesWay) {
  const auto files = Files();
  const auto file = *LiveFile::Create(*files);
  int asked = 0;
  files->SetGiveWay([&](int error, uint64_t bytes) {
    EXPECT_EQ(error, ENOSPC);
    EXPECT_GE(bytes, 100'000u);
    return ++asked == 1 && disk_->Free();
  });
  disk_->Fill();
  const std::string data(100'000, 'w');
  EXPECT_EQ(file->Write(0, data), 0);
  disk_->Fill();
  EXPECT_EQ(file->Write(100'000, std::string(1 << 20, 'w')), ENOSPC);
  EXPECT_EQ(asked, 2);
  std::string read(data.size(), 0);
  size_t got = 0;
  EXPECT_EQ(file->Read(0, read.data(), read.size(), &got), 0);
  EXPECT_TRUE(read == data);
}

TEST_F(LiveJournalTest, WhatIsKeptOpenIsGivenUpForWhatIsToBeOpened) {
  const auto files = Files();
  std::vector<std::shared_ptr<LiveFile>> open;
  for (int i = 0; i < 20; ++i) {
    open.push_back(*LiveFile::Create(*files));
    open.back()->Pin(true);
  }
  int asked = 0;
  files->SetGiveWay([&](int error, uint64_t) { return error == EMFILE && ++asked > 0; });
  Result<std::shared_ptr<LiveFile>> made(nullptr);
  int error = 0;
  {
    const NoDescriptors none;
    made = LiveFile::Create(*files);
    for (const auto& file : open) error += file->Write(0, "written");
  }
  ASSERT_TRUE(made) << made.error().message();
  EXPECT_EQ(error, 0);
  EXPECT_EQ(asked, 1);
}

TEST_F(LiveJournalTest, WhatCannotBeOpenedIsPublishedLater) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer looks at objects through a pipe, and here there are no descriptors";
#endif
  const auto files = Files();
  const auto file = *LiveFile::Create(*files), empty = *LiveFile::Create(*files);
  ASSERT_EQ(file->Write(0, "written"), 0);
  tree::FileVersion base;
  Result<std::shared_ptr<LiveVersion>> first(nullptr), nothing(nullptr);
  {
    const NoDescriptors none;
    first = file->Publish(&base);
    nothing = empty->Publish(&base);
  }
  EXPECT_FALSE(first);
  EXPECT_TRUE(nothing && *nothing);
  const auto later = file->Publish(&base);
  ASSERT_TRUE(later && *later);
  EXPECT_EQ((*later)->content().size, 7u);
}

// --- the view ---

class LiveFullTest : public LiveViewFixture {
 protected:
  void SetUp() override {
    LiveViewFixture::SetUp();
    if (IsSkipped()) return;
    disk_ = std::make_unique<SmallDisk>(directory_.path() + "/disk");
    options_.journal = disk_->In("journal");
    options_.publish_micros = 20'000;
    Mount();
  }
  void TearDown() override {
    LiveViewFixture::TearDown();
    disk_.reset();
  }
  // 0 or an errno.
  int Make(const std::string& name) const {
    const UniqueFd fd(::open(In(name).c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
    return fd ? 0 : errno;
  }
  // Reads more names than the journal has room for; returns how many.
  int ReadUntilNothingIsTaken() const {
    int names = 0, made = 0;
    const auto read = [&](int more) {
      for (; more > 0; --more) EXPECT_NE(::access(In("/" + AbsentName(names++)).c_str(), F_OK), 0);
    };
    while ((made = Make("/made" + std::to_string(names))) == 0 && names < 40'000) read(500);
    EXPECT_EQ(made, ENOSPC);
    read(4'000);
    return names;
  }
  template <typename Holds>
  static bool Soon(Holds holds) {
    for (int i = 0; i < 1000 && !holds(); ++i) ::usleep(5'000);
    return holds();
  }
  LiveState Parsed() const {
    size_t good = 0;
    auto state = LiveJournal::Parse(ReadFile(options_.journal).value_or(""), &good);
    EXPECT_TRUE(state) << state.error().message();
    return state ? *std::move(state) : LiveState();
  }

  std::unique_ptr<SmallDisk> disk_;
};

TEST_F(LiveFullTest, WhoReadsGoesOnAndWhoWritesCanAgainWhenThereIsRoom) {
  Write("/file", "of home's");
  Mount();
  EXPECT_EQ(Make("/before"), 0);
  disk_->Fill();
  const int names = ReadUntilNothingIsTaken();
  EXPECT_EQ(Make("/meanwhile"), ENOSPC);
  EXPECT_EQ(::mkdir(In("/meanwhile").c_str(), 0755) != 0 ? errno : 0, ENOSPC);
  EXPECT_EQ(::chmod(In("/before").c_str(), 0600) != 0 ? errno : 0, ENOSPC);
  EXPECT_EQ(::truncate(In("/file").c_str(), 1) != 0 ? errno : 0, ENOSPC);
  EXPECT_EQ(Content("/file"), "of home's");
  ASSERT_TRUE(disk_->Free());
  EXPECT_EQ(Make("/after"), 0);
  EXPECT_EQ(::truncate(In("/file").c_str(), 2), 0) << std::strerror(errno);
  EXPECT_EQ(Content("/file"), "of");
  const LiveState state = Parsed();
  const auto& root = state.names.at(LiveTree::kRootId);
  EXPECT_TRUE(root.contains("before") && root.contains("after") && !root.contains("meanwhile"));
  for (const int i : {0, names / 2, names - 1}) {
    EXPECT_TRUE(state.absent.contains({LiveTree::kRootId, AbsentName(i)})) << i;
  }
}

TEST_F(LiveFullTest, WhatIsClosedMeanwhileGoesHomeLater) {
  UniqueFd fd(::open(In("/f").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
  ASSERT_EQ(::write(fd.get(), "written", 7), 7);
  view_->PublishAll();
  const auto published = [&] {
    int times = 0;
    view_->stream()->ForEach([&](const LiveOperation& op) { times += op.path == "/f" ? 1 : 0; });
    return times;
  };
  ASSERT_EQ(published(), 1);
  ASSERT_EQ(::pwrite(fd.get(), "changed", 7, 0), 7);  // in place: not published before it is closed
  disk_->Fill();
  (void)ReadUntilNothingIsTaken();
  fd.Reset();
  view_->SeeCloses();
  EXPECT_EQ(published(), 1) << "the journal has no room";
  ASSERT_TRUE(disk_->Free());
  EXPECT_TRUE(Soon([&] { return published() == 2; }));
}

}  // namespace
}  // namespace vrun::vfs
