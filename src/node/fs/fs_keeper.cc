// SPDX-License-Identifier: Apache-2.0
#include "node/fs/fs_keeper.h"

#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "base/escape.h"
#include "base/files.h"
#include "base/io/event_loop.h"
#include "base/io/message_socket.h"
#include "base/log.h"
#include "node/child_process.h"
#include "node/fs/dead_server.h"
#include "proto/fsctl.pb.h"

namespace vrun::node {
namespace {

constexpr int64_t kFirstDelayMicros = 50'000;
constexpr int64_t kLastDelayMicros = 2'000'000;
// a server that lived this long did not crash because of the state that it took over
constexpr int64_t kSoundMicros = 10'000'000;
constexpr int kMostCrashesAtFirst = 3;  // for a server that has not served anything yet
constexpr size_t kMostItems = 4096;
constexpr int64_t kLookMicros = 1'000'000;              // how often to check for a dead server that cannot exit
constexpr int kLooksForOthers = 3, kLooksForReads = 6;  // after how many such checks more is answered

class FsKeeper {
 public:
  explicit FsKeeper(const FsKeeperOptions& options) : listener_(options.listener), command_(options.command) {}

  Status Start();
  int Run() {
    loop_.Run();
    return exit_code_;
  }

 private:
  struct Item {
    std::string value;
    std::vector<UniqueFd> fds;
  };

  Status StartServer();
  void ReadServer();
  void OnFrame(Frame frame);
  void HelpToEnd();
  void OnExit(int status);
  void Restart(int64_t delay_micros);
  void End(int exit_code);

