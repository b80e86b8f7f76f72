// SPDX-License-Identifier: Apache-2.0
// A tree with everything that a root may contain looks the same through a real mount, with each feature on and off.
#include <dirent.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "vfs/testing/view_fixture.h"

namespace vrun::vfs {
namespace {

// Features that a kernel may lack, or the node's configuration may turn off.
struct Features {
  const char* name;
  bool passthrough = true;
  bool push = true;
  bool list_attributes = true;
  bool no_open = true;
};

// A tree with everything that a root may contain.
class RichTree : public ViewTest, public testing::WithParamInterface<Features> {
 protected:
  void SetUp() override {
    ViewTest::SetUp();
    if (IsSkipped()) return;
    options_.passthrough = GetParam().passthrough;
    options_.push = GetParam().push;
    options_.list_attributes = GetParam().list_attributes;
    options_.no_open = GetParam().no_open;
    Write("/etc/hosts", "127.0.0.1 localhost\n");
    Write("/etc/shadow", "secret", 0600);
    Write("/bin/tool", "#!/bin/sh\necho ran\n", 04755);
    Write("/lib/big", Noise(3 << 20, 1));
    Write("/lib/medium", Noise(200 << 10, 2));
    Write("/empty", "");
    Write("/" + std::string(255, 'n'), "long name");
    Write("/line\nbreak", "newline");
    Write("/\xff\xfe\x80 not utf-8", "bytes");
    Write("/deep/a/b/c/d/e/f", "deep");
    ASSERT_EQ(::link((origin_ + "/etc/hosts").c_str(), (origin_ + "/hosts-again").c_str()), 0);
    ASSERT_EQ(::symlink("etc/hosts", (origin_ + "/link").c_str()), 0);
    ASSERT_EQ(::symlink("loop", (origin_ + "/loop").c_str()), 0);
    ASSERT_EQ(::symlink(std::string(4000, 'x').c_str(), (origin_ + "/long-link").c_str()), 0);
    ASSERT_EQ(::mkfifo((origin_ + "/fifo").c_str(), 0644), 0);
    ASSERT_EQ(::mknod((origin_ + "/null").c_str(), S_IFCHR | 0666, makedev(1, 3)), 0);
    const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = origin_ + "/sock";
    ASSERT_LT(path.size(), sizeof address.sun_path);
    std::copy(path.begin(), path.end(), address.sun_path);
    ASSERT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    // Sparse: a hole between two data ranges.
    const auto sparse = OpenFile(origin_ + "/sparse", O_WRONLY | O_CREAT, 0644);
    ASSERT_TRUE(sparse);
    ASSERT_TRUE(PwriteAll(sparse->get(), "start", 0));
    ASSERT_TRUE(PwriteAll(sparse->get(), "end", 5 << 20));
    ASSERT_EQ(::lchown((origin_ + "/etc/hosts").c_str(), 1000, 3'000'000), 0);
    ASSERT_EQ(::lchown((origin_ + "/link").c_str(), 65535, 65536), 0);
    ASSERT_EQ(::chmod((origin_ + "/bin/tool").c_str(), 06755), 0);
    ASSERT_EQ(::mkdir((origin_ + "/sticky").c_str(), 0755), 0);
    ASSERT_EQ(::chmod((origin_ + "/sticky").c_str(), 01777), 0);
    ASSERT_EQ(::setxattr((origin_ + "/etc/hosts").c_str(), "user.note", "some\0value", 10, 0), 0)
        << std::strerror(errno);
    const timespec times[2] = {{-5, 0}, {-100, 123456789}};
    ASSERT_EQ(::utimensat(AT_FDCWD, (origin_ + "/etc/shadow").c_str(), times, 0), 0);
    Mount(Scan());
  }
};

TEST_P(RichTree, LooksLikeHomeInEveryDetail) {
  Compare(origin_, mount_, kBase);
  struct stat root {};
  ASSERT_EQ(::stat(mount_.c_str(), &root), 0);
  EXPECT_EQ(root.st_uid, kBase);
  // Again from the caches, and with passthrough where it works.
  Compare(origin_, mount_, kBase);
  EXPECT_EQ(view_->stats().malformed, 0u);
  if (GetParam().passthrough && view_->stats().passthrough_offered) {
    EXPECT_GT(view_->stats().passthrough_opens, 0u);
  } else {
    EXPECT_EQ(view_->stats().passthrough_opens, 0u);
    if (GetParam().no_open) {
      EXPECT_LE(Requests()[FUSE_OPEN], 2u);
    }
  }
  if (GetParam().no_open) {
    EXPECT_LE(Requests()[FUSE_OPENDIR], 2u);
  }
  if (!GetParam().list_attributes) {
    EXPECT_EQ(Requests()[FUSE_READDIRPLUS], 0u);
  }
}

TEST_P(RichTree, TheSecondPassAsksNothing) {
  Compare(origin_, mount_, kBase);
  if (GetParam().passthrough) Compare(origin_, mount_, kBase);  // large files use passthrough from their second open on
  EXPECT_NE(::access((mount_ + "/not there").c_str(), F_OK), 0);
  ExpectNothingAsked([&] {
    Compare(origin_, mount_, kBase);
    EXPECT_NE(::access((mount_ + "/not there").c_str(), F_OK), 0);
  });
}

TEST_P(RichTree, NothingCanBeWritten) {
  EXPECT_EQ(::open((mount_ + "/etc/hosts").c_str(), O_WRONLY | O_CLOEXEC), -1);
  EXPECT_EQ(errno, EROFS);
  EXPECT_EQ(::mkdir((mount_ + "/new").c_str(), 0755), -1);
  EXPECT_EQ(errno, EROFS);
  EXPECT_EQ(::open((mount_ + "/null").c_str(), O_RDONLY | O_CLOEXEC), -1);
  EXPECT_EQ(errno, EACCES);  // nodev
}

TEST_P(RichTree, LinksLoopsSparseFilesAndFifosWork) {
  EXPECT_EQ(*ReadFile(mount_ + "/link"), "127.0.0.1 localhost\n");
  EXPECT_EQ(::open((mount_ + "/loop").c_str(), O_RDONLY | O_CLOEXEC), -1);
  EXPECT_EQ(errno, ELOOP);
  const auto sparse = OpenFile(mount_ + "/sparse", O_RDONLY);
  ASSERT_TRUE(sparse);
  EXPECT_EQ(::lseek(sparse->get(), 0, SEEK_DATA), 0);
  EXPECT_EQ(::lseek(sparse->get(), 0, SEEK_HOLE), (5 << 20) + 3);
  // Both ends of a FIFO meet in the kernel, not in the server.
  const UniqueFd reader(::open((mount_ + "/fifo").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  const UniqueFd writer(::open((mount_ + "/fifo").c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
  ASSERT_TRUE(reader);
  ASSERT_TRUE(writer) << std::strerror(errno);
  char byte = 'x';
  EXPECT_EQ(::write(writer.get(), &byte, 1), 1);
  EXPECT_EQ(::read(reader.get(), &byte, 1), 1);
}

TEST_P(RichTree, MapsAndRuns) {
  for (int i = 0; i < 3; ++i) {
    const auto fd = OpenFile(mount_ + "/lib/big", O_RDONLY);
    ASSERT_TRUE(fd);
    void* map = ::mmap(nullptr, 3 << 20, PROT_READ, MAP_PRIVATE, fd->get(), 0);
    ASSERT_NE(map, MAP_FAILED);
    EXPECT_EQ(std::string_view(static_cast<char*>(map), 3 << 20), Noise(3 << 20, 1));
    ::munmap(map, 3 << 20);
  }
  const std::string command = mount_ + "/bin/tool > " + directory_.path() + "/out";
  EXPECT_EQ(std::system(command.c_str()), 0);
  EXPECT_EQ(*ReadFile(directory_.path() + "/out"), "ran\n");
}

TEST_P(RichTree, AnOverlayOnTopTakesChanges) {
  for (const char* name : {"/upper", "/work", "/merged"}) ASSERT_TRUE(MakeDirs(directory_.path() + name, 0755));
  const std::string merged = directory_.path() + "/merged";
  const auto overlay = [&] {
    const std::string options = "lowerdir=" + mount_ + ",upperdir=" + directory_.path() +
                                "/upper,workdir=" + directory_.path() + "/work,redirect_dir=on,metacopy=on";
    return ::mount("overlay", merged.c_str(), "overlay", 0, options.c_str());
  };
  ASSERT_EQ(overlay(), 0) << std::strerror(errno);
  Compare(origin_, merged, kBase, true);
  // A second job: a new overlay on the same warm view.
  ASSERT_EQ(::umount2(merged.c_str(), 0), 0);
  ASSERT_EQ(overlay(), 0) << std::strerror(errno);
  if (GetParam().passthrough) Compare(origin_, merged, kBase, true);
  ExpectNothingAsked([&] { Compare(origin_, merged, kBase, true); });

  EXPECT_EQ(::chmod((merged + "/lib/big").c_str(), 0600), 0);  // copies up only the metadata
  struct stat st {};
  EXPECT_EQ(::stat((merged + "/lib/big").c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 07777, 0600u);
  EXPECT_EQ(*ReadFile(merged + "/lib/big"), Noise(3 << 20, 1));
  EXPECT_EQ(::rename((merged + "/deep/a").c_str(), (merged + "/moved").c_str()), 0) << std::strerror(errno);
  EXPECT_EQ(*ReadFile(merged + "/moved/b/c/d/e/f"), "deep");
  EXPECT_EQ(::unlink((merged + "/etc/shadow").c_str()), 0);
  EXPECT_NE(::access((merged + "/etc/shadow").c_str(), F_OK), 0);
  {
    const auto fd = OpenFile(merged + "/etc/hosts", O_WRONLY | O_APPEND);
    ASSERT_TRUE(fd);
    ASSERT_TRUE(WriteAll(fd->get(), "more\n"));
  }
  EXPECT_EQ(*ReadFile(merged + "/etc/hosts"), "127.0.0.1 localhost\nmore\n");
  EXPECT_EQ(std::system((merged + "/bin/tool > " + merged + "/out").c_str()), 0);
  EXPECT_EQ(*ReadFile(merged + "/out"), "ran\n");
  EXPECT_EQ(::symlink("x", (merged + "/new-link").c_str()), 0);
  EXPECT_EQ(*ReadFile(mount_ + "/etc/hosts"), "127.0.0.1 localhost\n");
  ASSERT_EQ(::umount2(merged.c_str(), 0), 0);
}

TEST_P(RichTree, ClonesLiveBesideTheMount) {
  const auto clone = view_->CloneMount();
  ASSERT_TRUE(clone) << clone.error().message();
  const std::string other = directory_.path() + "/other";
  ASSERT_TRUE(MakeDirs(other, 0755));
  ASSERT_EQ(::move_mount(clone->get(), "", AT_FDCWD, other.c_str(), MOVE_MOUNT_F_EMPTY_PATH), 0)
      << std::strerror(errno);
  Compare(origin_, other, kBase);
  // The server ends first: users of the clone get an error, and do not hang.
  view_.reset();
  EXPECT_EQ(::open((other + "/etc/not asked for yet").c_str(), O_RDONLY | O_CLOEXEC), -1);
  EXPECT_EQ(errno, ENOTCONN);
  ASSERT_EQ(::umount2(other.c_str(), MNT_DETACH), 0);
}

TEST_P(RichTree, AdvanceShowsEditsAndKeepsTheRest) {
  Compare(origin_, mount_, kBase);
  Compare(origin_, mount_, kBase);
  EXPECT_NE(::access((mount_ + "/etc/new").c_str(), F_OK), 0);
  const UniqueFd old(::open((mount_ + "/lib/medium").c_str(), O_RDONLY | O_CLOEXEC));

  Write("/etc/new", "appeared");
  Write("/lib/big", Noise(2 << 20, 9));  // rewritten in place
  ASSERT_EQ(::unlink((origin_ + "/etc/shadow").c_str()), 0);
  ASSERT_EQ(::chmod((origin_ + "/deep").c_str(), 0700), 0);
  ASSERT_EQ(::rename((origin_ + "/bin/tool").c_str(), (origin_ + "/bin/renamed").c_str()), 0);
  ASSERT_EQ(::unlink((origin_ + "/empty").c_str()), 0);
  ASSERT_EQ(::mkdir((origin_ + "/empty").c_str(), 0755), 0);
  const auto advanced = view_->Advance(Scan());
  ASSERT_TRUE(advanced) << advanced.error().message();
  Compare(origin_, mount_, kBase);
  Compare(origin_, mount_, kBase);

  ExpectNothingAsked([&] { Compare(origin_, mount_, kBase); });
}

INSTANTIATE_TEST_SUITE_P(
    With, RichTree,
    testing::Values(
        Features{.name = "All"}, Features{.name = "NoPush", .push = false},
        Features{.name = "NoPassthrough", .passthrough = false},
        Features{.name = "NeitherPassthroughNorPush", .passthrough = false, .push = false},
        Features{.name = "NoAttributesInListings", .list_attributes = false},
        Features{.name = "Opens", .passthrough = false, .no_open = false},
        Features{.name = "Nothing", .passthrough = false, .push = false, .list_attributes = false, .no_open = false}),
    [](const testing::TestParamInfo<Features>& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace vrun::vfs
