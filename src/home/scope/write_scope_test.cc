// SPDX-License-Identifier: Apache-2.0
// What a hostile node sends for a job: writes where no job writes, and files with privileges.
#include "home/scope/write_scope.h"

#include <sys/xattr.h>

#include <functional>
#include <map>
#include <sstream>
#include <tuple>

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
    options.judge = [](int fd, const struct stat& st, std::string_view path) -> Status {
      std::string text(4096, '\0');
      const ssize_t n = ::pread(fd, text.data(), text.size(), 0);
      text.resize(n > 0 ? static_cast<size_t>(n) : 0);
      if ((st.st_mode & 077) != 0 || text.find("PRIVATE KEY") == std::string::npos) return {};
      return PrivateFile(path);
    };
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
    given.mutable_set_meta()->mutable_meta()->set_uid(33);
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
  EXPECT_THAT(notices_, testing::Contains(HasSubstr("owner 1000")));
  EXPECT_EQ(given("/theirs", 1000, Base("/theirs")), 1000u);
  EXPECT_EQ(given("/theirs", 1001, Base("/theirs")), 1000u);
  With(JobWrites::kAny);
  EXPECT_EQ(given("/for-1000", 1000), 1000u);
}

// --- owners: decision 60 ---------------------------------------------------------------------------------------------

constexpr uint32_t kBob = 1000, kCarol = 1001, kSystem = 33;

class OwnersOfFiles : public Scope {
 protected:
  void SetUp() override {
    Scope::SetUp();
    if (::geteuid() != 0) GTEST_SKIP() << "needs root to give files away";
    for (const char* directory : {"/home", "/home/bob", "/root", "/srv"}) {
      ASSERT_EQ(::mkdir(Path(directory).c_str(), 0755), 0);
    }
    Give("/home/bob", kBob);
    With(JobWrites::kPlain, /*live=*/true);
  }
  void Give(const std::string& path, uint32_t id) { ASSERT_EQ(::lchown(Path(path).c_str(), id, id), 0) << path; }
  std::vector<WriteBack> PutFor(const std::string& path, uint32_t id) {
    auto messages = Put(path, "x");
    messages[0].mutable_put_file()->mutable_meta()->set_uid(id);
    messages[0].mutable_put_file()->mutable_meta()->set_gid(id);
    return messages;
  }
  WriteBack MetaFor(const std::string& path, uint32_t id) {
    WriteBack m = Message(path, Base(path));
    *m.mutable_set_meta()->mutable_meta() = Meta(Stat(path).st_mode);
    m.mutable_set_meta()->mutable_meta()->set_uid(id);
    m.mutable_set_meta()->mutable_meta()->set_gid(id);
    return m;
  }
  uint32_t OwnerOf(const std::string& path) { return Stat(path).st_uid; }
};

TEST_F(OwnersOfFiles, APersonGetsFilesOnlyInHisOwnDirectories) {
  for (const auto& [path, id, gets] : std::vector<std::tuple<std::string, uint32_t, uint32_t>>{
           {"/root/f", 0, 0},
           {"/root/f2", kBob, 0},           // root would run what Bob can change
           {"/srv/www", kSystem, kSystem},  // apt, dpkg
           {"/srv/nobody", 65534, 65534},
           {"/home/bob/f", kBob, kBob},
           {"/home/bob/www", kSystem, 0},
           {"/home/bob/carols", kCarol, 0},
       }) {
    EXPECT_OK(Do(PutFor(path, id)));
    EXPECT_EQ(OwnerOf(path), gets) << path;
    EXPECT_EQ(Stat(path).st_gid, gets) << path;
  }
  EXPECT_THAT(notices_, testing::Contains(testing::AllOf(HasSubstr("/root/f2"), HasSubstr("owner 1000:1000"),
                                                         HasSubstr("job_writes"))));
}

// chown -R gives the files first and then their directory.
TEST_F(OwnersOfFiles, WhatIsMadeBelowAPersonsDirectoryBecomesHis) {
  EXPECT_OK(Do({MakeDirectory("/home/bob/project")}));
  EXPECT_OK(Do({MakeDirectory("/home/bob/project/sub")}));
  EXPECT_OK(Do(Put("/home/bob/project/sub/f", "x")));
  for (const char* path : {"/home/bob/project/sub/f", "/home/bob/project/sub", "/home/bob/project"}) {
    EXPECT_OK(Do(MetaFor(path, kBob)));
    EXPECT_EQ(OwnerOf(path), kBob) << path;
  }
  EXPECT_THAT(notices_, testing::IsEmpty());
}

