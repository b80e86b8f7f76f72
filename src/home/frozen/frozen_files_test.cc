// SPDX-License-Identifier: Apache-2.0
#include "home/frozen/frozen_files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/fsuid.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <future>
#include <map>
#include <optional>
#include <thread>
#include <vector>

#include "home/apply/apply.h"
#include "home/frozen/tree_restore.h"
#include "home/root/root_files.h"
#include "home/testing/test_directory.h"
#include "tree/scan/scan.h"

namespace vrun::home {
namespace {

using namespace std::chrono_literals;
constexpr std::string_view kOld = "what it was";

class FrozenFilesTest : public testing::Test {
 protected:
  void SetUp() override {
    BlockLeaseSignals();
    Start();
  }
  void TearDown() override { End(); }

  void Start(FrozenFiles::Options options = {}) {
    auto root = RootFiles::Open(root_.path());
    ASSERT_TRUE(root);
    root_files_.emplace(std::move(*root));
    options.kept.directory = state_.path() + "/content";
    options.kept.min_free_bytes = 0;
    files_ = std::make_unique<FrozenFiles>(&*root_files_, options);
  }
  void End() {
    if (files_) files_->Close();
    hold_.reset();
    files_.reset();
  }
  void Freeze(std::vector<std::string> first = {}) {
    tree::ScanOptions scan;
    scan.root = root_.path();
    scan.hollow.clear();
    auto tree = tree::Scan(scan);
    ASSERT_TRUE(tree);
    tree_ = *tree;
    hold_ = files_->Freeze(tree_, std::move(first));
    files_->Settle();
    ASSERT_TRUE(hold_->complete());
  }
  // The content as the tree has it; "!..." is an error.
  std::string Frozen(const std::string& path) const {
    auto entry = tree::Lookup(*tree_, path);
    if (!entry) return "!" + entry.error().message();
    auto fd = files_->OpenVersion(path, entry->version());
    if (!fd) return "!" + fd.error().message();
    std::string content(entry->size + 10, 0);
    auto n = PreadUpTo(fd->get(), content.data(), content.size(), 0);
    if (!n) return "!" + n.error().message();
    if (Status same = files_->Check(fd->get(), path, entry->version()); !same) return "!" + same.error().message();
    content.resize(*n);
    return content;
  }
  std::string At(const std::string& path) const { return root_.path() + path; }

