// SPDX-License-Identifier: Apache-2.0
// A real S3 server for a test (tests/testlib/s3server), on loopback, in its own directory. Tests only.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include <memory>
#include <string>
#include <vector>

#include "base/files.h"
#include "s3/bucket.h"

namespace vrun::s3 {

class TestServer {
 public:
  // Null when node or the server's packages are missing (tools/install-deps --test installs them).
  static std::unique_ptr<TestServer> Start(std::vector<std::string> more = {}, int port = 0) {
    const std::string server = S3_SERVER;
    if (!PathExists(server + "/node_modules/s3rver")) return nullptr;
    std::unique_ptr<TestServer> out(new TestServer);
    char directory[] = "/tmp/vrun-s3-XXXXXX";
    if (::mkdtemp(directory) == nullptr) return nullptr;
    out->directory_ = directory;
    int in[2], told[2];
    if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(told, O_CLOEXEC) != 0) return nullptr;
    std::vector<std::string> argv = {"node",     server + "/server.js", "--directory", out->directory_,
                                     "--bucket", "testbucket",          "--port",      std::to_string(port)};
    argv.insert(argv.end(), more.begin(), more.end());
    std::vector<char*> words;
    for (std::string& word : argv) words.push_back(word.data());
    words.push_back(nullptr);
    out->pid_ = ::fork();
    if (out->pid_ == 0) {
      ::dup2(in[0], 0);
      ::dup2(told[1], 1);
      ::execvp("node", words.data());
      ::_exit(127);
    }
    ::close(in[0]);
    ::close(told[1]);
    out->stdin_ = UniqueFd(in[1]);
    UniqueFd output(told[0]);
    std::string line;
    for (char c; ::read(output.get(), &c, 1) == 1 && c != '\n';) line.push_back(c);
    if (!line.starts_with("ready ")) return nullptr;
    out->port_ = std::atoi(line.c_str() + 6);
    return out;
  }
  ~TestServer() {
    Stop();
    if (!directory_.empty()) (void)RemoveTree(directory_);
  }
  void Stop() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

  // Accepts connections but answers nothing until Resume.
  void Pause() { ::kill(pid_, SIGSTOP); }
  void Resume() { ::kill(pid_, SIGCONT); }

  int port() const { return port_; }
  const std::string& directory() const { return directory_; }
  Bucket bucket() const {
    Bucket b;
    b.endpoint = "http://127.0.0.1:" + std::to_string(port_);
    b.name = "testbucket";
    return b;
  }
  static Keys keys() { return {"TESTACCESS", "test/secret+key", ""}; }

 private:
  TestServer() = default;
  std::string directory_;
  UniqueFd stdin_;
  pid_t pid_ = -1;
  int port_ = 0;
};

// Accepts connections (the kernel does) but never answers. Once closed, it refuses new connections and existing ones
// end.
class SilentServer {
 public:
  SilentServer() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    VRUN_CHECK(::bind(listener_.get(), any, length) == 0 && ::listen(listener_.get(), 64) == 0);
    VRUN_CHECK(::getsockname(listener_.get(), any, &length) == 0);
    port_ = ::ntohs(address.sin_port);
  }
  void Close() { listener_.Reset(); }
  Bucket bucket() const {
    Bucket b;
    b.endpoint = "http://127.0.0.1:" + std::to_string(port_);
    b.name = "testbucket";
    return b;
  }

 private:
  UniqueFd listener_;
  int port_ = 0;
};

}  // namespace vrun::s3
