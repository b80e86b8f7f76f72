// SPDX-License-Identifier: Apache-2.0
#include "home/apply.h"

#include <dirent.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cstring>
#include <optional>

#include "base/files.h"
#include "home/deny_list.h"

namespace vrun::home {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;
using v1::BaseVersion;
using v1::WriteBack;

constexpr int64_t kMtime = 1'600'000'000'123'456'789;

bool PrivateMounts() {
  static const bool have = ::geteuid() == 0 && ::unshare(CLONE_NEWNS) == 0 &&
                           ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
  return have;
}

class Apply : public testing::Test {
 protected:
  void SetUp() override {
    ::alarm(60);
    std::string pattern = "/var/tmp/vrun-apply-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    top_ = pattern;
    ::chmod(top_.c_str(), 0755);
    ASSERT_EQ(::mkdir(Path("").c_str(), 0755), 0);
    Open();
  }
  void TearDown() override {
    applier_.reset();
    for (const std::string& mount : mounts_) ::umount2(mount.c_str(), MNT_DETACH);
    EXPECT_TRUE(RemoveTree(top_).has_value());
    ::alarm(0);
  }

  // `kept`: from jobs.
  void Open(uint64_t job = 7, const std::string& kept = "") {
    applier_.reset();
    ApplyOptions options;
    options.root = Path("");
    options.job = job;
    options.attempt = 1;
    if (!kept.empty()) {
      options.rules =
          [rules = DenyList({.root = Path(""), .homes = {}, .home_parents = {}, .own = {Path(kept)}}).Current()] {
            return rules;
          };
    }
    options.journal = top_ + "/journal." + std::to_string(job);
    options.notice = [this](const std::string& text) { notices_.push_back(text); };
    auto applier = Applier::Open(std::move(options));
    ASSERT_TRUE(applier.has_value()) << applier.error().message();
    applier_ = *std::move(applier);
  }
  void Mount(const std::string& path, const std::string& options) {
    ASSERT_EQ(::mount("tmpfs", path.c_str(), "tmpfs", 0, options.c_str()), 0);
    mounts_.push_back(path);
  }

