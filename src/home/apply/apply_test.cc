// SPDX-License-Identifier: Apache-2.0
#include "home/testing/apply_testing.h"

namespace vrun::home {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

TEST_F(Apply, ARootThatIsNotThereIsAnError) {
  ApplyOptions options;
  options.root = "/nonexistent/root";
  EXPECT_FALSE(Applier::Open(std::move(options)).has_value());
}

TEST_F(Apply, AFileComesWithModeTimesAndAttributes) {
  auto messages = Put("/f", "content", std::nullopt, 0751);
  auto* xattr = messages[0].mutable_put_file()->mutable_meta()->add_xattrs();
  xattr->set_name("user.colour");
  xattr->set_value("blue");
  EXPECT_OK(Do(messages));
  EXPECT_EQ(Read("/f"), "content");
  EXPECT_EQ(Stat("/f").st_mode, static_cast<mode_t>(S_IFREG | 0751));
  EXPECT_EQ(Base("/f").mtime_ns(), kMtime);
  char value[16];
  ASSERT_EQ(::getxattr(Path("/f").c_str(), "user.colour", value, sizeof value), 4);
  EXPECT_EQ(std::string(value, 4), "blue");
  EXPECT_THAT(notices_, IsEmpty());
  EXPECT_EQ(applier_->sequence(), 2u);
  EXPECT_THAT(List("/"), ElementsAre("f"));
}

TEST_F(Apply, AnAttributeThatHomeDoesNotTakeIsSaidOfEachFile) {
  for (const char* path : {"/a", "/b"}) {
    auto messages = Put(path, "x");
    v1::Xattr* attribute = messages[0].mutable_put_file()->mutable_meta()->add_xattrs();
    attribute->set_name("user.large");
    attribute->set_value(std::string(64 << 10, 'x'));
    EXPECT_OK(Do(messages));
  }
  if (notices_.empty()) GTEST_SKIP() << "this file system takes large attributes";
  EXPECT_THAT(notices_, ElementsAre(HasSubstr("/a was written without the attribute user.large"),
                                    HasSubstr("/b was written without the attribute user.large")));
}

TEST_F(Apply, ABeginningFileIsNotThereBeforeItsEnd) {
  Write("/f", "old");
  auto messages = Put("/f", "new", Base("/f"));
  EXPECT_OK(Do(messages[0]));
  EXPECT_EQ(Read("/f"), "old");
  EXPECT_EQ(applier_->sequence(), 0u);
  applier_.reset();  // the connection is lost: no trace remains
  EXPECT_THAT(List("/"), ElementsAre("f"));
  Open();
  EXPECT_OK(Do(messages));
  EXPECT_EQ(Read("/f"), "new");
}

TEST_F(Apply, WhatAKilledHomeLeftGoesWhenTheOperationComesAgain) {
  auto messages = Put("/f", "new");
  Write("/.vrun-7-s-1", "half");
  EXPECT_OK(Do(messages));
  EXPECT_THAT(List("/"), ElementsAre("f"));
}

TEST_F(Apply, AnUnchangedFileIsReplaced) {
  Write("/f", "old");
  EXPECT_OK(Do(Put("/f", "new", Base("/f"))));
  EXPECT_EQ(Read("/f"), "new");
  EXPECT_THAT(notices_, IsEmpty());
}

TEST_F(Apply, AFileThatChangedAtHomeStaysAndOursLandsBeside) {
  Write("/f", "old");
  BaseVersion base = Base("/f");
  Write("/f", "edited");
  EXPECT_OK(Do(Put("/f", "new", base)));
  EXPECT_EQ(Read("/f"), "edited");
  EXPECT_EQ(Read("/f.vrun-7"), "new");
  EXPECT_THAT(notices_, ElementsAre("/f changed at home while job 7 ran: its version is in /f.vrun-7"));
}

TEST_F(Apply, AFileThatIsNewOnBothSidesLandsBesideUnlessItIsTheSame) {
  Write("/same", "content");
  Write("/other", "home's");
  Write("/other.vrun-7", "somebody's");
  EXPECT_OK(Do(Put("/same", "content")));
  EXPECT_OK(Do(Put("/other", "the job's")));
  EXPECT_THAT(List("/"), UnorderedElementsAre("same", "other", "other.vrun-7", "other.vrun-7.1"));
  EXPECT_EQ(Read("/other.vrun-7.1"), "the job's");
  EXPECT_EQ(notices_.size(), 1u);
}

TEST_F(Apply, ANameOfFullLengthStillFitsBeside) {
  std::string name = "/" + std::string(255, 'n');
  Write(name, "home's");
  EXPECT_OK(Do(Put(name, "the job's")));
  EXPECT_EQ(Read("/" + std::string(248, 'n') + ".vrun-7"), "the job's");
}

TEST_F(Apply, ARepetitionAfterACrashIsNoConflict) {
  Write("/f", "old");
  Write("/gone", "x");
  auto messages = Put("/f", "new", Base("/f"));
  messages.push_back(MakeDirectory("/d"));
  messages.push_back(Remove("/gone", Base("/gone")));
  WriteBack link = Message("/d/hard");
  link.mutable_make_hard_link()->set_existing("/f");
  messages.push_back(link);
  WriteBack symlink = Message("/s");
  symlink.mutable_make_symlink()->set_target("f");
  *symlink.mutable_make_symlink()->mutable_meta() = Meta(S_IFLNK | 0777);
  messages.push_back(symlink);
  EXPECT_OK(Do(messages));
  for (int i = 0; i < 2; ++i) {
    ::unlink((top_ + "/journal.7").c_str());
    Open();
    EXPECT_OK(Do(messages));
  }
  EXPECT_THAT(notices_, IsEmpty());
  EXPECT_THAT(List("/"), UnorderedElementsAre("f", "d", "s"));
  EXPECT_EQ(Stat("/f").st_ino, Stat("/d/hard").st_ino);
}

TEST_F(Apply, AConflictIsRepeatedAsTheSameConflict) {
  Write("/f", "home's");
  auto messages = Put("/f", "the job's");
  WriteBack link = Message("/g");
  link.mutable_make_hard_link()->set_existing("/f");
  EXPECT_OK(Do(messages));
  Open();
  EXPECT_OK(Do(messages));
  // The job linked its own version.
  EXPECT_OK(Do(link));
  EXPECT_THAT(List("/"), UnorderedElementsAre("f", "f.vrun-7", "g"));
  EXPECT_EQ(Read("/g"), "the job's");
}

TEST_F(Apply, TwoJobsOneAfterTheOtherDoNotConflict) {
  EXPECT_OK(Do(Put("/f", "first")));
  EXPECT_OK(applier_->Finish());
  next_ = 0;
  Open(8);
  EXPECT_OK(Do(Put("/f", "second", Base("/f"))));
  EXPECT_EQ(Read("/f"), "second");
  EXPECT_THAT(notices_, IsEmpty());
}

TEST_F(Apply, WhatIsDurableIsNotAskedForAgainAndAnotherAttemptStartsAnew) {
  EXPECT_OK(Do(Put("/f", "first")));
  auto synced = applier_->Sync();
  ASSERT_TRUE(synced.has_value());
  EXPECT_EQ(*synced, 2u);
  EXPECT_OK(Do(MakeDirectory("/d")));
  Open();
  EXPECT_EQ(applier_->sequence(), 2u);
  ApplyOptions options;
  options.root = Path("");
  options.job = 7;
  options.attempt = 2;
  options.journal = top_ + "/journal.7";
  applier_.reset();
  auto other = Applier::Open(std::move(options));
  ASSERT_TRUE(other.has_value());
  EXPECT_EQ((*other)->sequence(), 0u);
}

TEST_F(Apply, NoSymbolicLinkLeadsOutOfTheRoot) {
  ASSERT_EQ(::mkdir((top_ + "/outside").c_str(), 0755), 0);
  ASSERT_EQ(::symlink((top_ + "/outside").c_str(), Path("/d").c_str()), 0);
  EXPECT_OK(Do(MakeDirectory("/d")));
  EXPECT_OK(Do(Put("/d/f", "data")));
  EXPECT_OK(Do(Put("/d/sub/f", "data")));
  auto outside = ReadFile(top_ + "/outside/f");
  EXPECT_FALSE(outside.has_value());
  EXPECT_EQ(Read("/d.vrun-7/f"), "data");
  EXPECT_EQ(Read("/d.vrun-7/sub/f"), "data");
  // Without having created the directory: the parent changed under the job.
  ASSERT_EQ(::symlink((top_ + "/outside").c_str(), Path("/e").c_str()), 0);
  EXPECT_OK(Do(Put("/e/deep/f", "data")));
  EXPECT_EQ(Read("/e.vrun-7/deep/f"), "data");
  WriteBack meta = Message("/e", Base("/"));
  *meta.mutable_set_meta()->mutable_meta() = Meta(S_IFDIR | 0700);
  EXPECT_OK(Do(meta));
  EXPECT_EQ(Stat("/e").st_mode & S_IFMT, static_cast<mode_t>(S_IFLNK));
}

TEST_F(Apply, ADirectoryThatIsGoneIsMadeAgain) {
  EXPECT_OK(Do(Put("/was/here/f", "data")));
  EXPECT_EQ(Read("/was/here/f"), "data");
  ASSERT_EQ(notices_.size(), 1u);
  EXPECT_THAT(notices_[0], HasSubstr("/was was removed at home while job 7 ran"));
}

TEST_F(Apply, HiddenPathsAreNeitherWrittenNorMovedWithAParent) {
  ASSERT_EQ(::mkdir(Path("/u").c_str(), 0755), 0);
  ASSERT_EQ(::mkdir(Path("/u/.ssh").c_str(), 0700), 0);
  Write("/u/.ssh/id", "secret");
  Open(7, "/u/.ssh");
  EXPECT_EQ(Do(Put("/u/.ssh/id", "x", Base("/u/.ssh/id"))).error().code(), Code::kDenied);
  EXPECT_EQ(Do(Rename("/u", "/v", Base("/u"))).error().code(), Code::kDenied);
  EXPECT_EQ(Do(Remove("/u/.ssh/id", Base("/u/.ssh/id"))).error().code(), Code::kDenied);
  EXPECT_OK(Do(Put("/u/.sshx", "fine")));
  EXPECT_EQ(Read("/u/.ssh/id"), "secret");
  Open(8, "?");
  EXPECT_EQ(Do(Put("/u/new", "x")).error().code(), Code::kDenied);
}

TEST_F(Apply, ImpossibleMessagesAreRefused) {
  using namespace std::string_literals;
  for (const std::string& path :
       {""s, "f"s, "/a/../f"s, "/./f"s, "//f"s, "/a/"s, "/a\0b"s, "/"s + std::string(256, 'x')}) {
    EXPECT_EQ(Do(Put(path, "x")[0]).error().code(), Code::kInvalid) << path;
  }
  WriteBack empty = Message("/f");
  EXPECT_EQ(Do(empty).error().code(), Code::kUnsupported);
  WriteBack device = Message("/f");
  *device.mutable_make_special()->mutable_meta() = Meta(S_IFCHR | 0600);
  EXPECT_EQ(Do(device).error().code(), Code::kInvalid);
  WriteBack link = Message("/l");
  link.mutable_make_symlink()->set_target("a\0b"s);
  EXPECT_EQ(Do(link).error().code(), Code::kInvalid);
  WriteBack hard = Message("/l");
  hard.mutable_make_hard_link()->set_existing("/../etc/passwd");
  EXPECT_EQ(Do(hard).error().code(), Code::kInvalid);
  EXPECT_THAT(List("/"), IsEmpty());
}

TEST_F(Apply, DataThatDoesNotBelongIsRefused) {
  auto messages = Put("/f", "1234");
  auto more = messages;
  EXPECT_EQ(Do(messages[1]).error().code(), Code::kInvalid);  // not begun
  EXPECT_OK(Do(messages[0]));
  messages[1].mutable_file_data()->set_offset(UINT64_MAX - 1);
  EXPECT_EQ(Do(messages[1]).error().code(), Code::kInvalid);
  EXPECT_OK(Do(more[1]));  // data of the failed file
  EXPECT_THAT(List("/"), IsEmpty());
}

TEST_F(Apply, HolesStayHoles) {
  WriteBack put = Message("/f");
  *put.mutable_put_file()->mutable_meta() = Meta(S_IFREG | 0644);
  put.mutable_put_file()->set_size(uint64_t{1} << 40);
  put.mutable_put_file()->set_sparse(true);
  WriteBack data = Message("/f");
  data.mutable_file_data()->set_offset(uint64_t{1} << 30);
  data.mutable_file_data()->set_data(std::string(4096, 'x') + std::string(1 << 19, '\0') + "y");
  data.mutable_file_data()->set_last(true);
  EXPECT_OK(Do({put, data}));
  struct stat st = Stat("/f");
  EXPECT_EQ(st.st_size, int64_t{1} << 40);
  EXPECT_LT(st.st_blocks * 512, 100'000);
}

TEST_F(Apply, OtherNamesOfAReplacedFileKeepTheirContent) {
  Write("/a", "old");
  ASSERT_EQ(::link(Path("/a").c_str(), Path("/b").c_str()), 0);
  BaseVersion a = Base("/a");
  BaseVersion b = Base("/b");
  EXPECT_OK(Do(Put("/a", "new", a)));
  EXPECT_EQ(Read("/b"), "old");
  // The first operation changed the ctime that both names share.
  EXPECT_OK(Do(Remove("/b", b)));
  EXPECT_THAT(List("/"), ElementsAre("a"));
  EXPECT_THAT(notices_, IsEmpty());
}

TEST_F(Apply, MetadataOfAFileThatWasRewrittenIsNotSet) {
  Write("/f", "old");
  BaseVersion base = Base("/f");
  Write("/f", "longer than before");
  WriteBack meta = Message("/f", base);
  *meta.mutable_set_meta()->mutable_meta() = Meta(S_IFREG | 0600);
  EXPECT_OK(Do(meta));
  EXPECT_EQ(Stat("/f").st_mode & 07777, 0644u);
  EXPECT_EQ(notices_.size(), 1u);
}

TEST_F(Apply, TheRootItselfGetsMetadata) {
  WriteBack meta = Message("/", Base("/"));
  *meta.mutable_set_meta()->mutable_meta() = Meta(S_IFDIR | 0711);
  EXPECT_OK(Do(meta));
  EXPECT_EQ(Stat("").st_mode & 07777, 0711u);
  EXPECT_EQ(Do(Remove("/", Base("/"))).error().code(), Code::kInvalid);
}

TEST_F(Apply, ManyFilesAreFlushedTogether) {
  for (int i = 0; i < 100; ++i) EXPECT_OK(Do(Put("/f" + std::to_string(i), "x")));
  auto synced = applier_->Sync();
  ASSERT_TRUE(synced.has_value());
  EXPECT_EQ(*synced, 200u);
  EXPECT_EQ(applier_->files(), 100u);
  EXPECT_OK(applier_->Finish());
  EXPECT_FALSE(PathExists(top_ + "/journal.7"));
}

TEST_F(Apply, AFullDiskIsAnErrorThatLeavesNothingAndPasses) {
  if (!PrivateMounts()) GTEST_SKIP() << "needs root to mount a small file system";
  Mount(Path(""), "size=1m");
  Open();
  Write("/filler", std::string(700'000, 'x'));
  Write("/f", "old");
  auto messages = Put("/f", std::string(600'000, 'y'), Base("/f"));
  Status status = Do(messages);
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().error_number(), ENOSPC);
  EXPECT_THAT(status.error().message(), HasSubstr("/f"));
  EXPECT_EQ(Read("/f"), "old");
  EXPECT_THAT(List("/"), UnorderedElementsAre("f", "filler"));
  ::unlink(Path("/filler").c_str());
  EXPECT_OK(Do(messages));
  EXPECT_EQ(Read("/f").size(), 600'000u);
}

TEST_F(Apply, AReadOnlyHomeIsAnErrorThatNamesThePath) {
  if (!PrivateMounts()) GTEST_SKIP() << "needs root to mount";
  ASSERT_EQ(::mkdir(Path("/ro").c_str(), 0755), 0);
  Mount(Path("/ro"), "ro");
  Status status = Do(Put("/ro/f", "x"));
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().error_number(), EROFS);
  EXPECT_THAT(status.error().message(), HasSubstr("/ro/f"));
  EXPECT_OK(Do(Put("/rw", "the others still go")));
}

TEST_F(Apply, AUserWritesInADirectoryThatHeMadeReadOnly) {
  EXPECT_TRUE(AsUser([&] {
    ::mkdir(Path("/ro").c_str(), 0755);
    Write("/ro/old", "x");
    BaseVersion old = Base("/ro/old");
    ::chmod(Path("/ro").c_str(), 0555);
    bool ok = Do(Put("/ro/f", "x")).has_value() && Do(Remove("/ro/old", old)).has_value();
    return ok && (Stat("/ro").st_mode & 07777) == 0555 && List("/ro") == std::vector<std::string>{"f"};
  }));
}

TEST_F(Apply, AUserKeepsHisFilesAndGivesNobodyElsesRights) {
  EXPECT_TRUE(AsUser([&] {
    auto messages = Put("/f", "x", std::nullopt, 06755);
    messages[0].mutable_put_file()->mutable_meta()->set_uid(0);
    messages[0].mutable_put_file()->mutable_meta()->set_gid(0);
    return Do(messages).has_value() && (Stat("/f").st_mode & 07777) == 0755 && Stat("/f").st_uid == ::geteuid();
  }));
}

TEST_F(Apply, WhatAUserMayNotWriteIsAnError) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to make a directory of somebody else";
  ASSERT_EQ(::mkdir(Path("/root-only").c_str(), 0755), 0);
  EXPECT_TRUE(AsUser([&] {
    Status status = Do(Put("/root-only/f", "x"));
    return !status && status.error().code() == Code::kDenied && List("/root-only").empty();
  }));
}

}  // namespace
}  // namespace vrun::home
