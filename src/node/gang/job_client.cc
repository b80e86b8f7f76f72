// SPDX-License-Identifier: Apache-2.0
#include "node/gang/job_client.h"

#include <errno.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "base/files.h"
#include "base/io/message_socket.h"
#include "base/unique_fd.h"
#include "node/gang/job_socket.h"
#include "sandbox/spec.h"

namespace vrun::node {
namespace {

constexpr int kNoConnection = 255;  // as ssh

std::string_view BaseName(const char* path) {
  const char* slash = std::strrchr(path, '/');
  return slash == nullptr ? path : slash + 1;
}

// Sends the request and returns all that is answered.
Result<std::string> Ask(const std::string& request) {
  VRUN_ASSIGN(UniqueFd socket, ConnectUnix(sandbox::kJobSocketPath));
  VRUN_TRY(WriteAll(socket.get(), request));
  ::shutdown(socket.get(), SHUT_WR);
  std::string answer;
  char bytes[4096];
  for (ssize_t n; (n = ::read(socket.get(), bytes, sizeof bytes)) != 0;) {
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoError("read the answer");
    answer.append(bytes, static_cast<size_t>(n));
  }
  return answer;
}

int Notify(int argc, char** argv) {
  if (argc < 2) {
    std::fputs("usage: notify KEY=VALUE...   (SAVED=1: the program's state is safe; MEMBERS=1: the job's pods)\n",
               stderr);
    return 2;
  }
  std::string request;
  for (int i = 1; i < argc; ++i) request += std::string(argv[i]) + "\n";
  const Result<std::string> answer = Ask(request);
  if (!answer) {
    std::fprintf(stderr, "notify: %s: is this program part of a vrun job?\n", answer.error().message().c_str());
    return kNoConnection;
  }
  std::fputs(answer->c_str(), stdout);
  return answer->find("PROBLEM=") == std::string::npos ? 0 : 1;
}

// The options of ssh(1) that have a value. All options are accepted and none has an effect.
bool HasValue(char option) { return std::strchr("BbcDEeFIiJLlmOopQRSWw", option) != nullptr; }

int Rsh(int argc, char** argv) {
  int i = 1;
  for (; i < argc && argv[i][0] == '-' && argv[i][1] != '\0'; ++i) {
    if (argv[i][2] == '\0' && HasValue(argv[i][1])) ++i;
  }
  if (i + 1 >= argc) {
    std::fputs("usage: rsh [OPTION...] POD COMMAND...\n", stderr);
    return 2;
  }
  std::string pod = argv[i];
  if (const size_t at = pod.find('@'); at != std::string::npos) pod = pod.substr(at + 1);
  std::string command;
  for (int word = i + 1; word < argc; ++word) command += (command.empty() ? "" : " ") + std::string(argv[word]);
  const char* shell = std::getenv("SHELL");
  std::string request = "EXEC=" + EscapeValue(pod) + "\n";
  for (const std::string& argument :
       {std::string(shell != nullptr && *shell == '/' ? shell : "/bin/sh"), std::string("-c"), command}) {
    request += "ARG=" + EscapeValue(argument) + "\n";
  }
  const Result<std::string> answer = Ask(request + "START=1\n");
  if (!answer) {
    std::fprintf(stderr, "rsh: %s: %s\n", pod.c_str(), answer.error().message().c_str());
    return kNoConnection;
  }
  const std::string value = UnescapeValue(std::string_view(*answer).substr(0, answer->find('\n')));
  if (value.starts_with("EXITED=")) return std::atoi(value.c_str() + 7);
  if (value.starts_with("SIGNALED=")) return 128 + std::atoi(value.c_str() + 9);
  std::fprintf(stderr, "rsh: %s: %s\n", pod.c_str(),
               value.starts_with("PROBLEM=") ? value.c_str() + 8 : "the job ended before the process did");
  return kNoConnection;
}

}  // namespace

bool IsJobClient(const char* argv0) {
  const std::string_view name = BaseName(argv0);
  return name == "notify" || name == "rsh";
}

int JobClientMain(int argc, char** argv) {
  ::signal(SIGPIPE, SIG_IGN);
  return BaseName(argv[0]) == "rsh" ? Rsh(argc, argv) : Notify(argc, argv);
}

}  // namespace vrun::node
