// SPDX-License-Identifier: Apache-2.0
// What is durable after a flush if the disk loses power, and that other writers' data is not waited for.
#include "home/apply/apply_flush.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/loop.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iterator>

#include "base/files.h"
#include "home/apply/apply.h"

namespace vrun::home {
namespace {

using v1::WriteBack;

constexpr unsigned long kShutdown = _IOR('X', 125, uint32_t);  // EXT4_IOC_SHUTDOWN
constexpr size_t kOthers = 24u << 20;

TEST(ApplyFlush, FewInodesDoNotWaitForWhatOthersWrite) {
  EXPECT_TRUE(FlushWhole(1, 0));
  EXPECT_FALSE(FlushWhole(20, 500u << 20));
  EXPECT_FALSE(FlushWhole(1000, 500u << 20));
  EXPECT_TRUE(FlushWhole(1000, 8u << 20));
  EXPECT_FALSE(FlushWhole(1000, UINT64_MAX));
  EXPECT_GT(BytesNotOnDisk(), 0u);
  EXPECT_LT(BytesNotOnDisk(), UINT64_MAX);
}

// On an ext4 with a journal, in a file. The parameter: whether the series is a live view's.
class PowerLoss : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    ASSERT_NE(::mkdtemp(top_.data()), nullptr);
    root_ = top_ + "/root";
    ASSERT_EQ(::mkdir(root_.c_str(), 0755), 0);
    static const bool private_mounts = ::geteuid() == 0 && ::unshare(CLONE_NEWNS) == 0 &&
                                       ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
    const std::string make = "mkfs.ext4 -q -F " + top_ + "/disk 96M > /dev/null 2>&1";
    if (!private_mounts || std::system(make.c_str()) != 0 || !Attach() || !Mount()) {
      GTEST_SKIP() << "needs root, loop devices and mkfs.ext4";
    }
    mounted_ = true;
    Open();
  }
  void TearDown() override {
    applier_.reset();
    EXPECT_TRUE(!mounted_ || ::umount(root_.c_str()) == 0);
    loop_.Reset();
    EXPECT_TRUE(RemoveTree(top_).has_value());
  }

  bool Attach() {
    const auto control = OpenFile("/dev/loop-control", O_RDWR);
    const auto image = OpenFile(top_ + "/disk", O_RDWR);
    if (!control || !image) return false;
    loop_config config{};
    config.fd = static_cast<uint32_t>(image->get());
    config.info.lo_flags = LO_FLAGS_AUTOCLEAR;
    for (int i = 0; i < 20; ++i) {  // another process may take the free device
      const int number = ::ioctl(control->get(), LOOP_CTL_GET_FREE);
      device_ = "/dev/loop" + std::to_string(number);
      auto loop = OpenFile(device_, O_RDWR);
      if (loop && ::ioctl(loop->get(), LOOP_CONFIGURE, &config) == 0) {
        loop_ = *std::move(loop);
        return true;
      }
    }
    return false;
  }
  bool Mount() { return ::mount(device_.c_str(), root_.c_str(), "ext4", 0, nullptr) == 0; }
  // Not sync(2), which waits for every mount of the machine.
  void SyncDisk() {
    for (const std::string& place : {root_, top_}) {
      const auto fd = OpenFile(place, O_RDONLY | O_DIRECTORY);
      ASSERT_TRUE(fd && ::syncfs(fd->get()) == 0);
    }
  }
  // Data that is only in memory is lost.
  void LosePower() {
    applier_.reset();
    uint32_t without_flush = 2;
    {
      const auto fd = OpenFile(root_, O_RDONLY | O_DIRECTORY);
      ASSERT_TRUE(fd && ::ioctl(fd->get(), kShutdown, &without_flush) == 0);
    }
    ASSERT_EQ(::umount(root_.c_str()), 0);
    ASSERT_TRUE(Mount());
  }
  void Open() {
    ApplyOptions options;
    options.root = root_;
    options.job = 7;
    options.attempt = 1;
    options.live = GetParam();
    next_ = 0;
    auto applier = Applier::Open(std::move(options));
    ASSERT_TRUE(applier) << applier.error().message();
    applier_ = *std::move(applier);
  }
  void OthersWrite() {
    const auto fd = OpenFile(Path("/others"), O_WRONLY | O_CREAT, 0644);
    ASSERT_TRUE(fd && WriteAll(fd->get(), std::string(kOthers, 'o')));
  }

