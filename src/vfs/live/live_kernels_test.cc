// SPDX-License-Identifier: Apache-2.0
// A live view on kernels without newer features: this kernel's offers are hidden from it.
#include <fcntl.h>
#include <linux/fuse.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include <cerrno>
#include <cstdlib>

#include "vfs/fuse/fuse_abi.h"
#include "vfs/live/root/live_remains.h"
#include "vfs/testing/live_testing.h"

namespace vrun::vfs {
namespace {

struct Kernel {
  const char* name;
  uint64_t hidden;
  bool nameless_files;
};

class LiveKernelTest : public LiveViewFixture, public testing::WithParamInterface<Kernel> {
 protected:
  void SetUp() override {
    LiveViewFixture::SetUp();
    options_.journal = directory_.path() + "/journal";
    options_.hidden_flags = GetParam().hidden;
    options_.nameless_files = GetParam().nameless_files;
  }
  static int Run(const std::string& top, const std::string& script) {
    return std::system(("set -e; cd " + top + "; " + script).c_str());
  }
  static void Put(const std::string& path, const std::string& content) {
    const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    ASSERT_TRUE(fd) << path << ": " << std::strerror(errno);
    ASSERT_TRUE(WriteAll(fd.get(), content));
  }
  void Follow() {
    const Status advanced = view_->Advance(Scan(), 0);
    ASSERT_TRUE(advanced) << advanced.error().message();
  }
  bool Is(const std::string& path) const { return ::access(In(path).c_str(), F_OK) == 0; }
};

TEST_P(LiveKernelTest, WorkIsTheSameAsOnALocalDirectory) {
  Write("/dir/small", Noise(50'000, 1));
  Write("/dir/large", Noise(3 << 20, 2));
  Write("/dir/gone", "x");
  Write("/dir/old", "old");
  const std::string copy = directory_.path() + "/copy";
  ASSERT_EQ(std::system(("cp -a " + origin_ + " " + copy).c_str()), 0);
  Mount();
  EXPECT_EQ(view_->stats().no_open, GetParam().nameless_files);
  for (const std::string& top : {mount_, copy}) {
    EXPECT_EQ(
        Run(top,
            "cat dir/small > new; echo more >> new; cp dir/small short; truncate -s 100 short; "
            "printf X | dd of=dir/large bs=1 seek=1000000 conv=notrunc status=none; ln dir/large hard; "
            "ln -s hard soft; mkdir -p a/b; echo c > a/b/c; mv a/b b; rmdir a; mv dir/old dir/small; rm dir/gone; "
            "chmod 4751 hard; chown 1000:1001 new; mkfifo fifo"),
        0);
    EXPECT_EQ(::setxattr((top + "/new").c_str(), "user.note", "1", 1, 0), 0) << std::strerror(errno);
  }
  EXPECT_EQ(Describe(mount_), Describe(copy));
  const UniqueFd nameless(::open(mount_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  EXPECT_EQ(bool(nameless), GetParam().nameless_files);
}

TEST_P(LiveKernelTest, WhatChangesAtHomeIsSeenAndWhatIsOpenStays) {
  Write("/dir/saved", "old");
  Write("/dir/gone", "x");
  Mount();
  const UniqueFd saved(::open(In("/dir/saved").c_str(), O_RDONLY | O_CLOEXEC));
  std::string bytes(10, '\0');
  ASSERT_EQ(::pread(saved.get(), bytes.data(), bytes.size(), 0), 3);
  EXPECT_TRUE(Is("/dir/gone") && !Is("/dir/new"));
  ASSERT_TRUE(WriteFileAtomic(origin_ + "/dir/saved", "new, and longer", 0644));
  ASSERT_EQ(::unlink((origin_ + "/dir/gone").c_str()), 0);
  Write("/dir/new", "made");
  Follow();
  EXPECT_EQ(Content("/dir/saved"), "new, and longer");
  EXPECT_EQ(Content("/dir/new"), "made");
  EXPECT_FALSE(Is("/dir/gone"));
  ASSERT_EQ(::pread(saved.get(), bytes.data(), bytes.size(), 0), 3);
  EXPECT_EQ(bytes.substr(0, 3), "old");
  // Home is silent for a while: the job continues, and then sees the changes that it missed.
  view_->Doubt(true);
  Put(In("/dir/ours"), "ours");
  EXPECT_EQ(Content("/dir/new") + Content("/dir/ours"), "madeours");
  ASSERT_TRUE(WriteFileAtomic(origin_ + "/dir/new", "another", 0644));
  Follow();
  view_->Doubt(false);
  EXPECT_EQ(Content("/dir/new") + Content("/dir/ours"), "anotherours");
}

TEST_P(LiveKernelTest, NobodyTakesItOverAndWhatWasWrittenIsLeftForHome) {
  Mount();
  const auto handle = view_->Handle();
  ASSERT_FALSE(handle) << "the kernel cannot resend its requests";
  EXPECT_EQ(handle.error().code(), Code::kUnsupported);
  EXPECT_NE(handle.error().message().find("needs Linux 6.9 or newer"), std::string::npos) << handle.error().message();
  Put(In("/written"), "for home");
  view_->SeeCloses();
  view_.reset();  // as if its server died: the mount has ended
  LiveRemainsOptions options;
  options.journal = options_.journal;
  options.written = options_.written;
  const auto remains = LiveRemains::Open(backend_, std::move(options));
  ASSERT_TRUE(remains) << remains.error().message();
  EXPECT_GT((*remains)->stream()->stats().operations, 0u);
}

constexpr uint64_t kSecondWord = ~uint64_t{0xffffffff} | FUSE_INIT_EXT;  // Linux 5.17
constexpr uint64_t kBefore6_3 = kFuseHasExpireOnly | kFusePassthrough | kFuseHasResend;

INSTANTIATE_TEST_SUITE_P(, LiveKernelTest,
                         testing::Values(Kernel{"Linux5_4", kSecondWord | FUSE_SETXATTR_EXT | FUSE_HANDLE_KILLPRIV_V2,
                                                false},
                                         Kernel{"Linux5_15", kSecondWord, false}, Kernel{"Linux6_1", kBefore6_3, true},
                                         Kernel{"Linux6_6", kFusePassthrough | kFuseHasResend, true}),
                         [](const auto& of) { return of.param.name; });

// Options that a node's configuration can turn off.
class LiveSwitchTest : public LiveViewFixture {
 protected:
  void List() const {
    DIR* directory = ::opendir(In("/dir").c_str());
    ASSERT_NE(directory, nullptr);
    while (::readdir(directory) != nullptr) {
    }
    ::closedir(directory);
  }
  uint64_t Requests(uint32_t opcode) const { return view_->stats().requests[opcode]; }
  // Lookups needed for the attributes of listed names.
  uint64_t LookupsAfterList() {
    List();
    const uint64_t before = Requests(FUSE_LOOKUP);
    for (int i = 0; i < 20; ++i) EXPECT_EQ(::access(In("/dir/f" + std::to_string(i)).c_str(), F_OK), 0);
    return Requests(FUSE_LOOKUP) - before;
  }
};

TEST_F(LiveSwitchTest, ListingsGiveAttributesUnlessThatIsOff) {
  for (int i = 0; i < 20; ++i) Write("/dir/f" + std::to_string(i), "x");
  Mount();
  EXPECT_EQ(LookupsAfterList(), 0u);
  EXPECT_GT(Requests(FUSE_READDIRPLUS), 0u);
  options_.list_attributes = false;
  Mount();
  EXPECT_EQ(LookupsAfterList(), 20u);
  EXPECT_EQ(Requests(FUSE_READDIRPLUS), 0u);
  EXPECT_GT(Requests(FUSE_READDIR), 0u);
}

}  // namespace
}  // namespace vrun::vfs
