// SPDX-License-Identifier: Apache-2.0
// BPF programs that the sandboxes of a host share. The verifier needs a quarter of a millisecond for each, and patches
// the kernel's code for the first one of a kind; most sandboxes want the same seven.
//
// They are kept attached to an empty group beside those of the sandboxes, MOUNT/vrun/.programs, and are found there by
// their names, which are digests of what they do.
#pragma once

#include <linux/bpf.h>

#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace vrun::sandbox {

// While it exists, no other process of this host opens one. Single-threaded; for the moment of one start.
class SharedPrograms {
 public:
  // `cgroup`: the version 2 group of one sandbox.
  static Result<SharedPrograms> Open(int cgroup);

  // Makes a program decide for `cgroup`: the kept one that does the same, or else a new one, which is kept. Of a
  // program's state nothing may belong to one sandbox but what is in storage of its group. `expected` as for LoadBpf.
  Status Attach(int cgroup, bpf_prog_type type, bpf_attach_type where, bpf_attach_type expected,
                std::span<const bpf_insn> code);

 private:
  UniqueFd parent_;  // locked
  UniqueFd group_;
};

// What a program with this code is called: the same for the same instructions and maps. Fails if one of the descriptors
// in it is no map.
Result<std::string> ProgramName(std::span<const bpf_insn> code);

}  // namespace vrun::sandbox
