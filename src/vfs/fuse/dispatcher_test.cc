// SPDX-License-Identifier: Apache-2.0
#include "vfs/fuse/dispatcher.h"

#include <gtest/gtest.h>

#include <string>

#include "base/thread/mutex.h"
#include "vfs/fuse/fuse_abi.h"
#include "vfs/testing/fake_kernel.h"

namespace vrun::vfs {
namespace {

// Keeps every reply, so that the test decides whether and when to answer it.
class Recorder : public Operations {
 public:
  InitChoice Init(const KernelOffer& offer) override {
    offer_ = offer;
    return {.flags = FUSE_ASYNC_READ | kFusePassthrough};
  }
  void Lookup(const Request&, std::string_view name, Reply reply) override {
    MutexLock lock(mutex_);
    names.emplace_back(name);
    Keep(std::move(reply));
  }
  void Forget(uint64_t nodeid, uint64_t count) override {
    MutexLock lock(mutex_);
    forgotten[nodeid] += count;
  }
  void GetAttr(const Request&, Reply reply) override { reply.Error(ENOENT); }
  void ReadLink(const Request&, Reply) override {}  // drops the reply
  void Open(const Request&, uint32_t, Reply reply) override { reply.Error(EACCES); }
  void Read(const Request&, uint64_t, uint32_t, Reply reply) override {
    MutexLock lock(mutex_);
    Keep(std::move(reply));
  }
  void Release(const Request&, uint64_t, Reply reply) override { reply.Empty(); }
  void OpenDir(const Request&, Reply reply) override { reply.Error(ENOSYS); }
  void ReadDir(const Request&, uint64_t, uint32_t, bool, Reply reply) override { reply.Data("x"); }
  void StatFs(const Request&, Reply reply) override { reply.Struct(fuse_statfs_out{}); }
  void GetXattr(const Request&, std::string_view, uint32_t, Reply reply) override { reply.Error(ENODATA); }
  void ListXattr(const Request&, uint32_t, Reply reply) override { reply.Empty(); }
  void Seek(const Request&, uint64_t offset, uint32_t, Reply reply) override { reply.Struct(fuse_lseek_out{offset}); }

  void Keep(Reply reply) {
    if (suspend) reply.Suspend();
    kept.push_back(std::move(reply));
  }
  Reply Take() {
    MutexLock lock(mutex_);
    Reply reply = std::move(kept.back());
    kept.pop_back();
    return reply;
  }
  size_t kept_count() {
    MutexLock lock(mutex_);
    return kept.size();
  }

  Mutex mutex_;
  KernelOffer offer_;
  bool suspend = true;
  std::vector<Reply> kept;
  std::vector<std::string> names;
  std::map<uint64_t, uint64_t> forgotten;
};

class DispatcherTest : public testing::Test {
 protected:
  DispatcherTest() { dispatcher_.Start(2); }
  void WaitKept(size_t n) {
    while (ops_.kept_count() < n) std::this_thread::yield();
  }

