// SPDX-License-Identifier: Apache-2.0
// A real PostgreSQL of a test's own: its files in a directory, its only address a socket there. PostgreSQL does not run
// as root, so it runs as nobody.
#pragma once

#include <fcntl.h>
#include <glob.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "base/files.h"

namespace vrun::control {

class PostgresServer {
 public:
  // Where Debian has the server's programs; "": it is not installed.
  static std::string Programs() {
    glob_t found{};
    std::string path;
    if (::glob("/usr/lib/postgresql/*/bin/initdb", 0, nullptr, &found) == 0) {
      path = found.gl_pathv[found.gl_pathc - 1];
      path.resize(path.rfind('/'));
    }
    ::globfree(&found);
    return path;
  }

  PostgresServer() {
    char name[] = "/tmp/vrun-pg-XXXXXX";  // short: it is part of a socket's name
    VRUN_CHECK(::mkdtemp(name) != nullptr);
    directory_ = name;
    if (::geteuid() == 0) VRUN_CHECK(::chown(name, kNobody, kNobody) == 0);
    VRUN_CHECK(Wait(Spawn({Programs() + "/initdb", "-D", directory_ + "/data", "-U", "vrun", "-A", "trust", "-N",
                           "--no-locale", "-E", "UTF8"})));
    Start();
  }
  ~PostgresServer() {
    Stop(SIGINT);
    (void)RemoveTree(directory_);
  }
  PostgresServer(const PostgresServer&) = delete;
  PostgresServer& operator=(const PostgresServer&) = delete;

  void Start() {
    pid_ = Spawn({Programs() + "/postgres", "-D", directory_ + "/data", "-k", directory_, "-c", "listen_addresses="});
    for (int i = 0; i < 600; ++i) {
      if (Sql("SELECT 1")) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    VRUN_CHECK(false);
  }
  void Stop(int signal) {
    if (pid_ <= 0) return;
    ::kill(pid_, signal);
    (void)Wait(std::exchange(pid_, 0));
  }
  std::string Url(const std::string& database) const { return "host=" + directory_ + " user=vrun dbname=" + database; }
  // A new, empty one.
  std::string MakeDatabase() {
    const std::string name = "d" + std::to_string(++made_);
    VRUN_CHECK(Sql("CREATE DATABASE " + name + " TEMPLATE template0"));
    return Url(name);
  }
  bool Sql(const std::string& sql, const std::string& database = "postgres") {
    return Wait(Spawn({Programs() + "/psql", "-q", "-h", directory_, "-U", "vrun", "-d", database, "-c", sql}));
  }

 private:
  static constexpr uid_t kNobody = 65534;

  pid_t Spawn(const std::vector<std::string>& command) const {
    std::vector<char*> argv;
    for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    const std::string log = directory_ + "/log";
    const pid_t pid = ::fork();
    if (pid != 0) return pid;
    ::prctl(PR_SET_PDEATHSIG, SIGINT);
    const int fd = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0666);
    ::dup2(fd, 1);
    ::dup2(fd, 2);
    if (::geteuid() == 0 && (::setgid(kNobody) != 0 || ::setuid(kNobody) != 0)) ::_exit(126);
    // setuid has cleared it.
    ::prctl(PR_SET_PDEATHSIG, SIGINT);
    if (::chdir(directory_.c_str()) != 0) ::_exit(126);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  static bool Wait(pid_t pid) {
    int status = 0;
    return ::waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

  std::string directory_;
  pid_t pid_ = 0;
  int made_ = 0;
};

}  // namespace vrun::control
