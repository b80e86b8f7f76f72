// SPDX-License-Identifier: Apache-2.0
// What a hostile node sends for a job: writes where no job writes, and files with privileges.
#include "home/scope/write_scope.h"

#include <sys/xattr.h>

#include "home/testing/apply_testing.h"

namespace vrun::home {
namespace {

using testing::HasSubstr;

class Scope : public Apply {
 protected:
  void With(JobWrites writes, bool live = false) {
    applier_.reset();
    ApplyOptions options;
    options.root = Path("");
    options.job = 7;
    options.attempt = 2;
    options.live = live;
    options.rules = [rules = DenyList({.root = Path(""), .writes = writes}).Current()] { return rules; };
    options.notice = [this](const std::string& text) { notices_.push_back(text); };
    options.journal = top_ + "/journal.scope";
    applier_ = Applier::Open(std::move(options)).value();
  }
  void Mode(const std::string& path, mode_t mode) { ASSERT_EQ(::chmod(Path(path).c_str(), mode), 0); }
  mode_t ModeOf(const std::string& path) { return Stat(path).st_mode & 07777; }
  WriteBack SetMode(const std::string& path, uint32_t mode) {
    WriteBack m = Message(path, Base(path));
    *m.mutable_set_meta()->mutable_meta() = Meta(S_IFREG | mode);
    m.mutable_set_meta()->mutable_meta()->set_uid(Stat(path).st_uid);
    m.mutable_set_meta()->mutable_meta()->set_gid(Stat(path).st_gid);
    return m;
  }
  static v1::Xattr* AddCapability(v1::Meta* meta) {
    v1::Xattr* xattr = meta->add_xattrs();
    xattr->set_name("security.capability");
    // cap_net_raw+ep
    xattr->set_value(std::string("\x01\0\0\x02\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 20));
    return xattr;
  }
  bool HasCapability(const std::string& path) {
    char value[64];
    return ::getxattr(Path(path).c_str(), "security.capability", value, sizeof value) > 0;
  }
};

TEST_F(Scope, NothingIsWrittenIntoPlacesThatEachJobHasItself) {
  Write("/f", "home's");
  for (const std::string place : {"/proc", "/sys", "/dev", "/run", "/tmp"}) {
    ASSERT_EQ(::mkdir(Path(place).c_str(), 0755), 0);
    ASSERT_EQ(::mkdir(Path(place + "/d").c_str(), 0755), 0);
    Write(place + "/d/f", "home's");
    const std::string to = place + "/d/new";
    std::vector<std::vector<WriteBack>> attempts;
    attempts.push_back(Put(to, "x"));
    attempts.push_back(Put(place + "/d/f", "x", Base(place + "/d/f")));
    attempts.push_back({MakeDirectory(to)});
    attempts.push_back({Remove(place + "/d/f", Base(place + "/d/f"))});
    attempts.push_back({Rename("/f", to, Base("/f"))});
    attempts.push_back({Rename(place + "/d/f", "/taken", Base(place + "/d/f"))});
    attempts.push_back({SetMode(place + "/d/f", 0777)});
    attempts.push_back({Message(place)});
    *attempts.back()[0].mutable_set_meta()->mutable_meta() = Meta(S_IFDIR | 0777);
    attempts.push_back({Message(to)});
    attempts.back()[0].mutable_make_symlink()->set_target("/etc");
    attempts.push_back({Message(to)});
    *attempts.back()[0].mutable_make_special()->mutable_meta() = Meta(S_IFIFO | 0666);
    attempts.push_back({Message(to)});
    attempts.back()[0].mutable_make_hard_link()->set_existing("/f");
    attempts.push_back({Message("/taken")});
    attempts.back()[0].mutable_make_hard_link()->set_existing(place + "/d/f");
    for (size_t i = 0; i < attempts.size(); ++i) {
      const Status refused = Do(attempts[i]);
      ASSERT_FALSE(refused) << place << " attempt " << i;
      EXPECT_EQ(refused.error().code(), Code::kDenied)
          << place << " attempt " << i << ": " << refused.error().message();
      EXPECT_THAT(refused.error().message(), HasSubstr("a " + place + " of its own"));
    }
    EXPECT_THAT(List(place + "/d"), testing::ElementsAre("f"));
    EXPECT_EQ(Read(place + "/d/f"), "home's");
    EXPECT_EQ(Stat(place).st_mode & 07777, 0755u);
  }
  EXPECT_EQ(Read("/f"), "home's");
  EXPECT_EQ(Read("/taken"), "(none)");
  EXPECT_OK(Do(Put("/tmpfile", "a name that only begins like one")));
  ASSERT_EQ(::mkdir(Path("/var").c_str(), 0755), 0);
  ASSERT_EQ(::mkdir(Path("/var/tmp").c_str(), 0755), 0);
  EXPECT_OK(Do(Put("/var/tmp/f", "x")));
}

TEST_F(Scope, NothingIsWrittenIntoFileSystemsThatAreNotMirrored) {
  if (!PrivateMounts()) GTEST_SKIP() << "needs root to mount";
  ASSERT_EQ(::mkdir(Path("/mnt").c_str(), 0755), 0);
  ASSERT_EQ(::mount("proc", Path("/mnt").c_str(), "proc", 0, nullptr), 0);
  mounts_.push_back(Path("/mnt"));
  const std::string before = Read("/mnt/sys/kernel/core_pattern");
  const Status refused = Do(Put("/mnt/sys/kernel/core_pattern", "|/evil"));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kDenied);
  EXPECT_THAT(refused.error().message(), HasSubstr("/mnt (proc) is not mirrored"));
  EXPECT_EQ(Read("/mnt/sys/kernel/core_pattern"), before);
  EXPECT_FALSE(Do(Remove("/mnt/self", Base("/mnt/self"))));
  // After it is gone the place is an ordinary one.
  ASSERT_EQ(::umount(Path("/mnt").c_str()), 0);
  EXPECT_OK(Do(Put("/mnt/f", "x")));
}

TEST_F(Scope, AJobMakesNoFileSetuidNorWithCapabilities) {
  for (const bool live : {false, true}) {
    With(JobWrites::kPlain, live);
    const std::string name = live ? "/live" : "/frozen";
    auto put = Put(name, "x", std::nullopt, 06755);
    AddCapability(put[0].mutable_put_file()->mutable_meta());
    EXPECT_OK(Do(put));
    EXPECT_EQ(ModeOf(name), 0755u);
    EXPECT_FALSE(HasCapability(name));
    ASSERT_FALSE(notices_.empty());
    EXPECT_THAT(notices_.back(), testing::AllOf(HasSubstr("setuid"), HasSubstr("setgid"), HasSubstr("capability"),
                                                HasSubstr("job_writes")));
    EXPECT_OK(Do(SetMode(name, 04711)));
    EXPECT_EQ(ModeOf(name), 0711u);
    ASSERT_EQ(::mkdir(Path(name + "-d").c_str(), 0755), 0);
    auto directory = MakeDirectory(name + "-shared");
    directory.mutable_make_directory()->mutable_meta()->set_mode(S_IFDIR | 02775);
    EXPECT_OK(Do(directory));
    EXPECT_EQ(ModeOf(name + "-shared"), 02775u);  // members of a group share it; nobody gets anything by it
  }
}

TEST_F(Scope, WhatHomeHasGivenItselfStaysUntilOwnerOrContentChange) {
  With(JobWrites::kPlain, /*live=*/true);
  Write("/su", "home's");
  Mode("/su", 04755);
  EXPECT_OK(Do(SetMode("/su", 04711)));
  EXPECT_EQ(ModeOf("/su"), 04711u);
  if (::geteuid() == 0) {
    auto given = SetMode("/su", 04711);
    given.mutable_set_meta()->mutable_meta()->set_uid(1000);
    EXPECT_OK(Do(given));
    EXPECT_EQ(ModeOf("/su"), 0711u);
    ASSERT_EQ(::chown(Path("/su").c_str(), 0, 0), 0);
    Mode("/su", 04755);
  }
  auto replaced = Put("/su", "evil!!", Base("/su"), 04755);
  EXPECT_OK(Do(replaced));
  EXPECT_EQ(Read("/su"), "evil!!");
  EXPECT_EQ(ModeOf("/su"), 0755u);

  // Neither in place: the content never stands in a file that is setuid.
  for (const auto over : {v1::PATCH, v1::APPEND, v1::APPEND_ANY}) {
    Mode("/su", 04755);
    const struct stat before = Stat("/su");
    auto patch = Put("/su", "evil twice", Base("/su"), 04755);
    patch[0].mutable_put_file()->set_over(over);
    patch[0].mutable_put_file()->set_linked(before.st_ino);
    patch[0].mutable_put_file()->set_append_from(before.st_size);
    const Status done = Do(patch);
    (void)applier_->TakeWantWhole();
    const struct stat after = Stat("/su");
    EXPECT_TRUE(after.st_ino != before.st_ino || Read("/su").size() == static_cast<size_t>(before.st_size))
        << over << " " << (done ? "" : done.error().message());
    if (after.st_ino != before.st_ino) {
      EXPECT_EQ(after.st_mode & 06000, 0u) << over;
    }
  }
}

TEST_F(Scope, TheConfigurationAllowsMoreOrLess) {
  With(JobWrites::kAny);
  auto put = Put("/any", "x", std::nullopt, 04755);
  EXPECT_OK(Do(put));
  EXPECT_EQ(ModeOf("/any"), 04755u);
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to give files away";
  With(JobWrites::kOwn);
  Write("/theirs", "x");
  ASSERT_EQ(::chown(Path("/theirs").c_str(), 1000, 0), 0);
  const auto given = [&](const std::string& name, uint32_t uid, std::optional<BaseVersion> base = std::nullopt) {
    auto messages = Put(name, "y", base);
    messages[0].mutable_put_file()->mutable_meta()->set_uid(uid);
    EXPECT_OK(Do(messages));
    return Stat(name).st_uid;
  };
  EXPECT_EQ(given("/new", 1000), 0u);
  EXPECT_THAT(notices_.back(), HasSubstr("owner 1000"));
  EXPECT_EQ(given("/theirs", 1000, Base("/theirs")), 1000u);
  EXPECT_EQ(given("/theirs", 1001, Base("/theirs")), 1000u);
  With(JobWrites::kPlain);
  EXPECT_EQ(given("/for-1000", 1000), 1000u);
}

}  // namespace
}  // namespace vrun::home
