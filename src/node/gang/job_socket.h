// SPDX-License-Identifier: Apache-2.0
// The job's socket, /run/vrun/job.sock in every sandbox: how a program speaks with the system (docs/job-socket.md).
//
// A stream of lines KEY=value, in the spirit of sd_notify(3). In a value, a newline is written \n and a backslash \\.
//
//   SAVED=1     the program's state is safe. No answer.
//   MEMBERS=1   answer: MEMBERS={...}, as in /run/vrun/members.json, and again whenever that has changed
//   EXEC=POD    starts a process in a pod of the job, which is named by its number, name or node. These lines follow:
//               ARG=... for each argument, ENV=NAME=value, DIRECTORY=..., and START=1. The answer comes when the
//               process has ended: EXITED=STATUS, SIGNALED=NUMBER or PROBLEM=TEXT.
//
// Anything else is answered with PROBLEM=TEXT. Loop thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "base/io/event_loop.h"
#include "base/unique_fd.h"
#include "proto/common.pb.h"

namespace vrun::node {

class JobSocket {
 public:
  struct Events {
    std::function<void()> on_saved;
    std::function<std::string()> members;
    // Fills in the process; the pod is a name. The answer belongs to that connection.
    std::function<void(uint64_t connection, const std::string& pod, v1::ExecInPod exec)> on_exec;
  };

  JobSocket(EventLoop* loop, Events events);
  ~JobSocket();

  void Listen(UniqueFd listener);
  // To the process that on_exec asked for. The connection may be closed meanwhile.
  void Answer(uint64_t connection, const std::string& key, const std::string& value);
  // The members have changed.
  void TellMembers();
  // Reads everything that programs which have ended may have left.
  void Drain();
  void Close();

 private:
  struct Connection {
    UniqueFd socket;
    std::string buffer;
    bool has_exec = false;  // after EXEC, before START
    std::string pod;
    v1::ExecInPod exec;
    int unanswered = 0;
    bool ended = false;  // the client sends no more
    bool wants_members = false;
  };
  void Accept();
  void Read(uint64_t id);
  void Handle(uint64_t id, std::string_view line);
  void Write(uint64_t id, const std::string& key, const std::string& value);
  void Drop(uint64_t id);

  EventLoop* loop_;
  Events events_;
  UniqueFd listener_;
  std::map<uint64_t, Connection> connections_;
  uint64_t next_ = 1;
};

// A value as it is written in a line, and back.
std::string EscapeValue(std::string_view value);
std::string UnescapeValue(std::string_view text);

}  // namespace vrun::node
