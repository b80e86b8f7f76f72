// SPDX-License-Identifier: Apache-2.0
// A server that is killed while one of its threads waits for a page that a job is reading: with the kernel.
#include "node/fs/dead_server.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/files.h"
#include "base/unique_fd.h"
#include "vfs/fuse/fuse_abi.h"
#include "vfs/fuse/mount.h"

namespace vrun::node {
namespace {

constexpr uint64_t kFile = 2;
constexpr uint32_t kSize = 256 << 10;
constexpr int kSeconds = 20;  // for anything

// Serves a directory with one file, "f".
class Server {
 public:
  explicit Server(int device) : device_(device), request_(1 << 21) {}

  // Answers what comes. `answers_read` says whether to answer a READ; false: one was not answered.
  bool ServeOne(const std::function<bool(const fuse_in_header&, const fuse_read_in&)>& answers_read) {
    const ssize_t n = ::read(device_, request_.data(), request_.size());
    if (n < static_cast<ssize_t>(sizeof(fuse_in_header))) return true;
    fuse_in_header in{};
    std::memcpy(&in, request_.data(), sizeof in);
    const char* const body = request_.data() + sizeof in;
    switch (in.opcode) {
      case FUSE_INIT: {
        vfs::InitOut out{};
        out.major = FUSE_KERNEL_VERSION;
        out.minor = vfs::kSpokenMinor;
        out.max_readahead = 128 << 10;
        out.max_write = 128 << 10;
        out.max_background = 16;
        out.congestion_threshold = 12;
        out.flags = FUSE_ASYNC_READ | FUSE_INIT_EXT;
        out.flags2 = static_cast<uint32_t>(vfs::kFuseHasResend >> 32);
        Answer(in, out);
        break;
      }
      case FUSE_LOOKUP: {
        fuse_entry_out out{};
        out.nodeid = kFile;
        out.entry_valid = out.attr_valid = 1000;
        out.attr = Attributes(kFile);
        Answer(in, out);
        break;
      }
      case FUSE_GETATTR: {
        fuse_attr_out out{};
        out.attr_valid = 1000;
        out.attr = Attributes(in.nodeid);
        Answer(in, out);
        break;
      }
      case FUSE_OPEN: Answer(in, fuse_open_out{}); break;
      case FUSE_READ: {
        fuse_read_in read{};
        std::memcpy(&read, body, sizeof read);
        if (!answers_read(in, read)) return false;
        const std::string data(std::min<uint64_t>(read.size, kSize - read.offset), 'x');
        Send(in.unique, 0, data);
        break;
      }
      case FUSE_FORGET:
      case FUSE_BATCH_FORGET:
      case FUSE_INTERRUPT: break;
      case FUSE_RELEASE:
      case FUSE_FLUSH: Send(in.unique, 0, {}); break;
      default: Send(in.unique, -ENOSYS, {});
    }
    return true;
  }
  // As the pusher does (vfs/push/pusher.h).
  void Store(uint64_t offset) {
    fuse_notify_store_out out{};
    out.nodeid = kFile;
    out.offset = offset;
    out.size = 4096;
    Send(0, FUSE_NOTIFY_STORE, std::string(reinterpret_cast<const char*>(&out), sizeof out) + std::string(4096, 'x'));
  }
  void Resend() { Send(0, vfs::kNotifyResend, {}); }

 private:
  static fuse_attr Attributes(uint64_t nodeid) {
    fuse_attr attr{};
    attr.ino = nodeid;
    attr.mode = nodeid == kFile ? S_IFREG | 0644 : S_IFDIR | 0755;
    attr.nlink = 1;
    attr.size = nodeid == kFile ? kSize : 0;
    return attr;
  }
  template <typename T>
  void Answer(const fuse_in_header& in, const T& out) {
    Send(in.unique, 0, {reinterpret_cast<const char*>(&out), sizeof out});
  }
  void Send(uint64_t unique, int error, const std::string& body) {
    fuse_out_header out{};
    out.len = static_cast<uint32_t>(sizeof out + body.size());
    out.error = error;
    out.unique = unique;
    std::string message(reinterpret_cast<const char*>(&out), sizeof out);
    message += body;
    (void)!::write(device_, message.data(), message.size());
  }

