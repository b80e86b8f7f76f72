// SPDX-License-Identifier: Apache-2.0
// All code that runs between the clone and the exec of the command, and the init that stays as pid 1.
//
// Only inside.cc runs in a copy of another process's memory. It makes system calls and reads the plan; it allocates
// nothing and takes no lock. Everything that can be prepared is prepared outside.
#pragma once

#include <linux/filter.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace vrun::sandbox {

// The steps of a start. The first part builds the sandbox (init), the second becomes the user (command).
enum class Stage : uint32_t {
  kNone = 0,
  kEnterGroups,  // control groups of version 1
  kIdentity,     // become root of the user namespace
  kEnterRoot,    // the overlay over /
  kAttachMounts,
  kMountProc,
  kMaskProc,
  kMountPts,
  kMountMqueue,
  kPivotRoot,
  kHostname,
  kCgroupNamespace,
  kNetwork,
  kLockMounts,  // the inner user and mount namespace
  kSupervise,   // signalfd, parent-death signal
  kTerminal,
  kFork,
  kStreams,
  kSession,
  kLimits,
  kGroups,
  kGid,
  kCapabilities,
  kFilter,  // of system calls
  kUid,
  kDirectory,
  kNotFound,       // no candidate exists
  kNoInterpreter,  // `detail` names the interpreter of a script, "" for a program's loader
  kNotExecutable,
  kExec,  // any other reason
};

// Written to the start pipe by the process that failed. End of file without a message: the command was executed.
struct StartMessage {
  Stage stage;
  int32_t error;
  char detail[248];
};

// Packets of the control socket.
enum class ControlType : uint32_t {
  kMapped = 1,         // to init: the user maps have been written
  kSignal = 2,         // to init: send signal `value` to the command's process group
  kSignalCommand = 5,  // to init: to the command's first process only
  kSignalAll = 6,      // to init: to every process
  kSignalOthers = 7,   // to init: to every process except the command's first
  kPty = 3,            // from init, with the pty's master as descriptor
  kStopped = 8,        // from init: the command was stopped by signal `value`
  kEnded = 4,          // from init, last message: value is the command's wait status; no other process is left inside
  kPrepared = 9,       // from init (`gate`): everything but the command is there
  kGo = 10,            // to init, the answer to it
  kRankEnded = 11,     // from init, if the command has several processes: number `id` has ended, with status `value`
  kEndWhenEmpty = 12,  // to init (no command): end as soon as no process is left
  kExec = 13,          // to init: start the process `id`; descriptors: an ExecBlock, its stdout, stderr and start pipe
  kFiltered = 15,      // to init: its control group has its filters, so commands may start
  kExecEnded = 14,     // from init: that process has ended, with status `value`
  kConnect = 16,       // to init: connect to a port of localhost, `value` is the port, plus kConnectVersion6
  kConnected = 17,     // from init, the answer: `value` is an errno, or 0 and the socket, which may still be connecting
};
struct ControlMessage {
  ControlType type;
  int32_t value;
  int32_t id;
};

// In kConnect: the port of ::1, not of 127.0.0.1.
inline constexpr int32_t kConnectVersion6 = 1 << 16;

// A command in a memory file, for kExec. A list is the index of its first pointer in `pointers`; each pointer is an
// offset from the start of the file, and 0 ends a list. The new process turns them into addresses.
struct ExecBlock {
  uint32_t candidates, argv, shell_argv, environment;  // as in InsidePlan
  uint32_t directory;                                  // 0: the command's
  uint32_t pointer_count;
  char* pointers[];
};
inline constexpr size_t kExecDescriptors = 4;

struct InsidePlan {
  struct Attachment {
    int mount, target;
  };
  struct ProcAttachment {
    int mount;
    const char* path;  // relative to /proc
  };
  struct Move {
    int from, to;
  };
  struct Limit {
    int resource;
    rlimit value;
  };
  struct Rank {
    int streams[3];
    char* const* environment;
  };

  int control;           // SOCK_SEQPACKET
  int supervisor_end;    // its other end; the child closes it at once
  int start;             // O_CLOEXEC pipe
  int root;              // the overlay
  const int* entrances;  // of version 1 control groups
  size_t entrance_count;
  const Attachment* attachments;
  size_t attachment_count;
  const ProcAttachment* proc_attachments;  // left out where there is no such file
  size_t proc_attachment_count;
  bool mask_driver;  // of GPUs, in /proc
  int dev, proc_target, pts_target, mqueue_target;
  const char* inner_ids;  // the text of the inner user namespace's maps
  bool own_network;       // the network namespace is the sandbox's: bring its loopback up
  const char* hostname;   // null: keep the current one

  int streams[3];  // ignored with a terminal
  Move* moves;     // further descriptors of the command, with numbers above 2
  size_t move_count;
  bool terminal;
  winsize window;

  const char* directory;
  uid_t uid;
  gid_t gid;
  const gid_t* groups;
  size_t group_count;
  uint64_t capabilities;  // the bounding set, a bit mask
  bool no_new_privileges;
  const sock_fprog* filter;
  mode_t umask;
  int nice;
  const unsigned long* cpus;  // bit mask of the allowed processors; empty: unchanged
  size_t cpus_size;           // bytes
  const Limit* limits;
  size_t limit_count;
  const char* const* candidates;  // paths to try, null-terminated
  char* const* argv;
  char** shell_argv;  // {"/bin/sh", (candidate), argv[1], ...}: for a script without #!
  char* const* environment;

  const Rank* more_ranks;  // further processes of the command, with the same arguments
  size_t more_rank_count;
  bool idle;  // no process at all
  bool gate;  // wait for kGo before the first one
};

[[noreturn]] void RunInside(const InsidePlan& plan);

}  // namespace vrun::sandbox
