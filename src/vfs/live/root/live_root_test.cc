// SPDX-License-Identifier: Apache-2.0
// LiveRoot with a kernel that misbehaves in ways that a real one never would.
#include "vfs/live/root/live_root.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "base/files.h"
#include "store/store.h"
#include "vfs/content/withheld.h"
#include "vfs/frozen/lazy_root.h"
#include "vfs/testing/fake_kernel.h"
#include "vfs/testing/vfs_testing.h"

namespace vrun::vfs {
namespace {

template <typename T>
std::string Bytes(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

class LiveRootTest : public testing::Test {
 protected:
  LiveRootTest() {
    store_ = *store::Store::Open({.directory = directory_.path() + "/store", .min_free_bytes = 0});
    EXPECT_TRUE(MakeDirs(directory_.path() + "/written", 0700));
    files_ = *LiveFiles::Open(directory_.path() + "/written");
    backend_ = Backend::Create({.home_id = "home", .home_deadline_micros = 2'000'000}, &source_, store_.get());
    const Digest tree = source_.Add(TreeMaker().File("/f", "content").Dir("/d"));
    root_ = std::make_unique<LiveRoot>(*backend_, *kernel_, *files_, tree, *FetchRootEntry(*backend_, tree),
                                       LiveRootOptions{});
    dispatcher_ = std::make_unique<Dispatcher>(kernel_, root_.get(), &backend_->timers());
    dispatcher_->Start(2);
    kernel_->Init();
  }
  ~LiveRootTest() override { dispatcher_->Stop(); }

  uint64_t Node(const std::string& name) { return kernel_->Lookup(1, name).As<fuse_entry_out>().nodeid; }

  TestDirectory directory_;
  FakeSource source_;
  std::unique_ptr<store::Store> store_;
  std::shared_ptr<LiveFiles> files_;
  std::shared_ptr<Backend> backend_;
  const std::shared_ptr<FakeKernel> kernel_ = std::make_shared<FakeKernel>();
  std::unique_ptr<LiveRoot> root_;
  std::unique_ptr<Dispatcher> dispatcher_;
};

TEST_F(LiveRootTest, PacketsThatAreCutOffAreRefusedAndHarmNothing) {
  const std::string name("name\0", 5);
  const std::pair<uint32_t, std::string> requests[] = {
      {FUSE_MKNOD, Bytes(fuse_mknod_in{S_IFIFO, 0, 0, 0}) + name},
      {FUSE_MKDIR, Bytes(fuse_mkdir_in{0755, 0}) + name},
      {FUSE_SYMLINK, name + name},
      {FUSE_CREATE, Bytes(fuse_create_in{}) + name},
      {FUSE_TMPFILE, Bytes(fuse_create_in{})},
      {FUSE_RENAME, Bytes(fuse_rename_in{1}) + name + name},
      {FUSE_RENAME2, Bytes(fuse_rename2_in{1, 0, 0}) + name + name},
      {FUSE_LINK, Bytes(fuse_link_in{1}) + name},
      {FUSE_UNLINK, name},
      {FUSE_RMDIR, name},
      {FUSE_REMOVEXATTR, name},
      {FUSE_SETXATTR, Bytes(fuse_setxattr_in{3, 0, 0, 0}) + name + "abc"},
      {FUSE_WRITE, Bytes(fuse_write_in{0, 0, 4, 0, 0, 0, 0}) + "data"},
      {FUSE_SETATTR, Bytes(fuse_setattr_in{})},
      {FUSE_FALLOCATE, Bytes(fuse_fallocate_in{})},
      {FUSE_LSEEK, Bytes(fuse_lseek_in{})},
      {FUSE_COPY_FILE_RANGE, Bytes(fuse_copy_file_range_in{})},
      {FUSE_FSYNC, Bytes(fuse_fsync_in{})},
  };
  for (const auto& [opcode, body] : requests) {
    const uint64_t before = dispatcher_->counters().malformed;
    for (size_t n = 0; n < body.size(); ++n) {
      EXPECT_NE(kernel_->Call(opcode, 1, body.substr(0, n)).error, ETIMEDOUT) << opcode << " " << n;
    }
    EXPECT_EQ(dispatcher_->counters().malformed - before, body.size()) << opcode;
  }
  EXPECT_EQ(kernel_->ReadDir(1, false).size(), 4u);  // nothing was created
}

TEST_F(LiveRootTest, NodesThatDoNotExistAreStale) {
  const uint64_t none = 4711;
  const std::string name("name\0", 5);
  EXPECT_EQ(kernel_->Call(FUSE_MKDIR, none, Bytes(fuse_mkdir_in{0755, 0}) + name).error, ESTALE);
  EXPECT_EQ(kernel_->Call(FUSE_SETATTR, none, Bytes(fuse_setattr_in{})).error, ESTALE);
  EXPECT_EQ(kernel_->Call(FUSE_WRITE, none, Bytes(fuse_write_in{})).error, ESTALE);
  EXPECT_EQ(kernel_->Call(FUSE_LINK, 1, Bytes(fuse_link_in{none}) + name).error, ESTALE);
  EXPECT_EQ(kernel_->Call(FUSE_RENAME, 1, Bytes(fuse_rename_in{none}) + std::string("f\0", 2) + name).error, ESTALE);
  EXPECT_EQ(kernel_->Call(FUSE_UNLINK, Node("f"), name).error, ENOTDIR);
}

TEST_F(LiveRootTest, WhatIsNotChangedIsForgottenAndWhatIsStays) {
  const size_t at_first = root_->inodes();
  Node("f");
  Node("d");
  kernel_->ForgetAll();
  kernel_->Lookup(1, "absent");  // after the forgets: two workers may reorder the last ones
  const uint64_t d = Node("d");
  fuse_setattr_in in{};
  in.valid = FATTR_MODE;
  in.mode = 0700;
  EXPECT_EQ(kernel_->Call(FUSE_SETATTR, d, Bytes(in)).error, 0);
  kernel_->ForgetAll();
  for (int i = 0; i < 1000 && root_->inodes() != at_first + 1; ++i) kernel_->GetAttr(1);
  EXPECT_EQ(root_->inodes(), at_first + 1);
  const auto again = kernel_->Lookup(1, "d").As<fuse_entry_out>();
  EXPECT_EQ(again.nodeid, d);
  EXPECT_EQ(again.attr.mode & 07777u, 0700u);
}

TEST_F(LiveRootTest, WhoAsksForAHiddenNameIsToldAboutAtHome) {
  std::vector<std::string> asked;
  backend_->withheld().OnAsked([&](const std::string& path) { asked.push_back(path); });
  backend_->withheld().Set(HiddenNames::Of("salt", {"/d/key", "/f", "/secret"}));
  const uint64_t d = Node("d");
  EXPECT_EQ(kernel_->Lookup(d, "key").As<fuse_entry_out>().entry_valid, 0u);
  EXPECT_EQ(kernel_->Lookup(1, "secret").As<fuse_entry_out>().nodeid, 0u);
  EXPECT_NE(Node("f"), 0u);
  EXPECT_EQ(Node("key"), 0u);
  EXPECT_EQ(asked, (std::vector<std::string>{"/d/key", "/secret"}));
  EXPECT_EQ(kernel_->Lookup(d, "key").As<fuse_entry_out>().entry_valid, 0u);
  EXPECT_EQ(asked.size(), 2u) << "told a moment ago";
}

TEST_F(LiveRootTest, WhoIsGoneBeforeTheAnswerHoldsNothing) {
  source_.Hold(true);  // the root's directory has to come from home
  const std::string body = Bytes(fuse_mkdir_in{0755, 0}) + std::string("made\0", 5);
  const uint64_t unique = kernel_->Send(FUSE_MKDIR, 1, body);
  ASSERT_TRUE(source_.WaitHeld(1));
  kernel_->Withdraw(unique);
  source_.Hold(false);
  const auto made = kernel_->Lookup(1, "made").As<fuse_entry_out>();
  EXPECT_NE(made.nodeid, 0u);  // it was created anyway
  kernel_->Forget(made.nodeid, 1);
  EXPECT_EQ(kernel_->Call(FUSE_RMDIR, 1, std::string("made\0", 5)).error, 0);
  for (int i = 0; i < 1000 && root_->inodes() != 1; ++i) kernel_->GetAttr(1);
  EXPECT_EQ(root_->inodes(), 1u);
}

}  // namespace
}  // namespace vrun::vfs