TEST_F(OwnersOfFiles, AFileThatIsReplacedKeepsItsOwner) {
  Write("/srv/bobs", "old");
  Give("/srv/bobs", kBob);
  // In place.
  auto over = Put("/srv/bobs", "new", Base("/srv/bobs"));
  over[0].mutable_put_file()->mutable_meta()->set_uid(kBob);
  over[0].mutable_put_file()->mutable_meta()->set_gid(kBob);
  EXPECT_OK(Do(over));
  EXPECT_EQ(OwnerOf("/srv/bobs"), kBob);
  // As sed -i and rsync do: a temporary file gets the owner, and then the name.
  EXPECT_OK(Do(Put("/srv/.temporary", "newer")));
  EXPECT_OK(Do(MetaFor("/srv/.temporary", kBob)));
  EXPECT_EQ(OwnerOf("/srv/.temporary"), 0u);
  EXPECT_OK(Do({Rename("/srv/.temporary", "/srv/bobs", Base("/srv/.temporary"))}));
  EXPECT_EQ(Read("/srv/bobs"), "newer");
  EXPECT_EQ(OwnerOf("/srv/bobs"), kBob);
  EXPECT_EQ(Stat("/srv/bobs").st_gid, kBob);
}

TEST_F(OwnersOfFiles, NoMoveAndNoLinkBringsAPersonsFileElsewhere) {
  Write("/home/bob/evil", "x");
  Give("/home/bob/evil", kBob);
  WriteBack link = Message("/root/.bashrc");
  link.mutable_make_hard_link()->set_existing("/home/bob/evil");
  EXPECT_OK(Do({link}));
  EXPECT_EQ(OwnerOf("/root/.bashrc"), 0u);
  EXPECT_NE(Stat("/root/.bashrc").st_ino, Stat("/home/bob/evil").st_ino);
  EXPECT_EQ(OwnerOf("/home/bob/evil"), kBob);
  WriteBack mine = Message("/home/bob/again");
  mine.mutable_make_hard_link()->set_existing("/home/bob/evil");
  EXPECT_OK(Do({mine}));
  EXPECT_EQ(Stat("/home/bob/again").st_ino, Stat("/home/bob/evil").st_ino);
  // It has two names, and would become another's under both.
  EXPECT_FALSE(Do({Rename("/home/bob/evil", "/root/moved", Base("/home/bob/evil"))}));
  ASSERT_EQ(::unlink(Path("/home/bob/again").c_str()), 0);
  EXPECT_OK(Do({Rename("/home/bob/evil", "/root/moved", Base("/home/bob/evil"))}));
  EXPECT_EQ(OwnerOf("/root/moved"), 0u);
  EXPECT_EQ(Read("/root/moved"), "x");
}

TEST_F(OwnersOfFiles, ManyFilesAreAFewLines) {
  for (int i = 0; i < 25; ++i) EXPECT_OK(Do(PutFor("/srv/f" + std::to_string(i), kBob)));
  EXPECT_EQ(notices_.size(), 2u);
  EXPECT_THAT(notices_.back(), HasSubstr("owner of 10 files"));
}

TEST_F(OwnersOfFiles, AnAccessListNamesNobodyElse) {
  const auto acl = [](uint32_t id) {
    std::string value("\x02\0\0\0", 4);
    const auto add = [&](uint16_t tag, uint16_t perm, uint32_t of) {
      value.append(reinterpret_cast<const char*>(&tag), 2).append(reinterpret_cast<const char*>(&perm), 2);
      value.append(reinterpret_cast<const char*>(&of), 4);
    };
    constexpr uint32_t kNone = 0xffffffff;
    add(0x01, 6, kNone);
    add(0x02, 6, id);
    add(0x04, 4, kNone);
    add(0x10, 6, kNone);
    add(0x20, 0, kNone);
    return value;
  };
  const auto put = [&](const std::string& path, uint32_t id) {
    auto messages = Put(path, "x", std::nullopt, 0660);
    v1::Xattr* xattr = messages[0].mutable_put_file()->mutable_meta()->add_xattrs();
    xattr->set_name("system.posix_acl_access");
    xattr->set_value(acl(id));
    EXPECT_OK(Do(messages));
    char value[256];
    return ::getxattr(Path(path).c_str(), "system.posix_acl_access", value, sizeof value) > 0;
  };
  if (!put("/home/bob/for-bob", kBob)) GTEST_SKIP() << "no access lists here";
  EXPECT_FALSE(put("/srv/for-bob", kBob));
  EXPECT_EQ(ModeOf("/srv/for-bob"), 0640u);  // not what the mask allows to those who are named
  EXPECT_TRUE(put("/srv/for-www", kSystem));
}

// --- each operation of the protocol ----------------------------------------------------------------------------------

