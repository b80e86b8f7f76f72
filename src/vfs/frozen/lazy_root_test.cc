// SPDX-License-Identifier: Apache-2.0
#include "vfs/frozen/lazy_root.h"

#include <linux/posix_acl.h>
#include <linux/posix_acl_xattr.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <optional>
#include <random>
#include <set>

#include "vfs/content/withheld.h"
#include "vfs/testing/lazy_testing.h"

namespace vrun::vfs {
namespace {

TEST_F(LazyRootTest, NamesAndAttributesAreHomes) {
  options_.ids = 100000;
  TreeMaker maker;
  maker.File("/etc/passwd", "root:x", 0640).Symlink("/bin", "usr/bin").Dir("/home", 0711);
  maker.At("/etc/passwd").uid = 0;
  maker.At("/etc/passwd").gid = 3'000'000;
  maker.At("/etc/passwd").mtime_ns = -1;
  maker.At("/etc/passwd").blocks = 0;
  tree::Entry device;
  device.mode = S_IFCHR | 0666;
  device.rdev = makedev(259, 300000);
  device.dev = 77;
  device.ino = 9;
  maker.Put("/null", device);
  Mount(maker);

  const auto passwd = Find("/etc/passwd");
  EXPECT_EQ(passwd.entry_valid, kForeverSeconds);
  EXPECT_EQ(passwd.attr_valid, kForeverSeconds);
  EXPECT_EQ(passwd.attr.mode, uint32_t{S_IFREG | 0640});
  EXPECT_EQ(passwd.attr.uid, 100000u);
  EXPECT_EQ(passwd.attr.gid, 165534u);
  EXPECT_EQ(passwd.attr.size, 6u);
  EXPECT_EQ(passwd.attr.blocks, 0u);
  EXPECT_EQ(static_cast<int64_t>(passwd.attr.mtime), -1);
  EXPECT_EQ(passwd.attr.mtimensec, 999'999'999u);
  EXPECT_EQ(passwd.attr.ino, maker.At("/etc/passwd").ino);
  EXPECT_EQ(kernel_->GetAttr(passwd.nodeid).As<fuse_attr_out>().attr.uid, 100000u);

  EXPECT_EQ(Find("/home").attr.mode, uint32_t{S_IFDIR | 0711});
  const auto link = Find("/bin");
  EXPECT_EQ(kernel_->Call(FUSE_READLINK, link.nodeid, "").body, "usr/bin");
  EXPECT_EQ(kernel_->Call(FUSE_READLINK, passwd.nodeid, "").error, EINVAL);

  const auto null = Find("/null");
  EXPECT_EQ(null.attr.rdev, 1u);  // no device of this node, whatever home says
  EXPECT_NE(null.attr.ino, 9u);   // another file system of home: its inode numbers must not collide
  EXPECT_EQ(null.attr.ino & 0xffffffff, 9u);
  EXPECT_EQ(kernel_->GetAttr(1).As<fuse_attr_out>().attr.ino, 2u);
}

TEST_F(LazyRootTest, AbsentNamesAreRememberedForEver) {
  Mount(TreeMaker().File("/a", "1"));
  const auto none = Find("/nothing");
  EXPECT_EQ(none.nodeid, 0u);
  EXPECT_EQ(none.entry_valid, kForeverSeconds);
}

TEST_F(LazyRootTest, WhoAsksForAHiddenNameIsToldAboutAtHome) {
  Mount(TreeMaker().File("/d/e/f", "1"));
  std::vector<std::string> asked;
  backend_->withheld().OnAsked([&](const std::string& path) { asked.push_back(path); });
  EXPECT_EQ(Find("/d/e/key").entry_valid, kForeverSeconds);
  backend_->withheld().Set(HiddenNames::Of("salt", {"/d/e/key", "/secret", "/d/e/f"}));
  const auto key = Find("/d/e/key");
  EXPECT_EQ(key.nodeid, 0u);
  EXPECT_EQ(key.entry_valid, 0u) << "the next job asks again";
  EXPECT_EQ(Find("/d/key").entry_valid, kForeverSeconds) << "the name is elsewhere";
  EXPECT_EQ(Find("/secret").entry_valid, 0u);
  EXPECT_NE(Find("/d/e/f").nodeid, 0u) << "it is exposed";
  EXPECT_EQ(asked, (std::vector<std::string>{"/d/e/key", "/secret"}));
  backend_->withheld().Set({});
  EXPECT_EQ(Find("/secret").entry_valid, kForeverSeconds);
}

TEST_F(LazyRootTest, DirectoriesAreFetchedOnceAndKeptAcrossRestarts) {
  const TreeMaker maker = TreeMaker().File("/d/e/f", "1").File("/d/g", "2");
  const Digest tree = source_.Add(maker);
  Mount(tree);
  Find("/d/e/f");
  Find("/d/g");
  EXPECT_EQ(source_.CountAsked('d'), 3u);
  EXPECT_EQ(source_.asked().back().path, "/d/e");
  Restart();
  source_.ClearAsked();
  Mount(tree);
  Find("/d/e/f");
  EXPECT_EQ(source_.asked().size(), 0u);  // the root entry too
}

TEST_F(LazyRootTest, PreloadedDirectoriesAreNotAskedFor) {
  const TreeMaker maker = TreeMaker().File("/d/e/f", "1");
  const auto snapshot = maker.Make();
  Mount(source_.Add(maker));
  source_.ClearAsked();
  std::vector<FetchedDirectory> burst;
  burst.push_back({snapshot->directory, {}});
  burst.push_back({snapshot->directory->Child(0), {}});
  burst.push_back({snapshot->directory->Child(0)->Child(0), {}});
  const Digest inner = burst[2].directory->digest();
  backend_->Preload(std::move(burst));
  EXPECT_TRUE(backend_->HasDirectory(inner));
  Find("/d/e/f");
  EXPECT_EQ(source_.CountAsked('d'), 0u);
}

TEST_F(LazyRootTest, WhoAskedForADirectoryHasItFromTheBurst) {
  const TreeMaker maker = TreeMaker().File("/d/a", "1");
  const auto snapshot = maker.Make();
  Mount(source_.Add(maker));
  const auto d = Find("/d");
  source_.Hold(true);
  const uint64_t asked = kernel_->SendLookup(d.nodeid, "a");
  ASSERT_TRUE(source_.WaitHeld(1));
  std::vector<FetchedDirectory> burst;
  burst.push_back({snapshot->directory->Child(0), {}});
  backend_->Preload(std::move(burst));
  EXPECT_NE(kernel_->Wait(asked)->As<fuse_entry_out>().nodeid, 0u);
  source_.Hold(false);
}

TEST_F(LazyRootTest, ConcurrentLookupsOfOneDirectoryAreOneFetch) {
  Mount(TreeMaker().File("/d/a", "1").File("/d/b", "2"));
  const auto d = Find("/d");
  source_.Hold(true);
  std::vector<uint64_t> ids;
  for (int i = 0; i < 10; ++i) ids.push_back(kernel_->SendLookup(d.nodeid, i % 2 != 0 ? "a" : "b"));
  ASSERT_TRUE(source_.WaitHeld(1));
  kernel_->Call(FUSE_STATFS, 1, "");  // the workers are free while home does not answer
  source_.Hold(false);
  for (const uint64_t id : ids) EXPECT_NE(kernel_->Wait(id)->As<fuse_entry_out>().nodeid, 0u);
  EXPECT_EQ(source_.CountAsked('d'), 2u);
}

TEST_F(LazyRootTest, ListingsAreCompleteInBothForms) {
  TreeMaker maker;
  std::set<std::string> names = {".", ".."};
  for (int i = 0; i < 500; ++i) {
    const std::string name = "file \n\xff" + std::to_string(i) + std::string(i % 200, 'x');
    maker.File("/d/" + name, "x");
    names.insert(name);
  }
  maker.Dir("/empty");
  Mount(maker);
  const auto d = Find("/d");
  for (const bool plus : {false, true}) {
    std::set<std::string> seen;
    for (const auto& entry : kernel_->ReadDir(d.nodeid, plus)) {
      EXPECT_TRUE(seen.insert(entry.name).second) << entry.name;
      if (entry.name == "." || entry.name == "..") {
        EXPECT_EQ(entry.entry.nodeid, 0u);
        EXPECT_EQ(entry.type, 4u);
        continue;
      }
      EXPECT_EQ(entry.type, 8u);
      EXPECT_EQ(entry.ino, maker.At("/d/" + entry.name).ino);
      if (plus) {
        EXPECT_NE(entry.entry.nodeid, 0u);
        EXPECT_EQ(entry.entry.attr.size, 1u);
        EXPECT_EQ(kernel_->lookups(entry.entry.nodeid), 1u);
      }
    }
    EXPECT_EQ(seen, names);
  }
  EXPECT_EQ(root_->inodes(), 502u);
  EXPECT_EQ(kernel_->ReadDir(Find("/empty").nodeid, true).size(), 2u);
}

TEST_F(LazyRootTest, ForgettingEverythingLeavesTheRoot) {
  TreeMaker maker;
  maker.File("/a/b/c", "1").File("/a/d", "2").HardLink("/a/e", "/a/d");
  Mount(maker);
  Find("/a/b/c");
  Find("/a/d");
  Find("/a/e");
  kernel_->ReadDir(Find("/a").nodeid, true);
  EXPECT_EQ(root_->inodes(), 5u);
  kernel_->ForgetAll();
  kernel_->Call(FUSE_STATFS, 1, "");
  while (root_->inodes() != 1) std::this_thread::yield();
  EXPECT_EQ(ReadAll("/a/b/c"), "1");  // and all is found again after that
}

TEST_F(LazyRootTest, ParentsForgottenBeforeTheirChildrenStayUntilThose) {
  Mount(TreeMaker().File("/a/b/c", "content"));
  const auto a = Find("/a");
  const auto b = kernel_->Lookup(a.nodeid, "b").As<fuse_entry_out>();
  const auto c = kernel_->Lookup(b.nodeid, "c").As<fuse_entry_out>();
  kernel_->Forget(a.nodeid, 1);
  kernel_->Forget(b.nodeid, 1);
  EXPECT_EQ(kernel_->Read(c.nodeid, 0, 100).body, "content");
  kernel_->Forget(c.nodeid, 1);
  while (root_->inodes() != 1) std::this_thread::yield();
  EXPECT_EQ(kernel_->GetAttr(c.nodeid).error, ESTALE);
}

TEST_F(LazyRootTest, LookupsNobodyTookAreNotCounted) {
  Mount(TreeMaker().File("/d/a", "1"));
  const auto d = Find("/d");
  source_.Hold(true);
  const uint64_t id = kernel_->SendLookup(d.nodeid, "a");
  ASSERT_TRUE(source_.WaitHeld(1));
  kernel_->Withdraw(id);
  source_.Hold(false);
  const auto a = Find("/d/a");  // comes after the withdrawn one, so that one was answered first
  kernel_->Forget(a.nodeid, 1);
  kernel_->Forget(d.nodeid, 2);
  while (root_->inodes() != 1) std::this_thread::yield();
}

TEST_F(LazyRootTest, HardLinksAreOneNode) {
  TreeMaker maker;
  maker.File("/a", "same").HardLink("/d/b", "/a").File("/c", "same");
  Mount(maker);
  const auto a = Find("/a");
  const auto b = Find("/d/b");
  EXPECT_EQ(a.nodeid, b.nodeid);
  EXPECT_EQ(a.attr.nlink, 2u);
  EXPECT_NE(a.nodeid, Find("/c").nodeid);
  kernel_->Forget(a.nodeid, 1);
  EXPECT_EQ(kernel_->Read(b.nodeid, 0, 10).body, "same");
}

TEST_F(LazyRootTest, SmallFilesComeWholeAndOnce) {
  const std::string content = Noise(900 * kKiB, 1);
  Mount(TreeMaker().File("/f", content).File("/empty", ""));
  const auto f = Find("/f");
  source_.Hold(true);
  std::vector<uint64_t> ids;
  for (int i = 0; i < 9; ++i) ids.push_back(kernel_->SendRead(f.nodeid, i * 100 * kKiB, 100 * kKiB));
  ASSERT_TRUE(source_.WaitHeld(1));
  source_.Hold(false);
  for (int i = 0; i < 9; ++i) {
    EXPECT_EQ(kernel_->Wait(ids[i])->body, content.substr(i * 100 * kKiB, 100 * kKiB));
  }
  EXPECT_EQ(source_.CountAsked('f'), 1u);
  EXPECT_EQ(kernel_->Read(f.nodeid, 900 * kKiB - 5, 4096).body, content.substr(content.size() - 5));
  EXPECT_EQ(kernel_->Read(f.nodeid, 900 * kKiB, 4096).body, "");
  EXPECT_EQ(kernel_->Read(f.nodeid, UINT64_MAX - 10, 4096).body, "");
  EXPECT_EQ(ReadAll("/empty"), "");
  EXPECT_EQ(source_.CountAsked('f'), 1u);
  EXPECT_EQ(backend_->counters().units_fetched, (900 * kKiB + store::kUnitBytes - 1) / store::kUnitBytes);
}

TEST_F(LazyRootTest, ASmallFileReadFromItsEndComesWholeToo) {
  const std::string content = Noise(900 * kKiB, 3);
  Mount(TreeMaker().File("/f", content));
  const auto f = Find("/f");
  EXPECT_EQ(kernel_->Read(f.nodeid, 800 * kKiB, 4096).body, content.substr(800 * kKiB, 4096));
  EXPECT_TRUE(ReadAll("/f") == content);
  EXPECT_EQ(source_.CountAsked('f'), 1u);
}

TEST_F(LazyRootTest, LargeFilesComeInPieces) {
  const std::string content = Noise(10 * kMiB + 777, 2);
  Mount(TreeMaker().File("/f", content));
  const auto f = Find("/f");
  struct Case {
    uint64_t offset;
    uint32_t length;
    uint64_t from, wanted, around;  // requested on demand; in all, with neighbours
  };
  for (const Case& c : {Case{5 * kMiB + 100, 4096, 5 * kMiB, store::kUnitBytes, 256 * kKiB},
                        Case{kMiB - 1, 2, kMiB - store::kUnitBytes, 2 * store::kUnitBytes, 512 * kKiB},
                        Case{10 * kMiB + 700, 4096, 10 * kMiB, 777, 777}}) {
    source_.ClearAsked();
    const uint64_t before = backend_->counters().bytes_fetched;
    EXPECT_EQ(kernel_->Read(f.nodeid, c.offset, c.length).body, content.substr(c.offset, c.length));
    EXPECT_TRUE(Eventually([&] { return backend_->counters().bytes_fetched == before + c.around; }));
    for (const auto& asked : source_.asked()) {
      if (asked.what != 'f') continue;
      EXPECT_EQ(asked.offset, c.from);
      EXPECT_EQ(asked.length, c.wanted);
    }
    EXPECT_EQ(source_.CountAsked('f'), 1u);
  }
  EXPECT_TRUE(ReadAll("/f") == content);
}

TEST_F(LazyRootTest, SequentialReadersGetLargerPieces) {
  const std::string content = Noise(40 * kMiB, 3);
  Mount(TreeMaker().File("/f", content));
  EXPECT_TRUE(ReadAll("/f") == content);
  uint64_t largest = 0;
  uint64_t total = 0;
  for (const auto& asked : source_.asked()) {
    if (asked.what != 'f') continue;
    largest = std::max(largest, asked.length);
    total += asked.length;
  }
  EXPECT_EQ(largest, 4 * kMiB);
  EXPECT_EQ(total, content.size());         // nothing was fetched twice
  EXPECT_LT(source_.CountAsked('f'), 30u);  // of 640 units
}

TEST_F(LazyRootTest, WhatHomeTouchedComesBeforeItIsAskedFor) {
  const std::string large = Noise(3 * kMiB, 30), small = Noise(10 * kKiB, 31);
  TreeMaker maker;
  maker.File("/d/large", large).File("/d/small", small).File("/lib/needed", small + "x");
  source_.SetResident("/d/large",
                      {{"/d/large", maker.At("/d/large").version(), {}, {{0, 256 * kKiB}, {2 * kMiB, 3 * kMiB}}},
                       {"/d/small", maker.At("/d/small").version(), {}, {{0, small.size()}}},
                       {"/lib/needed", maker.At("/lib/needed").version(), {}, {{0, small.size() + 1}}}});
  Mount(maker);
  const auto f = Find("/d/large");
  EXPECT_EQ(kernel_->Read(f.nodeid, 0, 4096).body, large.substr(0, 4096));
  EXPECT_TRUE(
      Eventually([&] { return backend_->counters().bytes_fetched == 256 * kKiB + kMiB + 2 * small.size() + 1; }));
  source_.ClearAsked();
  EXPECT_EQ(kernel_->Read(f.nodeid, 2 * kMiB, 4096).body, large.substr(2 * kMiB, 4096));
  EXPECT_EQ(ReadAll("/d/small"), small);
  EXPECT_EQ(ReadAll("/lib/needed"), small + "x");
  EXPECT_EQ(source_.CountAsked('f') + source_.CountAsked('a'), 0u);
  EXPECT_TRUE(ReadAll("/d/large") == large);
  EXPECT_EQ(source_.CountAsked('e'), 0u);  // asked once per file
}

TEST_F(LazyRootTest, WhatDoesNotComeAheadIsNoErrorAndComesOnDemand) {
  const std::string content = Noise(3 * kMiB, 32);
  TreeMaker maker;
  maker.File("/f", content).File("/gone", "x");
  tree::FileVersion gone = maker.At("/gone").version();
  ++gone.ctime_ns;
  source_.SetResident(
      "/f", {{"/f", maker.At("/f").version(), {}, {{kMiB, 2 * kMiB}}}, {"/gone", gone, {}, {{0, gone.size}}}});
  source_.FailWith([](const FakeSource::Asked& asked) -> std::optional<Error> {
    if (asked.what == 'a') return Error(Code::kAborted, "no");
    return std::nullopt;
  });
  Mount(maker);
  EXPECT_TRUE(ReadAll("/f") == content);
  EXPECT_EQ(ReadAll("/gone"), "x");
  EXPECT_TRUE(lost().empty());
}

TEST_F(LazyRootTest, AViewGoesWhileMuchIsStillToComeAhead) {
  const std::string content = Noise(20 * kMiB, 33);
  TreeMaker maker;
  maker.File("/f", content);
  source_.SetResident("/f", {{"/f", maker.At("/f").version(), {}, {{0, content.size()}}}});
  Mount(maker);
  EXPECT_EQ(kernel_->Read(Find("/f").nodeid, 0, 10).body, content.substr(0, 10));
  Restart();
}

TEST_F(LazyRootTest, KnownContentIsNotFetchedAgainUnderAnotherName) {
  const std::string content = Noise(300 * kKiB, 4);
  source_.TellIds(true);
  Mount(TreeMaker().File("/a", content).File("/b", content));
  EXPECT_EQ(ReadAll("/a"), content);
  EXPECT_EQ(ReadAll("/b"), content);
  EXPECT_EQ(source_.CountAsked('f'), 1u);
}

TEST_F(LazyRootTest, ContentSurvivesRestarts) {
  const std::string content = Noise(3 * kMiB, 5);
  const Digest tree = source_.Add(TreeMaker().File("/a", content));
  Mount(tree);
  EXPECT_EQ(ReadAll("/a"), content);
  Restart();
  source_.ClearAsked();
  Mount(tree);
  EXPECT_EQ(ReadAll("/a"), content);
  EXPECT_EQ(source_.asked().size(), 0u);
  EXPECT_GT(backend_->counters().units_from_store, 0u);
}

TEST_F(LazyRootTest, AFullDiskIsServedThroughMemory) {
  FullStore full(*store_);
  use_store_ = &full;
  backend_options_.unstored_memory_bytes = 2 * kMiB;
  const std::string content = Noise(9 * kMiB, 6);
  const std::string small = Noise(500 * kKiB, 7);
  Mount(TreeMaker().File("/f", content).File("/small", small));
  EXPECT_TRUE(ReadAll("/f") == content);
  EXPECT_EQ(ReadAll("/small"), small);
  EXPECT_TRUE(ReadAll("/f") == content);
  EXPECT_GT(backend_->counters().store_write_failures, 0u);
  EXPECT_EQ(lost().size(), 0u);
  Unmount();
  backend_.reset();
}

TEST_F(LazyRootTest, AChangedFileIsEioAndReportedOnce) {
  Mount(TreeMaker().File("/d/f", Noise(5000, 1)).File("/d/g", "fine"));
  source_.FailWith([](const FakeSource::Asked& asked) -> std::optional<Error> {
    if (asked.path == "/d/f" && asked.what == 'f') return Error(Code::kAborted, "read f: it has changed");
    return std::nullopt;
  });
  const auto f = Find("/d/f");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(kernel_->Read(f.nodeid, 0, 100).error, EIO);
  EXPECT_EQ(lost(), std::vector<std::string>{"/d/f: read f: it has changed"});
  EXPECT_EQ(source_.CountAsked('f'), 1u);  // no retry: the version will not come back
  EXPECT_EQ(ReadAll("/d/g"), "fine");
}

TEST_F(LazyRootTest, WhatHomeMayNotReadIsEacces) {
  Mount(TreeMaker().File("/f", "secret"));
  source_.FailWith([](const FakeSource::Asked& asked) -> std::optional<Error> {
    if (asked.what == 'f') return Error(Code::kDenied, "no");
    return std::nullopt;
  });
  const auto f = Find("/f");
  EXPECT_EQ(kernel_->Read(f.nodeid, 0, 100).error, EACCES);
  EXPECT_EQ(lost().size(), 0u);
  source_.FailWith(nullptr);
  EXPECT_EQ(ReadAll("/f"), "secret");  // the error is not permanent
}

TEST_F(LazyRootTest, HomeAwayIsWaitedFor) {
  Mount(TreeMaker().File("/d/f", "here"));
  std::atomic<int> failures{0};
  source_.FailWith([&](const FakeSource::Asked& asked) -> std::optional<Error> {
    if (asked.what == 'r' || failures.fetch_add(1) % 3 == 2) return std::nullopt;
    return Error(Code::kUnavailable, "home is away");
  });
  EXPECT_EQ(ReadAll("/d/f"), "here");
  EXPECT_GT(backend_->counters().fetch_retries, 0u);
  EXPECT_EQ(lost().size(), 0u);
}

TEST_F(LazyRootTest, HomeBackEndsTheWaitAtOnce) {
  backend_options_.home_deadline_micros = 3600ll * 1'000'000;
  Mount(TreeMaker().File("/f", "here"));
  const auto f = Find("/f");
  std::atomic<bool> away{true};
  source_.FailWith([&](const FakeSource::Asked& asked) -> std::optional<Error> {
    if (asked.what == 'f' && away) return Error(Code::kUnavailable, "home is away");
    return std::nullopt;
  });
  const uint64_t id = kernel_->SendRead(f.nodeid, 0, 10);
  while (source_.CountAsked('f') < 3) std::this_thread::yield();
  away = false;
  backend_->HomeIsBack();
  EXPECT_EQ(kernel_->Wait(id)->body, "here");
}

TEST_F(LazyRootTest, HomeAwayForTooLongIsEio) {
  backend_options_.home_deadline_micros = 300'000;
  Mount(TreeMaker().File("/d/f", "here"));
  source_.FailWith([](const FakeSource::Asked& asked) -> std::optional<Error> {
    if (asked.what == 'f') return Error(Code::kUnavailable, "home is away");
    return std::nullopt;
  });
  const auto f = Find("/d/f");
  EXPECT_EQ(kernel_->Read(f.nodeid, 0, 10).error, EIO);
  EXPECT_EQ(lost().size(), 0u);  // the content may come back
  source_.FailWith(nullptr);
  EXPECT_EQ(kernel_->Read(f.nodeid, 0, 10).body, "here");
}

TEST_F(LazyRootTest, AHomeThatNeverAnswersIsEioAtTheDeadline) {
  backend_options_.home_deadline_micros = 300'000;
  Mount(TreeMaker().File("/d/f", "here").File("/e/f", "1"));
  const auto f = Find("/d/f");
  const auto e = Find("/e");
  source_.Hold(true);
  EXPECT_EQ(kernel_->Read(f.nodeid, 0, 10).error, EIO);
  EXPECT_EQ(kernel_->Lookup(e.nodeid, "f").error, EIO);
  source_.Hold(false);
  EXPECT_EQ(kernel_->Read(f.nodeid, 0, 10).body, "here");
}

TEST_F(LazyRootTest, AHostileHomeIsNeverBelieved) {
  const std::string content = Noise(200 * kKiB, 1);
  const std::vector<std::function<void(FetchedRange*)>> lies = {
      [](FetchedRange* r) { r->offset += 65536; },
      [](FetchedRange* r) { r->units.pop_back(); },
      [](FetchedRange* r) { r->units.clear(); },
      [](FetchedRange* r) { r->units.push_back(r->units[0]); },
      [](FetchedRange* r) { r->units[0].data.pop_back(); },
      [](FetchedRange* r) { r->units[3].data += "more"; },
      [](FetchedRange* r) {
        r->object_id = store::ObjectId{store::IdAlgorithm::kBlake3Units, Blake3("other")};
      },
  };
  TreeMaker maker;
  for (size_t i = 0; i < lies.size(); ++i) maker.File("/f" + std::to_string(i), content);
  Mount(maker);
  for (size_t i = 0; i < lies.size(); ++i) {
    source_.Tamper(lies[i]);
    const auto f = Find("/f" + std::to_string(i));
    EXPECT_EQ(kernel_->Read(f.nodeid, 0, 4096).error, EIO) << i;
  }
  EXPECT_EQ(lost().size(), lies.size());
}

TEST_F(LazyRootTest, AnotherDirectoryThanAskedForIsRefused) {
  // A tree whose directory object exists nowhere.
  auto broken = std::make_shared<tree::Tree>(*TreeMaker().Dir("/gone").Make());
  broken->root.child = Sha256("nothing");
  broken->id = Sha256(tree::EncodeRoot(broken->root));
  source_.Add(tree::TreePtr(broken));
  Mount(broken->id);
  EXPECT_EQ(kernel_->Lookup(1, "gone").error, EIO);
  EXPECT_EQ(lost().size(), 1u);
}

TEST_F(LazyRootTest, InterruptedReadersLeaveAndTheFetchGoesOn) {
  Mount(TreeMaker().File("/f", "content"));
  const auto f = Find("/f");
  source_.Hold(true);
  const uint64_t first = kernel_->SendRead(f.nodeid, 0, 100);
  const uint64_t second = kernel_->SendRead(f.nodeid, 0, 100);
  ASSERT_TRUE(source_.WaitHeld(1));
  kernel_->Interrupt(first);
  EXPECT_EQ(kernel_->Wait(first)->error, EINTR);
  source_.Hold(false);
  EXPECT_EQ(kernel_->Wait(second)->body, "content");
}

TEST_F(LazyRootTest, AViewGoesWhileHomeStillOwesAnswers) {
  const Digest tree = source_.Add(TreeMaker().File("/d/f", "content").File("/f", "x"));
  Mount(tree);
  const auto d = Find("/d");
  const auto f = Find("/f");
  source_.Hold(true);
  kernel_->SendRead(f.nodeid, 0, 100);
  kernel_->SendLookup(d.nodeid, "f");
  ASSERT_TRUE(source_.WaitHeld(2));
  Unmount();
  source_.Hold(false);
  Mount(tree);
  EXPECT_EQ(ReadAll("/d/f"), "content");
  source_.Hold(true);
  const auto g = Find("/f");
  kernel_->SendRead(g.nodeid, 0, 100);
  Unmount();
  backend_.reset();  // the backend may be destroyed as well
  source_.Hold(false);
}

TEST_F(LazyRootTest, ASourceThatAnswersInlineIsFine) {
  source_.AnswerInline(true);
  const std::string content = Noise(5 * kMiB, 9);
  Mount(TreeMaker().File("/d/f", content));
  EXPECT_EQ(ReadAll("/d/f"), content);
}

TEST_F(LazyRootTest, XattrsAreServedWithIdsMoved) {
  options_.ids = 100000;
  TreeMaker maker;
  maker.File("/f", "x").File("/plain", "y");
  struct {
    posix_acl_xattr_header header{POSIX_ACL_XATTR_VERSION};
    posix_acl_xattr_entry entries[3] = {{ACL_USER_OBJ, 6, ~0u}, {ACL_USER, 4, 1000}, {ACL_GROUP, 4, 50}};
  } acl;
  const std::string v2("\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", 20);
  maker.At("/f").xattrs = {{"security.capability", v2},
                           {"system.posix_acl_access", {reinterpret_cast<char*>(&acl), sizeof acl}},
                           {"user.note", "hello"}};
  Mount(maker);
  const auto f = Find("/f");
  EXPECT_EQ(kernel_->Xattr(f.nodeid, "user.note", 0).As<fuse_getxattr_out>().size, 5u);
  EXPECT_EQ(kernel_->Xattr(f.nodeid, "user.note", 100).body, "hello");
  EXPECT_EQ(kernel_->Xattr(f.nodeid, "user.note", 4).error, ERANGE);
  EXPECT_EQ(kernel_->Xattr(f.nodeid, "user.none", 4).error, ENODATA);
  EXPECT_EQ(kernel_->Xattr(f.nodeid, "trusted.overlay.opaque", 4).error, ENODATA);
  EXPECT_EQ(kernel_->ListXattr(f.nodeid, 1000).body,
            std::string("security.capability\0system.posix_acl_access\0user.note\0", 54));
  EXPECT_EQ(kernel_->ListXattr(f.nodeid, 5).error, ERANGE);
  const std::string moved = kernel_->Xattr(f.nodeid, "system.posix_acl_access", 1000).body;
  posix_acl_xattr_entry entry;
  std::memcpy(&entry, moved.data() + sizeof acl.header + sizeof entry, sizeof entry);
  EXPECT_EQ(entry.e_id, 101000u);
  const std::string v3 = kernel_->Xattr(f.nodeid, "security.capability", 1000).body;
  ASSERT_EQ(v3.size(), 24u);
  EXPECT_EQ(v3[3], 3);
  EXPECT_EQ(v3.substr(4, 16), v2.substr(4));
  uint32_t rootid;
  std::memcpy(&rootid, v3.data() + 20, 4);
  EXPECT_EQ(rootid, 100000u);
  EXPECT_EQ(kernel_->Xattr(Find("/plain").nodeid, "security.capability", 24).error, ENODATA);
}

TEST_F(LazyRootTest, WithoutXattrsTheKernelStopsAsking) {
  options_.xattrs = false;
  TreeMaker maker;
  maker.File("/f", "x");
  maker.At("/f").xattrs = {{"user.note", "hello"}};
  Mount(maker);
  EXPECT_EQ(kernel_->Xattr(Find("/f").nodeid, "user.note", 100).error, ENOSYS);
  const auto listed = kernel_->ListXattr(Find("/f").nodeid, 100);
  EXPECT_EQ(listed.error, 0) << "an empty list is no error";
  EXPECT_EQ(listed.body, "");
}

}  // namespace
}  // namespace vrun::vfs