  EventLoop loop_;
  UniqueFd listener_;
  std::vector<std::string> command_;
  std::map<std::string, Item> items_;
  std::unique_ptr<ChildProcess> server_;
  EventLoop::TimerId look_ = 0;
  int looks_ = 0;  // at a dead server that cannot exit
  UniqueFd socket_;
  FrameReader reader_;
  int64_t started_at_ = 0;
  int crashes_ = 0;  // consecutive
  bool ending_ = false;
  int exit_code_ = 0;
};

Status FsKeeper::Start() {
  if (!listener_ || command_.empty()) return Error(Code::kInvalid, "file system keeper: no socket or no command");
  if (::unshare(CLONE_NEWNS) != 0) return ErrnoError("file system keeper: a mount namespace of its own");
  if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return ErrnoError("make all mounts private");
  ::signal(SIGPIPE, SIG_IGN);
  for (const int signal : {SIGTERM, SIGINT}) {
    VRUN_TRY(loop_.OnSignal(signal, [this](int) {
      ending_ = true;
      if (server_) return server_->Kill(SIGTERM);
      End(0);
    }));
  }
  VRUN_TRY(loop_.OnSignal(SIGHUP, [this](int) {
    if (server_) server_->Kill(SIGHUP);
  }));
  return StartServer();
}

Status FsKeeper::StartServer() {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return ErrnoError("socketpair");
  socket_.Reset(pair[0]);
  const UniqueFd theirs(pair[1]);
  reader_ = FrameReader();
  started_at_ = MonotonicMicros();
  looks_ = 0;
  VRUN_ASSIGN(server_, ChildProcess::Spawn(&loop_, command_, {listener_.get(), theirs.get()}));
  server_->OnExit([this](int status) { OnExit(status); });
  look_ = loop_.After(kLookMicros, [this] { HelpToEnd(); });
  // Blocking: the server reads before it does anything else, and the keeper has nothing else to do. If the server dies
  // meanwhile, this fails and its exit is seen.
  for (const auto& [name, item] : items_) {
    v1::KeeperMessage message;
    message.mutable_keep()->set_name(name);
    message.mutable_keep()->set_value(item.value);
    std::vector<int> fds;
    for (const UniqueFd& fd : item.fds) fds.push_back(fd.get());
    if (!SendFrame(socket_.get(), message.SerializeAsString(), fds)) return {};
  }
  v1::KeeperMessage all;
  all.mutable_all();
  if (!SendFrame(socket_.get(), all.SerializeAsString())) return {};
  VRUN_TRY(SetNonBlocking(socket_.get(), true));
  return loop_.Add(socket_.get(), EPOLLIN, [this](uint32_t) { ReadServer(); });
}

void FsKeeper::ReadServer() {
  if (!socket_) return;
  auto open = reader_.ReadAvailable(socket_.get(), [this](Frame frame) { OnFrame(std::move(frame)); });
  if (open && *open) return;
  if (!open) LogError("file system keeper: {}", open.error().message());
  loop_.Remove(socket_.get());
  socket_.Reset();
}

void FsKeeper::OnFrame(Frame frame) {
  v1::KeeperMessage message;
  if (!message.ParseFromString(frame.bytes)) {
    LogError("file system keeper: a frame that does not parse");
    return;
  }
  switch (message.what_case()) {
    case v1::KeeperMessage::kKeep: {
      if (items_.size() >= kMostItems && !items_.contains(message.keep().name())) {
        LogError("file system keeper: more than {} things to keep: {} is not", kMostItems,
                 Escape(message.keep().name()));
        return;
      }
      Item& item = items_[message.keep().name()];
      item.value = message.keep().value();
      if (!frame.fds.empty()) item.fds = std::move(frame.fds);
      return;
    }
    case v1::KeeperMessage::kDrop: items_.erase(message.drop()); return;
    case v1::KeeperMessage::kProgram: command_[0] = message.program(); return;
    default: return;
  }
}

void FsKeeper::HelpToEnd() {
  look_ = loop_.After(kLookMicros, [this] { HelpToEnd(); });
  if (!HasLostFirstThread(server_->pid())) {
    looks_ = 0;
    return;
  }
  // Its own requests first; then those that hold the locks for which it may wait, the less harmful ones first.
  ++looks_;
  const Answering answering = looks_ < kLooksForOthers  ? Answering::kItself
                              : looks_ < kLooksForReads ? Answering::kHarmless
                                                        : Answering::kReads;
  int answered = 0;
  for (const auto& [name, item] : items_) {
    for (const UniqueFd& fd : item.fds) answered += AnswerForDead(fd.get(), server_->pid(), answering);
  }
  if (answered > 0) LogWarning("the file system server died while it waited for its own mount: {} requests", answered);
}

void FsKeeper::OnExit(int status) {
  loop_.Cancel(look_);
  ReadServer();  // its last messages are still in the socket
  if (socket_) {
    loop_.Remove(socket_.get());
    socket_.Reset();
  }
  server_.reset();
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return End(0);
  if (ending_) return End(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kHandOver) {
    LogInfo("the file system server hands over to {}", Escape(command_[0]));
    return Restart(0);
  }
  const std::string how = WIFSIGNALED(status) ? "was killed by signal " + std::to_string(WTERMSIG(status))
                                              : "ended with status " + std::to_string(WEXITSTATUS(status));
  if (items_.empty() && WIFEXITED(status)) {
    LogError("the file system server {}: it has served nothing yet, so it is not started again", how);
    return End(WEXITSTATUS(status));
  }
  if (MonotonicMicros() - started_at_ >= kSoundMicros) crashes_ = 0;
  if (++crashes_ > (items_.empty() ? kMostCrashesAtFirst : kMostCrashes)) {
    LogError("the file system server {}, {} times in a row: it is not started again; what uses its views fails", how,
             crashes_);
    return End(1);
  }
  const int64_t delay = crashes_ == 1 ? 0 : std::min(kFirstDelayMicros << std::min(crashes_ - 2, 10), kLastDelayMicros);
  LogError("the file system server {}: started again in {} ms; users of its views wait", how, delay / 1000);
  Restart(delay);
}

void FsKeeper::Restart(int64_t delay_micros) {
  loop_.After(delay_micros, [this] {
    if (ending_) return End(0);
    if (const Status started = StartServer(); !started) {
      LogError("file system keeper: {}", started.error().message());
      if (server_) return;  // its exit decides what happens next
      if (++crashes_ > kMostCrashes) return End(1);
      Restart(kLastDelayMicros);
    }
  });
}

void FsKeeper::End(int exit_code) {
  exit_code_ = exit_code;
  loop_.Stop();
}

}  // namespace

int FsKeeperMain(const FsKeeperOptions& options) {
  InitLog("fs-keeper");
  FsKeeper keeper(options);
  if (const Status started = keeper.Start(); !started) {
    LogError("{}", started.error().message());
    return 1;
  }
  return keeper.Run();
}

}  // namespace vrun::node