  TestDirectory root_, state_;
  std::optional<RootFiles> root_files_;
  std::unique_ptr<FrozenFiles> files_;
  tree::TreePtr tree_;
  FrozenFiles::HoldPtr hold_;
};

// Many jobs append to one file: the next job's tree is taken while home appends for the one before.
TEST_F(FrozenFilesTest, WhatHomeItselfHasAppendedToIsReadAsItWasBefore) {
  const auto append = [&](std::string_view text, bool told) {
    const auto fd = OpenFile(At("/rows"), O_WRONLY | O_APPEND);
    struct stat before {
    }, after{};
    ASSERT_TRUE(fd && ::fstat(fd->get(), &before) == 0 && WriteAll(fd->get(), text));
    ASSERT_EQ(::fstat(fd->get(), &after), 0);
    if (told) files_->grown().Grew(before, after);
  };
  const auto take = [&] {
    tree::ScanOptions scan;
    scan.root = root_.path();
    scan.hollow.clear();
    tree_ = tree::Scan(scan).value();
  };
  root_.Put("rows", "first\n");
  take();
  const tree::TreePtr first = tree_;
  append("second\n", true);
  take();
  const tree::TreePtr second = tree_;
  append("third\n", true);
  tree_ = first;
  EXPECT_EQ(Frozen("/rows"), "first\n");
  tree_ = second;
  EXPECT_EQ(Frozen("/rows"), "first\nsecond\n");
  // The kernel gives a file its new times before its new size: a tree may have found it in between.
  struct stat now {};
  ASSERT_EQ(::stat(At("/rows").c_str(), &now), 0);
  tree::FileVersion between{now.st_dev, now.st_ino, ToNanos(now.st_ctim), std::strlen("first\nsecond\n")};
  auto grown = files_->grown().Open(*root_files_, "/rows", between);
  ASSERT_TRUE(grown) << grown.error().message();
  EXPECT_TRUE(GrownFiles::IsCopy(grown->get(), between));
  between.size = 3;  // never so small then
  EXPECT_FALSE(files_->grown().Open(*root_files_, "/rows", between));
  // Somebody else has changed it: nobody knows what it was.
  append("by hand\n", false);
  EXPECT_EQ(Frozen("/rows").substr(0, 1), "!");
  append("fourth\n", true);
  EXPECT_EQ(Frozen("/rows").substr(0, 1), "!");
}

TEST_F(FrozenFilesTest, EveryWayToChangeAFileLeavesTheOldContent) {
  const std::map<std::string, std::function<void(const std::string&)>> ways = {
      {"written", [&](const std::string& p) { root_.Put(p, "what it was not"); }},
      {"appended",
       [&](const std::string& p) {
         auto fd = OpenFile(At("/" + p), O_WRONLY | O_APPEND);
         ASSERT_TRUE(fd && WriteAll(fd->get(), " and more"));
       }},
      {"patched",
       [&](const std::string& p) {
         auto fd = OpenFile(At("/" + p), O_RDWR);
         ASSERT_TRUE(fd && PwriteAll(fd->get(), "that", 0));
       }},
      {"mapped",
       [&](const std::string& p) {
         auto fd = OpenFile(At("/" + p), O_RDWR);
         ASSERT_TRUE(fd);
         void* at = ::mmap(nullptr, kOld.size(), PROT_WRITE, MAP_SHARED, fd->get(), 0);
         ASSERT_NE(at, MAP_FAILED);
         static_cast<char*>(at)[0] = 'W';
         ::munmap(at, kOld.size());
       }},
      {"cut", [&](const std::string& p) { ASSERT_EQ(::truncate(At("/" + p).c_str(), 3), 0); }},
      {"removed", [&](const std::string& p) { ASSERT_EQ(::unlink(At("/" + p).c_str()), 0); }},
      {"replaced",
       [&](const std::string& p) {
         root_.Put("new", "another");
         ASSERT_EQ(::rename(At("/new").c_str(), At("/" + p).c_str()), 0);
       }},
      {"renamed", [&](const std::string& p) { ASSERT_EQ(::rename(At("/" + p).c_str(), At("/moved").c_str()), 0); }},
      {"mode", [&](const std::string& p) { ASSERT_EQ(::chmod(At("/" + p).c_str(), 0600), 0); }},
      {"times", [&](const std::string& p) { ASSERT_EQ(::utimensat(AT_FDCWD, At("/" + p).c_str(), nullptr, 0), 0); }},
      {"linked", [&](const std::string& p) { ASSERT_EQ(::link(At("/" + p).c_str(), At("/second").c_str()), 0); }},
      {"touched and written",
       [&](const std::string& p) {
         ASSERT_EQ(::utimensat(AT_FDCWD, At("/" + p).c_str(), nullptr, 0), 0);
         root_.Put(p, "what it was not");
       }},
      {"removed with its directory",
       [&](const std::string& p) {
         (void)p;
         std::filesystem::remove_all(At("/removed with its directory"));
       }},
  };
  for (const auto& [name, way] : ways) root_.Put(name == "removed with its directory" ? name + "/f" : name, kOld);
  root_.Put("stays", kOld);
  Freeze();
  for (const auto& [name, way] : ways) {
    SCOPED_TRACE(name);
    way(name);
    EXPECT_EQ(Frozen("/" + (name == "removed with its directory" ? name + "/f" : name)), kOld);
  }
  EXPECT_EQ(Frozen("/stays"), kOld);
  EXPECT_EQ(files_->stats().lost, 0u);
}

TEST_F(FrozenFilesTest, AWriterWaitsForNothingButTheCopyAndReadersForNothing) {
  root_.Put("f", kOld);
  Freeze();
  auto reader = OpenFile(At("/f"), O_RDONLY);
  ASSERT_TRUE(reader);
  EXPECT_EQ(files_->stats().kept.files, 0u);
  auto writer = std::async(std::launch::async, [&] { root_.Put("f", "new"); });
  ASSERT_EQ(writer.wait_for(20s), std::future_status::ready);
  EXPECT_EQ(*ReadFile(At("/f")), "new");
  EXPECT_EQ(Frozen("/f"), kOld);
  // A second writer is not blocked.
  root_.Put("f", "newer");
  EXPECT_EQ(Frozen("/f"), kOld);
}

TEST_F(FrozenFilesTest, OldContentSurvivesARestart) {
  for (const char* name : {"written", "removed", "mode", "stays", "later"}) root_.Put(name, kOld);
  Freeze();
  root_.Put("written", "new");
  ASSERT_EQ(::unlink(At("/removed").c_str()), 0);
  ASSERT_EQ(::chmod(At("/mode").c_str(), 0600), 0);
  const tree::TreePtr tree = tree_;
  End();
  ASSERT_EQ(::unlink(At("/later").c_str()), 0);  // unnoticed
  Start();
  hold_ = files_->Freeze(tree, {});
  files_->Settle();
  for (const char* name : {"/written", "/removed", "/mode", "/stays"}) EXPECT_EQ(Frozen(name), kOld) << name;
  EXPECT_EQ(Frozen("/later"), "!/later: changed at home after the job's tree was taken");
  EXPECT_EQ(hold_->left_out(), 1u);
}

// The next home claims the copies of the one before, and the job's next attempt begins before that is done.
TEST_F(FrozenFilesTest, WhatIsInADirectoryThatWasRenamedSurvivesARestart) {
  for (const char* name : {"d/a", "d/sub/b", "one/f", "two/f"}) root_.Put(name, std::string(kOld) + name);
  Freeze();
  std::filesystem::rename(At("/d"), At("/e"));
  std::filesystem::rename(At("/one"), At("/three"));
  std::filesystem::rename(At("/two"), At("/one"));
  std::filesystem::rename(At("/three"), At("/two"));
  End();
  FrozenFiles::Options options;
  options.now = [this] {
    tree::ScanOptions scan;
    scan.root = root_.path();
    scan.hollow.clear();
    return *tree::Scan(scan);
  };
  Start(options);
  hold_ = files_->Freeze(tree_, {});
  files_->Settle();
  EXPECT_EQ(hold_->left_out(), 0u);
  for (const char* name : {"d/a", "d/sub/b", "one/f", "two/f"}) {
    EXPECT_EQ(Frozen(std::string("/") + name), std::string(kOld) + name);
  }
  // Held like any other file.
  root_.Put("e/a", "another");
  files_->Settle();
  EXPECT_EQ(Frozen("/d/a"), std::string(kOld) + "d/a");
}

TEST_F(FrozenFilesTest, WhatIsReplacedBeforeItHasBegunKeepsItsCopies) {
  root_.Put("f", kOld);
  for (int i = 0; i < 2000; ++i) root_.Put("many/" + std::to_string(i), "x");
  Freeze();
  root_.Put("f", "another");
  files_->Settle();
  End();
  Start();
  const auto tree_of = [&](const std::string& name) {
    return tree::AssembleTree(tree_->root,
                              tree::Directory::Make({*tree::Lookup(*tree_, "/" + name)}, [&](std::string_view) {
                                return *tree::LookupDirectory(*tree_, "/" + name);
                              }));
  };
  const auto only = tree_of("f");
  const FrozenFiles::HoldPtr busy = files_->Freeze(tree_of("many"), {});  // keeps the builder busy for a while
  hold_ = files_->Freeze(only, {});
  files_->DropUnclaimed();
  hold_ = files_->Freeze(only, {}, std::move(hold_));
  files_->Settle();
  EXPECT_EQ(Frozen("/f"), kOld);
}

TEST_F(FrozenFilesTest, CopiesGoWithTheLastThatNeedsThem) {
  root_.Put("f", kOld);
  Freeze();
  auto second = files_->Freeze(tree_, {});
  files_->Settle();
  root_.Put("f", "new");
  EXPECT_EQ(Frozen("/f"), kOld);
  hold_.reset();
  files_->DropUnclaimed();
  files_->Settle();
  EXPECT_EQ(Frozen("/f"), kOld);
  second.reset();
  files_->DropUnclaimed();  // perhaps before the copy is on disk
  files_->Settle();
  EXPECT_EQ(files_->stats().kept.files, 0u);
  EXPECT_EQ(files_->stats().kept.bytes, 0u);
  EXPECT_EQ(files_->stats().held, 0u);
  EXPECT_TRUE(std::filesystem::is_empty(state_.path() + "/content"));
}

TEST_F(FrozenFilesTest, NobodyWaitsForALeaseThatIsNotNeededAnyMore) {
  root_.Put("f", kOld);
  Freeze();
  hold_.reset();
  files_->Settle();
  auto fd = OpenFile(At("/f"), O_WRONLY | O_NONBLOCK);  // EAGAIN if there is a lease
  EXPECT_TRUE(fd);
}

TEST_F(FrozenFilesTest, WhatSomebodyHasOpenToWriteIsCopiedAtOnce) {
  root_.Put("log", kOld);
  auto writer = OpenFile(At("/log"), O_WRONLY | O_APPEND);
  ASSERT_TRUE(writer);
  Freeze();
  EXPECT_EQ(files_->stats().kept.files, 1u);
  ASSERT_TRUE(WriteAll(writer->get(), " and more"));
  EXPECT_EQ(Frozen("/log"), kOld);
}

TEST_F(FrozenFilesTest, WhatHasNoRoomIsAnErrorThatSaysSo) {
  End();
  FrozenFiles::Options options;
  options.kept.max_bytes = 20;
  Start(options);
  root_.Put("small", kOld);
  root_.Put("large", std::string(100, 'x'));
  Freeze();
  root_.Put("small", "new");
  root_.Put("large", "new");
  EXPECT_EQ(*ReadFile(At("/large")), "new");  // nobody waits in vain
  EXPECT_EQ(Frozen("/small"), kOld);
  EXPECT_EQ(Frozen("/large"),
            "!/large: changed at home after the job's tree was taken: more than 0 MiB of old content");
  EXPECT_EQ(files_->stats().lost, 1u);
}

TEST_F(FrozenFilesTest, WhatIsFirstIsHeldWhenThereIsNoRoomForAll) {
  End();
  FrozenFiles::Options options;
  options.max_files = 4;  // 3 for files that are not in `first`
  Start(options);
  for (int i = 0; i < 10; ++i) root_.Put("a/" + std::to_string(i), kOld);
  root_.Put("z/project/f", kOld);
  root_.Put("z/project/g", kOld);
  root_.Put("z/lib", kOld);
  Freeze({"/z/project", "/z/lib", "/nothing"});
  EXPECT_EQ(hold_->left_out(), 10u);
  for (const char* path : {"/z/project/f", "/z/project/g", "/z/lib"}) {
    ASSERT_EQ(::unlink(At(path).c_str()), 0);
    EXPECT_EQ(Frozen(path), kOld) << path;
  }
  ASSERT_EQ(::unlink(At("/a/1").c_str()), 0);
  EXPECT_EQ(Frozen("/a/1"), "!/a/1: changed at home after the job's tree was taken");
}

TEST_F(FrozenFilesTest, TwoStatesOfOneFileAreTwoContents) {
  root_.Put("f", kOld);
  Freeze();
  const tree::TreePtr first = tree_;
  const auto first_hold = hold_;
  root_.Put("f", "second");
  Freeze();
  root_.Put("f", "the third");
  EXPECT_EQ(Frozen("/f"), "second");
  tree_ = first;
  EXPECT_EQ(Frozen("/f"), kOld);
  hold_.reset();
}

TEST_F(FrozenFilesTest, AnEmptyFileIsNeverLost) {
  root_.Put("f", "");
  Freeze();
  ASSERT_EQ(::unlink(At("/f").c_str()), 0);
  EXPECT_EQ(Frozen("/f"), "");
}

TEST_F(FrozenFilesTest, ManyWritersAtOnceLoseNothing) {
  constexpr int kFiles = 400;
  const auto old = [](int i) { return "old " + std::to_string(i) + std::string(static_cast<size_t>(i) * 20, 'x'); };
  for (int i = 0; i < kFiles; ++i) root_.Put("d/" + std::to_string(i), old(i));
  Freeze();
  std::vector<std::future<void>> writers;
  for (int w = 0; w < 4; ++w) {
    writers.push_back(std::async(std::launch::async, [&, w] {
      for (int i = w; i < kFiles; i += 4) root_.Put("d/" + std::to_string(i), "new");
    }));
  }
  for (int i = 0; i < kFiles; i += 7) {
    const std::string now = Frozen("/d/" + std::to_string(i));
    // While the file is being replaced by its copy, a reader must ask again.
    EXPECT_TRUE(now == old(i) || Frozen("/d/" + std::to_string(i)) == old(i)) << i << ": " << now;
  }
  for (auto& writer : writers) writer.get();
  for (int i = 0; i < kFiles; ++i) EXPECT_EQ(Frozen("/d/" + std::to_string(i)), old(i));
}

// For this thread and those that it starts.
bool BecomeSomebodyElse() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2];
  if (::syscall(SYS_capget, &header, data) != 0) return false;
  data[CAP_LEASE / 32].effective &= ~(1u << CAP_LEASE % 32);
  if (::syscall(SYS_capset, &header, data) != 0) return false;
  ::setfsuid(12345);
  return ::setfsuid(12345) == 12345;
}