  Recorder ops_;
  TimerThread timers_;
  std::shared_ptr<FakeKernel> kernel_ = std::make_shared<FakeKernel>();
  Dispatcher dispatcher_{kernel_, &ops_, &timers_};
};

TEST_F(DispatcherTest, InitTakesOnlyWhatIsOfferedAndSpeaksOurVersion) {
  const InitOut out = kernel_->Init(FUSE_ASYNC_READ | FUSE_MAX_PAGES | FUSE_INIT_EXT | kFusePassthrough, 45);
  EXPECT_EQ(out.major, 7u);
  EXPECT_EQ(out.minor, kSpokenMinor);
  EXPECT_EQ(out.flags, uint32_t{FUSE_ASYNC_READ | FUSE_MAX_PAGES | FUSE_INIT_EXT});
  EXPECT_EQ(out.flags2, kFusePassthrough >> 32);
  EXPECT_EQ(out.max_stack_depth, 1u);
  EXPECT_EQ(out.max_pages, 256);
  EXPECT_TRUE(dispatcher_.WaitInitialized(10'000));
}

TEST_F(DispatcherTest, OldKernelWithoutExtendedFlagsGetsNoPassthrough) {
  const InitOut out = kernel_->Init(FUSE_ASYNC_READ | FUSE_MAX_PAGES, 31);
  EXPECT_EQ(out.minor, 31u);
  EXPECT_EQ(out.flags2, 0u);
  EXPECT_EQ(out.max_stack_depth, 0u);
  EXPECT_EQ(ops_.offer_.flags & kFusePassthrough, 0u);
}

TEST_F(DispatcherTest, TooOldAndTooNewKernels) {
  fuse_init_in in{};
  in.major = 7;
  in.minor = 12;
  EXPECT_EQ(kernel_->Call(FUSE_INIT, 0, {reinterpret_cast<char*>(&in), sizeof in}).error, EPROTO);
  in.major = 8;  // the kernel gets our version and asks again
  const auto answer = kernel_->Call(FUSE_INIT, 0, {reinterpret_cast<char*>(&in), sizeof in});
  EXPECT_EQ(answer.error, 0);
  EXPECT_EQ(answer.As<InitOut>().major, 7u);
  EXPECT_FALSE(dispatcher_.initialized());
}

TEST_F(DispatcherTest, AnAnswerMayComeLaterFromAnyThread) {
  const uint64_t id = kernel_->SendLookup(1, "name");
  WaitKept(1);
  EXPECT_FALSE(kernel_->Answered(id));
  std::thread([&] { EXPECT_TRUE(ops_.Take().Error(ENOENT)); }).join();
  EXPECT_EQ(kernel_->Wait(id)->error, ENOENT);
  EXPECT_EQ(ops_.names.at(0), "name");
}

TEST_F(DispatcherTest, OnlyTheFirstAnswerCounts) {
  const uint64_t id = kernel_->SendLookup(1, "name");
  WaitKept(1);
  Reply reply = ops_.Take();
  EXPECT_TRUE(reply.Error(ENOENT));
  EXPECT_FALSE(reply.Error(EACCES));
  EXPECT_EQ(kernel_->Wait(id)->error, ENOENT);
}

TEST_F(DispatcherTest, ADroppedReplyIsEio) { EXPECT_EQ(kernel_->Call(FUSE_READLINK, 1, "").error, EIO); }

TEST_F(DispatcherTest, InterruptedWaitEndsWithEintrAndTheLateAnswerIsNotDelivered) {
  const uint64_t id = kernel_->SendRead(5, 0, 4096);
  WaitKept(1);
  kernel_->Interrupt(id);
  EXPECT_EQ(kernel_->Wait(id)->error, EINTR);
  EXPECT_FALSE(ops_.Take().Data("late"));
  EXPECT_EQ(dispatcher_.counters().interrupted, 1u);
}

TEST_F(DispatcherTest, AnInterruptThatOvertakesItsRequestIsNotLost) {
  kernel_->Interrupt(2);  // the id that the next request will have
  const uint64_t id = kernel_->SendRead(5, 0, 4096);
  ASSERT_EQ(id, 2u);
  EXPECT_EQ(kernel_->Wait(id)->error, EINTR);
}

TEST_F(DispatcherTest, ASignalToALivingProcessWaitsForItsAnswer) {
  fuse_read_in in{};
  const uint64_t id =
      kernel_->Send(FUSE_READ, 5, {reinterpret_cast<char*>(&in), sizeof in}, static_cast<uint32_t>(getpid()));
  WaitKept(1);
  kernel_->Interrupt(id);
  kernel_->Call(FUSE_STATFS, 1, "");  // the earlier interrupt has been handled or is being handled
  EXPECT_FALSE(kernel_->Answered(id));
  EXPECT_TRUE(ops_.Take().Data("in time"));
  EXPECT_EQ(kernel_->Wait(id)->body, "in time");
}

TEST_F(DispatcherTest, ASignalToALivingProcessEndsALongWait) {
  fuse_read_in in{};
  const uint64_t id =
      kernel_->Send(FUSE_READ, 5, {reinterpret_cast<char*>(&in), sizeof in}, static_cast<uint32_t>(getpid()));
  WaitKept(1);
  kernel_->Interrupt(id);
  EXPECT_EQ(kernel_->Wait(id)->error, EINTR);  // after the second of grace
}

TEST_F(DispatcherTest, ForgetsAreCountedOneByOneAndInBatches) {
  kernel_->Forget(7, 3);
  fuse_batch_forget_in batch{2, 0};
  const fuse_forget_one ones[2] = {{7, 1}, {8, 5}};
  std::string body(reinterpret_cast<char*>(&batch), sizeof batch);
  body.append(reinterpret_cast<const char*>(ones), sizeof ones);
  fuse_in_header header{};
  header.len = static_cast<uint32_t>(sizeof header + body.size());
  header.opcode = FUSE_BATCH_FORGET;
  kernel_->SendRaw(std::string(reinterpret_cast<char*>(&header), sizeof header) + body);
  for (;;) {
    MutexLock lock(ops_.mutex_);
    if (ops_.forgotten[7] == 4 && ops_.forgotten[8] == 5) break;
  }
}

TEST_F(DispatcherTest, WritesAreRefusedAndUnknownOperationsAreEnosys) {
  for (const uint32_t opcode : {FUSE_SETATTR, FUSE_MKDIR, FUSE_UNLINK, FUSE_WRITE, FUSE_CREATE, FUSE_RENAME2}) {
    EXPECT_EQ(kernel_->Call(opcode, 1, std::string(128, 'x')).error, EROFS) << opcode;
  }
  for (const uint32_t opcode : {uint32_t{FUSE_FLUSH}, 52u /* STATX */, 63u, 4096u, 4294967295u}) {
    EXPECT_EQ(kernel_->Call(opcode, 1, "").error, ENOSYS) << opcode;
  }
  EXPECT_EQ(kernel_->Call(FUSE_IOCTL, 1, std::string(32, 0)).error, ENOTTY);
  EXPECT_EQ(kernel_->Call(FUSE_DESTROY, 0, "").error, 0);
}

TEST_F(DispatcherTest, EveryOperationRefusesEveryShortBody) {
  const std::vector<std::pair<uint32_t, size_t>> operations = {{FUSE_GETATTR, sizeof(fuse_getattr_in)},
                                                               {FUSE_OPEN, sizeof(fuse_open_in)},
                                                               {FUSE_READ, sizeof(fuse_read_in)},
                                                               {FUSE_RELEASE, sizeof(fuse_release_in)},
                                                               {FUSE_OPENDIR, sizeof(fuse_open_in)},
                                                               {FUSE_READDIR, sizeof(fuse_read_in)},
                                                               {FUSE_READDIRPLUS, sizeof(fuse_read_in)},
                                                               {FUSE_GETXATTR, sizeof(fuse_getxattr_in) + 2},
                                                               {FUSE_LISTXATTR, sizeof(fuse_getxattr_in)},
                                                               {FUSE_LOOKUP, 2},
                                                               {FUSE_INIT, 8}};
  for (const auto& [opcode, size] : operations) {
    for (size_t n = 0; n < size; ++n) {
      EXPECT_NE(kernel_->Call(opcode, 1, std::string(n, '\x07')).error, 0) << opcode << " with " << n;
    }
  }
  EXPECT_GT(dispatcher_.counters().malformed, 0u);
}

TEST_F(DispatcherTest, NamesMustEndAndFit) {
  EXPECT_EQ(kernel_->Call(FUSE_LOOKUP, 1, "no end").error, EIO);
  EXPECT_EQ(kernel_->Call(FUSE_LOOKUP, 1, std::string("\0", 1)).error, EIO);
  EXPECT_EQ(kernel_->Lookup(1, "a/b").error, EIO);
  EXPECT_EQ(kernel_->Lookup(1, std::string(256, 'n')).error, ENAMETOOLONG);
  const uint64_t id = kernel_->SendLookup(1, std::string(255, 'n'));
  WaitKept(1);
  ops_.Take().Error(ENOENT);
  EXPECT_EQ(kernel_->Wait(id)->error, ENOENT);
}

TEST_F(DispatcherTest, LyingHeadersAreRefused) {
  fuse_in_header header{};
  header.opcode = FUSE_STATFS;
  header.unique = 99;
  for (const uint32_t len : {0u, 39u, 41u, 0xffffffffu}) {
    header.len = len;
    dispatcher_.Handle({reinterpret_cast<char*>(&header), sizeof header});
  }
  header.len = sizeof header;
  header.total_extlen = 65535;
  dispatcher_.Handle({reinterpret_cast<char*>(&header), sizeof header});
  for (size_t n = 0; n < sizeof header; ++n) dispatcher_.Handle({reinterpret_cast<char*>(&header), n});
  EXPECT_EQ(dispatcher_.counters().malformed, 5 + sizeof header);
}

TEST_F(DispatcherTest, NotificationsCarryWhatTheyName) {
  EXPECT_EQ(dispatcher_.InvalidateEntry(9, "a\nb"), 0);
  EXPECT_EQ(dispatcher_.InvalidateInode(10), 0);
  EXPECT_EQ(dispatcher_.InvalidateAttributes(11), 0);
  const auto notes = kernel_->TakeNotifications();
  ASSERT_EQ(notes.size(), 3u);
  EXPECT_EQ(notes[0].code, FUSE_NOTIFY_INVAL_ENTRY);
  EXPECT_EQ(notes[0].node(), 9u);
  EXPECT_EQ(notes[0].name(), "a\nb");
  EXPECT_EQ(notes[1].node(), 10u);
  EXPECT_EQ(notes[2].node(), 11u);
}

TEST_F(DispatcherTest, StopsWhileAnswersAreOut) {
  const uint64_t id = kernel_->SendLookup(1, "name");
  WaitKept(1);
  dispatcher_.Stop();
  EXPECT_FALSE(kernel_->Answered(id));
  EXPECT_FALSE(ops_.Take().Error(ENOENT));
}

}  // namespace
}  // namespace vrun::vfs