  std::string Path(const std::string& path) const { return root_ + path; }
  std::string Read(const std::string& path) { return ReadFile(Path(path)).value_or("(none)"); }
  struct stat Stat(const std::string& path) {
    struct stat st {};
    ::lstat(Path(path).c_str(), &st);
    return st;
  }
  WriteBack Message(const std::string& path) {
    WriteBack message;
    message.set_sequence(++next_);
    message.set_path(path);
    const struct stat st = Stat(path);
    if (st.st_ino == 0) return message;
    auto* base = message.mutable_base();
    base->set_ino(st.st_ino);
    base->set_type(st.st_mode & S_IFMT);
    base->set_ctime_ns(int64_t{st.st_ctim.tv_sec} * 1'000'000'000 + st.st_ctim.tv_nsec);
    base->set_mtime_ns(int64_t{st.st_mtim.tv_sec} * 1'000'000'000 + st.st_mtim.tv_nsec);
    base->set_size(static_cast<uint64_t>(st.st_size));
    base->set_nlink(st.st_nlink);
    return message;
  }
  void Do(const WriteBack& message) {
    const Status done = applier_->Apply(message);
    EXPECT_TRUE(done) << done.error().message();
  }
  void Put(const std::string& path, const std::string& content) {
    WriteBack put = Message(path);
    put.mutable_put_file()->mutable_meta()->set_mode(S_IFREG | 0644);
    put.mutable_put_file()->set_size(content.size());
    Do(put);
    WriteBack data = Message(path);
    data.mutable_file_data()->set_data(content);
    data.mutable_file_data()->set_last(true);
    Do(data);
  }
  void MakeDirectory(const std::string& path) {
    WriteBack make = Message(path);
    make.mutable_make_directory()->mutable_meta()->set_mode(S_IFDIR | 0751);
    Do(make);
  }
  void Chmod(const std::string& path, uint32_t mode) {
    WriteBack change = Message(path);
    change.mutable_set_meta()->mutable_meta()->set_mode(mode);
    Do(change);
  }
  bool Sync() { return applier_->Sync().has_value(); }

  std::string top_ = "/var/tmp/vrun-flush-XXXXXX";
  std::string root_;
  std::string device_;
  UniqueFd loop_;
  bool mounted_ = false;
  std::unique_ptr<Applier> applier_;
  uint64_t next_ = 0;
};

INSTANTIATE_TEST_SUITE_P(ApplyFlush, PowerLoss, testing::Bool(),
                         [](const auto& is_live) { return is_live.param ? "Live" : "Frozen"; });

TEST_P(PowerLoss, EachKindOfChangeIsThere) {
  Put("/old", "content");
  Put("/replaced", "before");
  Put("/removed", "content");
  ASSERT_TRUE(Sync());
  SyncDisk();
  OthersWrite();  // so that leaving it out pays
  Put("/new", "new");
  Put("/replaced", "after");
  MakeDirectory("/d");
  Put("/d/inside", "inside");
  Chmod("/old", S_IFREG | 0600);
  WriteBack link = Message("/link");
  link.mutable_make_symlink()->set_target("target");
  link.mutable_make_symlink()->mutable_meta()->set_mode(S_IFLNK | 0777);
  Do(link);
  WriteBack name = Message("/d/name");
  name.mutable_make_hard_link()->set_existing("/new");
  Do(name);
  WriteBack remove = Message("/removed");
  remove.mutable_remove();
  Do(remove);
  ASSERT_TRUE(Sync());
  LosePower();
  EXPECT_EQ(Read("/new") + Read("/replaced") + Read("/d/inside") + Read("/d/name"), "newafterinsidenew");
  EXPECT_EQ(Stat("/d").st_mode, S_IFDIR | 0751u);
  EXPECT_EQ(Stat("/old").st_mode, S_IFREG | 0600u);
  EXPECT_FALSE(PathExists(Path("/removed")));
  char target[16];
  ASSERT_EQ(::readlink(Path("/link").c_str(), target, sizeof target), 6);
  EXPECT_EQ(std::string(target, 6), "target");
}

// No new name beside them may bring them to disk.
TEST_P(PowerLoss, AttributesAloneAreThere) {
  Put("/f", "content");
  MakeDirectory("/d");
  Put("/others", "");
  ASSERT_TRUE(Sync());
  SyncDisk();
  OthersWrite();
  Chmod("/d", S_IFDIR | 0700);
  ASSERT_TRUE(Sync());
  Chmod("/f", S_IFREG | 0600);
  ASSERT_TRUE(Sync());
  LosePower();
  EXPECT_EQ(Stat("/f").st_mode, S_IFREG | 0600u);
  EXPECT_EQ(Stat("/d").st_mode, S_IFDIR | 0700u);
}

TEST_P(PowerLoss, HundredsOfFilesAreThereAndWhatOthersWriteIsNotWaitedFor) {
  bool waited = true;
  for (int turn = 0; turn < 5 && waited; ++turn) {  // the kernel may write it meanwhile
    const std::string directory = "/" + std::to_string(turn);
    SyncDisk();
    OthersWrite();
    MakeDirectory(directory);
    for (int i = 0; i < 200; ++i) Put(directory + "/" + std::to_string(i), std::to_string(i));
    ASSERT_TRUE(Sync());
    LosePower();
    for (int i = 0; i < 200; ++i) ASSERT_EQ(Read(directory + "/" + std::to_string(i)), std::to_string(i));
    waited = Read("/others") == std::string(kOthers, 'o');
    ASSERT_EQ(::unlink(Path("/others").c_str()), 0);
    Open();
  }
  EXPECT_FALSE(waited);
}

TEST_P(PowerLoss, ThousandsOfFilesAreThereAndFewAreHeldOpen) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit low{std::min<rlim_t>(limit.rlim_cur, 4096), limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  Open();
  const auto open = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
  };
  const auto before = open();
  for (int i = 0; i < 3000; ++i) Put("/" + std::to_string(i), std::to_string(i));
  EXPECT_LT(open() - before, 550);
  ASSERT_TRUE(Sync());
  EXPECT_LT(open() - before, 10);
  LosePower();
  for (int i = 0; i < 3000; ++i) ASSERT_EQ(Read("/" + std::to_string(i)), std::to_string(i));
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
}

}  // namespace
}  // namespace vrun::home