// The names in WriteBack's `oneof op`.
std::vector<std::string> Operations() {
  const std::string text = ReadFile(VRUN_PROTO_DIR "/task.proto").value_or("");
  const size_t message = text.find("\nmessage WriteBack {"), begin = text.find("oneof op {", message);
  std::istringstream lines(text.substr(begin, text.find("\n  }", begin) - begin));
  std::vector<std::string> names;
  std::string line;
  for (std::getline(lines, line); std::getline(lines, line);) {
    std::string type, name, sign;
    if (std::istringstream(line) >> type >> name >> sign && sign == "=" && type != "//") names.push_back(name);
  }
  return names;
}

// What a forged node may send, by the names of WriteBack.op. An operation without a row fails: whoever adds one says
// here that it is checked.
TEST_F(OwnersOfFiles, EveryOperationIsChecked) {
  ASSERT_EQ(::mkdir(Path("/run").c_str(), 0755), 0);
  Write("/srv/f", "home's");
  Write("/home/bob/f", "bob's");
  Give("/home/bob/f", kBob);
  Write("/run/f", "home's");
  struct Row {
    std::function<std::vector<WriteBack>(const std::string& path)> make;  // with Bob as the owner, and setuid
    std::string gives;  // the file that must not be Bob's afterwards; "": it gives none
  };
  const auto foreign = [&](v1::Meta meta) {
    meta.set_uid(kBob);
    meta.set_gid(kBob);
    AddCapability(&meta);
    return meta;
  };
  std::map<std::string, Row> rows;
  rows["put_file"] = {[&](const std::string& path) {
                        auto messages = Put(path, "x");
                        auto* put = messages[0].mutable_put_file();
                        *put->mutable_meta() = foreign(Meta(S_IFREG | 06755));
                        return messages;
                      },
                      "/srv/made"};
  rows["file_data"] = rows["put_file"];  // comes only after a put_file of the same path
  rows["make_directory"] = {[&](const std::string& path) {
                              WriteBack m = MakeDirectory(path);
                              *m.mutable_make_directory()->mutable_meta() = foreign(Meta(S_IFDIR | 0755));
                              return std::vector<WriteBack>{m};
                            },
                            "/srv/made"};
  rows["make_symlink"] = {[&](const std::string& path) {
                            WriteBack m = Message(path);
                            m.mutable_make_symlink()->set_target("/etc");
                            *m.mutable_make_symlink()->mutable_meta() = foreign(Meta(S_IFLNK | 0777));
                            return std::vector<WriteBack>{m};
                          },
                          "/srv/made"};
  rows["make_special"] = {[&](const std::string& path) {
                            WriteBack m = Message(path);
                            *m.mutable_make_special()->mutable_meta() = foreign(Meta(S_IFIFO | 0666));
                            return std::vector<WriteBack>{m};
                          },
                          "/srv/made"};
  rows["make_hard_link"] = {[&](const std::string& path) {
                              WriteBack m = Message(path);
                              m.mutable_make_hard_link()->set_existing("/home/bob/f");
                              return std::vector<WriteBack>{m};
                            },
                            "/srv/made"};
  rows["remove"] = {[&](const std::string& path) { return std::vector<WriteBack>{Remove(path, Base(path))}; }, ""};
  rows["rename"] = {
      [&](const std::string& path) { return std::vector<WriteBack>{Rename("/home/bob/f", path, Base("/home/bob/f"))}; },
      "/srv/made"};
  rows["set_meta"] = {[&](const std::string& path) {
                        WriteBack m = Message(path, Base(path));
                        *m.mutable_set_meta()->mutable_meta() = foreign(Meta(S_IFREG | 06755));
                        return std::vector<WriteBack>{m};
                      },
                      "/srv/f"};
  const std::vector<std::string> operations = Operations();
  ASSERT_GE(operations.size(), 9u);
  for (const std::string& name : operations) {
    const auto row = rows.find(name);
    ASSERT_NE(row, rows.end()) << "no row for the operation " << name;
    // Where no job writes.
    const std::string place = name == "remove" || name == "set_meta" ? "/run/f" : "/run/made";
    const Status refused = Do(row->second.make(place));
    ASSERT_FALSE(refused) << name;
    EXPECT_EQ(refused.error().code(), Code::kDenied) << name << ": " << refused.error().message();
    EXPECT_THAT(List("/run"), testing::ElementsAre("f")) << name;
    EXPECT_EQ(OwnerOf("/run/f"), 0u) << name;
    // Another's file, setuid, a capability.
    if (row->second.gives.empty()) continue;
    const std::string made = row->second.gives;
    EXPECT_OK(Do(row->second.make(made)));
    EXPECT_NE(OwnerOf(made), kBob) << name;
    EXPECT_NE(Stat(made).st_gid, kBob) << name;
    if (S_ISREG(Stat(made).st_mode)) {
      EXPECT_EQ(ModeOf(made) & 06000, 0u) << name;
    }
    EXPECT_FALSE(HasCapability(made)) << name;
    if (made == "/srv/made") {
      EXPECT_EQ(::remove(Path(made).c_str()), 0) << name;
    }
    if (Stat("/home/bob/f").st_ino == 0) {
      Write("/home/bob/f", "bob's");
      Give("/home/bob/f", kBob);
    }
  }
  EXPECT_EQ(rows.size(), operations.size());
}