  const int device_;
  std::vector<char> request_;
};

bool Within(const std::function<bool()>& is) {
  for (int i = 0; i < kSeconds * 100; ++i) {
    if (is()) return true;
    ::usleep(10'000);
  }
  return false;
}

bool HasUninterruptible(pid_t pid) {
  std::error_code error;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task", error)) {
    const std::string stat = ReadFile(thread.path().string() + "/stat").value_or("");
    const size_t end = stat.rfind(") ");
    if (end != stat.npos && stat[end + 2] == 'D') return true;
  }
  return false;
}

int EndOf(pid_t pid) {
  int status = 0;
  return ::waitpid(pid, &status, WNOHANG) == pid ? status : -1;
}

// A read of one page, and one of many.
class DeadServer : public testing::TestWithParam<size_t> {
 protected:
  void SetUp() override {
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
      GTEST_SKIP() << "SKIP: needs root";
    }
    ASSERT_NE(::mkdtemp(top_.data()), nullptr);
    auto device = vfs::OpenFuseDevice("/dev/fuse");
    ASSERT_TRUE(device) << device.error().message();
    device_ = *std::move(device);
  }
  void TearDown() override {
    mount_.reset();
    for (const pid_t pid : {server_, reader_}) {
      if (pid > 0) ::kill(pid, SIGKILL);
    }
    device_.Reset();
    ::rmdir(top_.c_str());
  }

  std::string top_ = "/var/tmp/vrun-dead-server-XXXXXX";
  UniqueFd device_;
  std::optional<vfs::FuseMount> mount_;
  pid_t server_ = -1, reader_ = -1;
};

TEST_P(DeadServer, OneThatPushesAPageThatIsBeingReadEnds) {
  const size_t bytes = GetParam();
  auto mount = vfs::FuseMount::Create(device_.get(), top_);
  ASSERT_TRUE(mount) << mount.error().message();
  mount_.emplace(*std::move(mount));
  server_ = ::fork();
  ASSERT_GE(server_, 0);
  if (server_ == 0) {
    Server server(device_.get());
    uint64_t offset = 0;
    while (server.ServeOne([&](const fuse_in_header&, const fuse_read_in& read) {
      offset = read.offset;
      return false;
    })) {
    }
    std::thread([&] { server.Store(offset); }).detach();
    for (;;) ::pause();
  }
  reader_ = ::fork();
  ASSERT_GE(reader_, 0);
  if (reader_ == 0) {
    const int fd = ::open((top_ + "/f").c_str(), O_RDONLY);
    if (bytes == 4096) ::posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
    std::string data(bytes, '\0');
    size_t done = 0;
    while (done < bytes) {
      const ssize_t n = ::pread(fd, data.data() + done, bytes - done, static_cast<off_t>(done));
      if (n == 0 || (n < 0 && errno != EINTR)) break;
      if (n > 0) done += static_cast<size_t>(n);
    }
    ::_exit(data == std::string(bytes, 'x') ? 0 : 1);
  }
  ASSERT_TRUE(Within([&] { return HasUninterruptible(server_); })) << "it waits for the page";
  ::kill(server_, SIGKILL);
  ASSERT_TRUE(Within([&] { return HasLostFirstThread(server_); }));
  EXPECT_EQ(AnswerForDead(device_.get(), server_, Answering::kItself), 0);
  ::usleep(100'000);
  EXPECT_EQ(EndOf(server_), -1) << "it cannot end";
  // More than once, as the keeper does: the reader may ask again, and so have the page's lock again.
  int answered = 0, looks = 0;
  EXPECT_TRUE(Within([&] {
    answered += AnswerForDead(device_.get(), server_, ++looks < 4 ? Answering::kHarmless : Answering::kReads);
    return EndOf(server_) >= 0 || (::kill(server_, 0) != 0 && errno == ESRCH);
  }));
  EXPECT_GE(answered, 1);
  server_ = -1;

  // The next server, which is this process.
  Server next(device_.get());
  next.Resend();
  int status = -1;
  EXPECT_TRUE(Within([&] {
    pollfd pending{device_.get(), POLLIN, 0};
    while (::poll(&pending, 1, 0) == 1 && (pending.revents & POLLIN) != 0) {
      (void)next.ServeOne([](const fuse_in_header&, const fuse_read_in&) { return true; });
    }
    status = EndOf(reader_);
    return status >= 0;
  }));
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "the reader got all of it";
  reader_ = -1;
}

INSTANTIATE_TEST_SUITE_P(Reads, DeadServer, testing::Values(4096, 64 << 10));

}  // namespace
}  // namespace vrun::node