  std::string Path(const std::string& in_root) const { return top_ + "/root" + in_root; }
  void Write(const std::string& path, const std::string& data) {
    auto fd = OpenFile(Path(path), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    ASSERT_TRUE(fd.has_value()) << path;
    ASSERT_TRUE(WriteAll(fd->get(), data).has_value());
  }
  std::string Read(const std::string& path) { return ReadFile(Path(path)).value_or("(none)"); }
  std::vector<std::string> List(const std::string& path) {
    std::vector<std::string> out;
    DIR* dir = ::opendir(Path(path).c_str());
    while (dirent* entry = dir == nullptr ? nullptr : ::readdir(dir)) {
      if (entry->d_name[0] != '.' || std::strlen(entry->d_name) > 2) out.emplace_back(entry->d_name);
    }
    if (dir != nullptr) ::closedir(dir);
    return out;
  }
  struct stat Stat(const std::string& path) {
    struct stat st = {};
    ::lstat(Path(path).c_str(), &st);
    return st;
  }
  BaseVersion Base(const std::string& path) {
    struct stat st = Stat(path);
    BaseVersion base;
    base.set_ino(st.st_ino);
    base.set_type(st.st_mode & S_IFMT);
    base.set_ctime_ns(int64_t{st.st_ctim.tv_sec} * 1'000'000'000 + st.st_ctim.tv_nsec);
    base.set_mtime_ns(int64_t{st.st_mtim.tv_sec} * 1'000'000'000 + st.st_mtim.tv_nsec);
    base.set_size(static_cast<uint64_t>(st.st_size));
    base.set_nlink(st.st_nlink);
    return base;
  }

  WriteBack Message(const std::string& path, const std::optional<BaseVersion>& base = std::nullopt) {
    WriteBack m;
    m.set_sequence(++next_);
    m.set_path(path);
    if (base) *m.mutable_base() = *base;
    return m;
  }
  v1::Meta Meta(uint32_t mode) {
    v1::Meta meta;
    meta.set_mode(mode);
    meta.set_uid(::geteuid());
    meta.set_gid(::getegid());
    meta.set_mtime_ns(kMtime);
    meta.set_atime_ns(kMtime);
    return meta;
  }
  std::vector<WriteBack> Put(const std::string& path, const std::string& data,
                             const std::optional<BaseVersion>& base = std::nullopt, uint32_t mode = 0644) {
    WriteBack put = Message(path, base);
    *put.mutable_put_file()->mutable_meta() = Meta(S_IFREG | mode);
    put.mutable_put_file()->set_size(data.size());
    WriteBack content = Message(path);
    content.mutable_file_data()->set_data(data);
    content.mutable_file_data()->set_last(true);
    return {put, content};
  }
  WriteBack MakeDirectory(const std::string& path, const std::optional<BaseVersion>& base = std::nullopt) {
    WriteBack m = Message(path, base);
    *m.mutable_make_directory()->mutable_meta() = Meta(S_IFDIR | 0755);
    return m;
  }
  WriteBack Remove(const std::string& path, const BaseVersion& base) {
    WriteBack m = Message(path, base);
    m.mutable_remove();
    return m;
  }
  WriteBack Rename(const std::string& from, const std::string& to, const BaseVersion& source) {
    WriteBack m = Message(to);
    m.mutable_rename()->set_from(from);
    *m.mutable_rename()->mutable_source() = source;
    return m;
  }
  Status Do(const std::vector<WriteBack>& messages) {
    for (const WriteBack& m : messages) VRUN_TRY(applier_->Apply(m));
    return {};
  }
  Status Do(const WriteBack& message) { return applier_->Apply(message); }

  // As an ordinary user, in a child; true when `body` said so.
  template <typename Body>
  bool AsUser(Body body) {
    if (::geteuid() != 0) return body();
    EXPECT_EQ(::chown(top_.c_str(), 1000, 1000), 0);
    EXPECT_EQ(::chown(Path("").c_str(), 1000, 1000), 0);
    ::unlink((top_ + "/journal.7").c_str());
    pid_t child = ::fork();
    if (child == 0) {
      bool ok =
          ::setgroups(0, nullptr) == 0 && ::setresgid(1000, 1000, 1000) == 0 && ::setresuid(1000, 1000, 1000) == 0;
      if (ok) Open();
      ok = ok && applier_ && body();
      applier_.reset();
      ::_exit(ok ? 0 : 1);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return status == 0;
  }

  std::string top_;
  std::unique_ptr<Applier> applier_;
  std::vector<std::string> notices_;
  std::vector<std::string> mounts_;
  uint64_t next_ = 0;
};

#define EXPECT_OK(expression)                                          \
  do {                                                                 \
    auto ok_result = (expression);                                     \
    EXPECT_TRUE(ok_result.has_value()) << ok_result.error().message(); \
  } while (0)

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

TEST_F(Apply, ABeginningFileIsNotThereBeforeItsEnd) {
  Write("/f", "old");
  auto messages = Put("/f", "new", Base("/f"));
  EXPECT_OK(Do(messages[0]));
  EXPECT_EQ(Read("/f"), "old");
  EXPECT_EQ(applier_->sequence(), 0u);
  applier_.reset();  // the connection is gone: no trace
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
  // What the job linked is its own version.
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

TEST_F(Apply, AChangedFileIsNotRemovedNorIsItsDirectory) {
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

TEST_F(Apply, ADirectoryWithSomethingNewStays) {
  ASSERT_EQ(::mkdir(Path("/d").c_str(), 0755), 0);
  BaseVersion directory = Base("/d");
  Write("/d/new", "x");
  EXPECT_OK(Do(Remove("/d", directory)));
  EXPECT_EQ(Read("/d/new"), "x");
  ASSERT_EQ(notices_.size(), 1u);
  EXPECT_THAT(notices_[0], HasSubstr("/d was removed by job 7, but it stays"));
}

TEST_F(Apply, ARenamedDirectoryWhoseNewNameIsTakenLandsBesideWithAllThatFollows) {
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

TEST_F(Apply, AFileThatWasEditedIsNotRenamed) {
  Write("/a", "old");
  BaseVersion source = Base("/a");
  Write("/a", "edited");
  EXPECT_OK(Do(Rename("/a", "/b", source)));
  EXPECT_EQ(Read("/a"), "edited");
  EXPECT_THAT(notices_, ElementsAre("/a changed at home while job 7 ran: it was not renamed to /b"));
}

TEST_F(Apply, ARenameIntoItselfIsRefused) {
  ASSERT_EQ(::mkdir(Path("/a").c_str(), 0755), 0);
  EXPECT_EQ(Do(Rename("/a", "/a/b", Base("/a"))).error().code(), Code::kInvalid);
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
  // Without having made the directory: the parent changed under the job.
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
  EXPECT_OK(Do(more[1]));  // of the file that failed
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

TEST_F(Apply, TwoNamesOfOneFileThatTheJobMovedTogetherAreStillItsOwn) {
  Write("/a", "text");
  for (const char* name : {"/b", "/c"}) ASSERT_EQ(::link(Path("/a").c_str(), Path(name).c_str()), 0);
  const BaseVersion base = Base("/a");
  // The overlay sees three files: /a was given other times and replaced /b, /c got another mode.
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

TEST_F(Apply, OtherNamesOfAReplacedFileKeepTheirContent) {
  Write("/a", "old");
  ASSERT_EQ(::link(Path("/a").c_str(), Path("/b").c_str()), 0);
  BaseVersion a = Base("/a");
  BaseVersion b = Base("/b");
  EXPECT_OK(Do(Put("/a", "new", a)));
  EXPECT_EQ(Read("/b"), "old");
  // The first operation moved the ctime that both names share.
  EXPECT_OK(Do(Remove("/b", b)));
  EXPECT_THAT(List("/"), ElementsAre("a"));
  EXPECT_THAT(notices_, IsEmpty());
}

TEST_F(Apply, KindsReplaceEachOther) {
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

TEST_F(Apply, WhatTheJobMovedBetweenFileSystemsIsCopied) {
  if (!PrivateMounts()) GTEST_SKIP() << "needs root to mount";
  ASSERT_EQ(::mkdir(Path("/other").c_str(), 0755), 0);
  Mount(Path("/other"), "size=8m");
  ASSERT_EQ(::mkdir(Path("/d").c_str(), 0750), 0);
  Write("/d/f", "content");
  ASSERT_EQ(::symlink("f", Path("/d/s").c_str()), 0);
  BaseVersion file = Base("/d/f");
  auto rename = Rename("/d", "/other/d", Base("/d"));
  EXPECT_OK(Do(rename));
  ::unlink((top_ + "/journal.7").c_str());
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
