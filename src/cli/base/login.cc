// SPDX-License-Identifier: Apache-2.0
#include "cli/base/login.h"

#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <vector>

#include "base/escape.h"
#include "base/files.h"
#include "base/io/message_socket.h"
#include "cli/base/daemon_process.h"
#include "people/address.h"
#include "people/members.h"

namespace vrun::cli {
namespace {

// Nobody but root can put a file there.
constexpr char kDoor[] = "/run/vrun-cluster.sock";

// NAME=VALUE lines of the file that `vrund join` writes.
std::string ValueOf(const std::string& text, const std::string& name) {
  const size_t at = ("\n" + text).find("\n" + name + "=");
  if (at == std::string::npos) return "";
  const size_t begin = at + name.size() + 1;
  return text.substr(begin, text.find('\n', begin) - begin);
}

// `join`: runs `vrund join` with these words and some more.
Result<LoggedIn> LogInAt(const Places& places, const std::string& controller, const std::string& machine,
                         const std::function<Status(std::vector<std::string>)>& join) {
  Config config;
  if (auto there = ReadConfig(places.config_file)) {
    config = *std::move(there);
  } else if (there.error().code() != Code::kNotFound) {
    return std::move(there).error();
  }
  if (!config.controller.empty() && config.controller != controller) {
    return Error(Code::kExists, Escape(places.config_file) + " names the controller " + Escape(config.controller) +
                                    ": remove the file, or set VRUN_DIR to another directory");
  }
  VRUN_TRY(MakePlaces(places, ::geteuid()));
  VRUN_TRY(MakeDirs(places.pki_dir, 0700));
  const std::string directory = places.pki_dir + "/home";
  VRUN_ASSIGN(const std::string vrund, FindProgram("vrund"));
  VRUN_TRY(join({vrund, "join", "--dir", directory, "--role", "home", "--name",
                 machine.empty() ? people::MachineName() : machine}));
  VRUN_ASSIGN(const std::string text, ReadFile(directory + "/joined", 65536));
  config.controller = ValueOf(text, "controller");
  config.snapshots = ValueOf(text, "snapshots");
  // Where the cluster has one pool, its name is no choice; what the user has chosen stays.
  const std::string pool = ValueOf(text, "pool");
  if (!pool.empty() && config.pool == Config().pool) config.pool = pool;
  config.credentials = directory;
  config.credentials_name = ValueOf(text, "name");
  VRUN_TRY(WriteConfig(places.config_file, config));
  return LoggedIn{config.controller, config.credentials_name};
}

}  // namespace

Result<LoggedIn> LogIn(const Places& places, const std::string& token, const std::string& machine) {
  VRUN_ASSIGN(const people::Token parsed, people::ParseToken(token));
  return LogInAt(places, parsed.controller, machine, [&](const std::vector<std::string>& words) {
    // Not among the arguments, which all users of this machine may read.
    ::setenv("VRUN_JOIN_TOKEN", token.c_str(), 1);
    Status joined = RunHelper(words);
    ::unsetenv("VRUN_JOIN_TOKEN");
    return joined;
  });
}

Result<LoggedIn> LogInByProvider(const Places& places, const std::string& address, const std::string& machine) {
  const auto parsed = people::ParseClusterAddress(address);
  if (!parsed) return Error(Code::kInvalid, Escape(address) + ": not the address of a cluster");
  return LogInAt(places, parsed->controller, machine, [&](std::vector<std::string> words) {
    words.insert(words.end(), {"--controller", address});
    return RunHelper(words, true);
  });
}

std::string DoorPath() {
  if (const char* chosen = std::getenv("VRUN_DOOR"); chosen != nullptr) return chosen;
  const char* apart = std::getenv("VRUN_DIR");
  return apart == nullptr || *apart == 0 ? kDoor : "";
}

Result<std::optional<LoggedIn>> LogInHere(const Places& places) {
  const std::string door = DoorPath();
  if (door.empty()) return std::nullopt;
  const auto socket = ConnectUnix(door);
  if (!socket) return std::nullopt;
  const auto peer = UnixPeer(socket->get());
  if (!peer || peer->uid != 0) return std::nullopt;
  VRUN_ASSIGN(const Frame frame, ReceiveFrame(socket->get()));
  constexpr std::string_view kError = "error ";
  if (!frame.bytes.starts_with("ok ")) {
    const size_t from = frame.bytes.starts_with(kError) ? kError.size() : 0;
    return Error(Code::kDenied, Escape(frame.bytes.substr(from, 1000)));
  }
  VRUN_ASSIGN(LoggedIn logged_in, LogIn(places, frame.bytes.substr(3), ""));
  return std::optional<LoggedIn>(std::move(logged_in));
}

}  // namespace vrun::cli