// Somebody else owns the file, like the system's files if home is not root.
TEST_F(FrozenFilesTest, WhatCannotBeLeasedIsHeldOpen) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to be somebody else for a moment";
  for (const char* name : {"removed", "written", "mode"}) root_.Put(name, kOld);
  ASSERT_EQ(::chmod(root_.path().c_str(), 0755), 0);
  ASSERT_EQ(::chmod(state_.path().c_str(), 0777), 0);
  std::thread([&] {
    ASSERT_TRUE(BecomeSomebodyElse());
    Freeze();
  }).join();
  ASSERT_EQ(::unlink(At("/removed").c_str()), 0);
  ASSERT_EQ(::chmod(At("/mode").c_str(), 0640), 0);
  root_.Put("written", "what it is!");
  EXPECT_EQ(Frozen("/removed"), kOld);
  EXPECT_EQ(Frozen("/mode"), kOld);
  EXPECT_EQ(Frozen("/written"), "!/written: changed at home after the job's tree was taken");
}

// A job renamed and linked files that home has changed meanwhile: home's stay, and the job's names have the old
// content.
TEST_F(FrozenFilesTest, WhatAJobRenamedAndHomeChangedIsThereUnderBothNames) {
  for (const char* name : {"edited", "removed", "moved", "linked", "unlinked"}) root_.Put(name, std::string(kOld));
  for (const char* name : {"d/one", "d/two", "d/sub/three", "changed/f"}) root_.Put(name, std::string(kOld));
  ASSERT_EQ(::symlink("one", At("/d/link").c_str()), 0);
  ASSERT_EQ(::chmod(At("/removed").c_str(), 0640), 0);
  Freeze();
  const auto seen = [&](const std::string& path) {
    const auto entry = tree::Lookup(*tree_, path);
    EXPECT_TRUE(entry) << path;
    v1::BaseVersion base;
    base.set_ino(entry->ino);
    base.set_type(entry->mode & S_IFMT);
    base.set_ctime_ns(entry->ctime_ns);
    base.set_mtime_ns(entry->mtime_ns);
    base.set_size(entry->size);
    base.set_nlink(entry->nlink);
    return base;
  };
  // Home continues.
  root_.Put("edited", "edited at home");
  root_.Put("linked", "edited at home");
  for (const char* name : {"/removed", "/unlinked"}) ASSERT_EQ(::unlink(At(name).c_str()), 0);
  std::filesystem::rename(At("/moved"), At("/elsewhere"));
  std::filesystem::remove_all(At("/d"));
  files_->Settle();

  std::vector<std::string> notices;
  ApplyOptions options;
  options.root = root_.path();
  options.job = 7;
  options.attempt = 1;
  options.notice = [&](const std::string& text) { notices.push_back(text); };
  options.restore = [&](const std::string& path, int directory, const std::string& name, const auto& made) {
    return RestoreFromTree(*tree_, *files_, path, directory, name, made);
  };
  const auto applier = Applier::Open(std::move(options));
  ASSERT_TRUE(applier);
  uint64_t sequence = 0;
  const auto message = [&](const std::string& path) {
    v1::WriteBack m;
    m.set_sequence(++sequence);
    m.set_path(path);
    return m;
  };
  const auto rename = [&](const std::string& from, const std::string& to) {
    v1::WriteBack m = message(to);
    m.mutable_rename()->set_from(from);
    m.mutable_rename()->set_seen(from);
    *m.mutable_rename()->mutable_source() = seen(from);
    const Status renamed = (*applier)->Apply(m);
    EXPECT_TRUE(renamed) << renamed.error().message();
  };
  const auto link = [&](const std::string& existing, const std::string& to) {
    v1::WriteBack m = message(to);
    m.mutable_make_hard_link()->set_existing(existing);
    m.mutable_make_hard_link()->set_seen(existing);
    *m.mutable_make_hard_link()->mutable_source() = seen(existing);
    const Status linked = (*applier)->Apply(m);
    EXPECT_TRUE(linked) << linked.error().message();
  };
  rename("/edited", "/edited.new");
  rename("/removed", "/removed.new");
  rename("/moved", "/moved.new");
  link("/linked", "/linked.new");
  link("/unlinked", "/unlinked.new");
  rename("/d", "/e");
  // Later operations recognise the copies.
  v1::WriteBack put = message("/e/one");
  *put.mutable_base() = seen("/d/one");
  put.mutable_put_file()->mutable_meta()->set_mode(S_IFREG | 0600);
  put.mutable_put_file()->set_size(3);
  ASSERT_TRUE((*applier)->Apply(put));
  v1::WriteBack data = message("/e/one");
  data.mutable_file_data()->set_data("new");
  data.mutable_file_data()->set_last(true);
  ASSERT_TRUE((*applier)->Apply(data));
  v1::WriteBack remove = message("/e/two");
  *remove.mutable_base() = seen("/d/two");
  remove.mutable_remove();
  ASSERT_TRUE((*applier)->Apply(remove));

  const auto read = [&](const std::string& path) { return ReadFile(At(path)).value_or("(none)"); };
  for (const char* path :
       {"/edited.new", "/removed.new", "/moved.new", "/linked.new", "/unlinked.new", "/e/sub/three"}) {
    EXPECT_EQ(read(path), kOld) << path;
  }
  EXPECT_EQ(read("/edited"), "edited at home");
  EXPECT_EQ(read("/linked"), "edited at home");
  EXPECT_EQ(read("/elsewhere"), kOld);
  EXPECT_EQ(read("/e/one"), "new");
  EXPECT_EQ(read("/e/two"), "(none)");
  EXPECT_EQ(std::filesystem::read_symlink(At("/e/link")), "one");
  struct stat st {};
  ASSERT_EQ(::stat(At("/removed.new").c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 07777, 0640u);
  EXPECT_FALSE(PathExists(At("/d")));
  EXPECT_EQ(notices.size(), 5u) << "one for each but the link to what is gone";
  for (const std::string& notice : notices) EXPECT_NE(notice.find("is a copy of what the job had"), std::string::npos);
}

}  // namespace
}  // namespace vrun::home