// A key is known by its mode and its beginning, and other private files by their inode. None of it can be taken from
// them by a job, so that home would serve them.
TEST_F(Scope, NothingThatIsWithheldIsMadeToLookOtherwise) {
  const std::string key = "-----BEGIN PRIVATE KEY-----\nSECRET\n";
  for (const bool live : {true, false}) {
    With(JobWrites::kPlain, live);
    Write("/key", key);
    Mode("/key", 0600);
    Write("/own", key);
    Mode("/own", 0600);
    // The job reads nothing of it, and changes what does no harm.
    EXPECT_OK(Do(SetMode("/key", 0400)));
    EXPECT_EQ(ModeOf("/key"), 0400u);
    std::vector<std::pair<std::string, std::vector<WriteBack>>> attempts;
    attempts.emplace_back("mode", std::vector<WriteBack>{SetMode("/key", 0644)});
    WriteBack list = SetMode("/key", 0600);
    v1::Xattr* xattr = list.mutable_set_meta()->mutable_meta()->add_xattrs();
    xattr->set_name("system.posix_acl_access");
    attempts.emplace_back("list of rights", std::vector<WriteBack>{list});
    if (live) {
      auto append = Put("/key", std::string(100'000, 'x'), Base("/key"));
      append[0].mutable_put_file()->set_over(v1::APPEND);
      append[0].mutable_put_file()->set_size(key.size() + 100'000);
      append[1].mutable_file_data()->set_offset(key.size());
      attempts.emplace_back("append", append);
      auto patch = Put("/key", std::string(28, 'x'), Base("/key"));
      patch[0].mutable_put_file()->set_over(v1::PATCH);
      patch[0].mutable_put_file()->set_size(key.size());
      attempts.emplace_back("patch", patch);
    }
    for (const auto& [name, messages] : attempts) {
      const Status refused = Do(messages);
      ASSERT_FALSE(refused) << name << ", live " << live;
      EXPECT_EQ(refused.error().code(), Code::kDenied) << name << ": " << refused.error().message();
      EXPECT_EQ(Read("/key"), key) << name;
      EXPECT_EQ(ModeOf("/key") & 077, 0u) << name;
    }
    // What the job has made itself, or is no secret, it may open.
    if (live) {
      EXPECT_OK(Do(Put("/made", key)));
      EXPECT_OK(Do(SetMode("/made", 0600)));
      EXPECT_OK(Do(SetMode("/made", 0644)));
      EXPECT_EQ(ModeOf("/made"), 0644u);
    }
    Write("/notes", "fine");
    Mode("/notes", 0600);
    EXPECT_OK(Do(SetMode("/notes", 0644)));
    EXPECT_EQ(ModeOf("/notes"), 0644u);
    // It may be replaced, removed and renamed: that shows nothing.
    EXPECT_OK(Do({Rename("/key", "/renamed", Base("/key"))}));
    EXPECT_EQ(Read("/renamed"), key);
    EXPECT_OK(Do({Remove("/renamed", Base("/renamed"))}));
  }
}

// A copy on another file system has another inode, by which nobody knows it.
TEST_F(Scope, NothingThatIsWithheldIsCopied) {
  if (!PrivateMounts()) GTEST_SKIP() << "needs root to mount";
  ASSERT_EQ(::mkdir(Path("/other").c_str(), 0755), 0);
  ASSERT_EQ(::mount("tmpfs", Path("/other").c_str(), "tmpfs", 0, nullptr), 0);
  mounts_.push_back(Path("/other"));
  for (const bool live : {true, false}) {
    With(JobWrites::kPlain, live);
    Write("/key", "-----BEGIN PRIVATE KEY-----\nSECRET\n");
    Mode("/key", 0600);
    WriteBack link = Message("/other/f");
    link.mutable_make_hard_link()->set_existing("/key");
    for (const WriteBack& attempt : {Rename("/key", "/other/f", Base("/key")), link}) {
      EXPECT_FALSE(Do({attempt})) << live;
      EXPECT_TRUE(List("/other").empty()) << live;
    }
    EXPECT_NE(Read("/key"), "(none)");
  }
}

}  // namespace
}  // namespace vrun::home
