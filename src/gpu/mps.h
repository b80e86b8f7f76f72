// SPDX-License-Identifier: Apache-2.0
// MPS daemons: one for each GPU and owner, with which the owner's pods share the GPU side by side.
//
// All clients of a daemon fail together (decision 32), and a daemon serves one user id at a time. So an owner is one
// user with one id on one home: people never share a daemon. Two daemons on one GPU take turns, as two programs do.
//
//   <directory>/<gpu>-<owner>/pipe/   the daemon's sockets; mounted into the owner's pods only
//                            /log/    control.log, server.log, daemon.log
//                            /mps     the owner, for people
//
// Limits: the daemon has the largest share that one of its pods has, which no client can exceed. A pod's environment
// has its own share, which a client may only lower. A user who unsets that takes from the user's own other pods alone.
//
// Crash safety: the directory exists before the daemon does. A directory that no living pod uses is taken down at the
// agent's start: the daemon is asked to quit, and what still has this pipe directory in its environment is killed.
//
// One thread at a time; all calls block: 50 ms to start, 0.1 s to stop, seconds if a daemon does not answer.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "gpu/allotment.h"

namespace vrun::gpu {

class MpsDaemons {
 public:
  struct Options {
    std::string directory;          // exists
    std::string driver_root = "/";  // where nvidia-cuda-mps-control is
  };
  explicit MpsDaemons(Options options) : options_(std::move(options)) {}

  struct Member {
    std::string pod;    // unique on the node
    std::string owner;  // unique for user, home and user id
    uint32_t gpu = 0;
    std::string gpu_uuid;
    uint32_t percentage = 100;  // of the multiprocessors
    uint64_t memory_bytes = 0;  // 0: no limit
  };

  // Starts the daemon if it does not run, and raises its limits to this member's. Not before this returns may the pod
  // start. kNotFound: the driver has no MPS. kUnavailable: it does not start.
  Result<MpsShare> Join(const Member& member);
  // Lowers the limits, or takes the daemon down with its last member. Whose pod it was has ended before.
  void Leave(const std::string& pod);
  // After a start: `alive` are the members whose pods go on. Takes down every other daemon, and starts again those that
  // have died (the clients of the pod have died with it; new ones work).
  void Recover(const std::vector<Member>& alive);

  size_t daemons() const { return daemons_.size(); }

 private:
  struct Daemon {
    std::map<std::string, Member> members;  // by pod
    uint32_t percentage = 0;                // as the daemon was told
    uint64_t memory_bytes = 0;
  };
  std::string NameOf(const Member& member) const;
  std::string Pipe(const std::string& name) const { return options_.directory + "/" + name + "/pipe"; }
  Result<std::string> Program() const;
  std::vector<std::string> Environment(const std::string& name, const std::string& gpu_uuid) const;
  Result<std::string> Ask(const std::string& name, const std::string& command, int timeout_ms) const;
  Status Start(const std::string& name, const Member& member);
  Status SetLimits(const std::string& name, Daemon* daemon, bool started);
  void TakeDown(const std::string& name);

  const Options options_;
  std::map<std::string, Daemon> daemons_;
  std::vector<pid_t> children_;  // to be reaped
};

}  // namespace vrun::gpu
