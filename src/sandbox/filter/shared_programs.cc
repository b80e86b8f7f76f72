// SPDX-License-Identifier: Apache-2.0
#include "sandbox/filter/shared_programs.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <array>
#include <cstring>
#include <vector>

#include "base/hash/blake3.h"
#include "sandbox/filter/bpf.h"

namespace vrun::sandbox {
namespace {

constexpr const char* kGroup = ".programs";  // SweepCgroups leaves such names alone
// A kind of program has as many variants as there are sets of devices and of rules in use. The kernel allows 64.
constexpr size_t kMostKept = 32;

struct Kept {
  std::array<uint32_t, 64> ids{};
  size_t count = 0;
};

Result<Kept> Ask(int group, bpf_attach_type where) {
  Kept kept;
  bpf_attr attr{};
  attr.query.target_fd = static_cast<uint32_t>(group);
  attr.query.attach_type = where;
  attr.query.prog_ids = reinterpret_cast<uint64_t>(kept.ids.data());
  attr.query.prog_cnt = kept.ids.size();
  if (Bpf(BPF_PROG_QUERY, &attr) != 0) return ErrnoError("ask for the programs of a control group");
  kept.count = attr.query.prog_cnt;
  return kept;
}

UniqueFd OpenProgram(uint32_t id) {
  bpf_attr attr{};
  attr.prog_id = id;
  return UniqueFd(static_cast<int>(Bpf(BPF_PROG_GET_FD_BY_ID, &attr)));
}

std::string NameOf(int program) {
  bpf_prog_info info{};
  bpf_attr attr{};
  attr.info.bpf_fd = static_cast<uint32_t>(program);
  attr.info.info_len = sizeof info;
  attr.info.info = reinterpret_cast<uint64_t>(&info);
  return Bpf(BPF_OBJ_GET_INFO_BY_FD, &attr) == 0 ? std::string(info.name, ::strnlen(info.name, sizeof info.name)) : "";
}

Result<uint32_t> MapId(int map) {
  bpf_map_info info{};
  bpf_attr attr{};
  attr.info.bpf_fd = static_cast<uint32_t>(map);
  attr.info.info_len = sizeof info;
  attr.info.info = reinterpret_cast<uint64_t>(&info);
  if (Bpf(BPF_OBJ_GET_INFO_BY_FD, &attr) != 0) return ErrnoError("ask for the number of a BPF map");
  return info.id;
}

}  // namespace

Result<std::string> ProgramName(std::span<const bpf_insn> code) {
  std::vector<bpf_insn> same(code.begin(), code.end());
  for (bpf_insn& i : same) {
    if (i.code != (BPF_LD | BPF_DW | BPF_IMM) || i.src_reg != BPF_PSEUDO_MAP_FD) continue;
    VRUN_ASSIGN(const uint32_t id, MapId(i.imm));  // descriptors differ from process to process
    i.imm = static_cast<int32_t>(id);
  }
  const Digest digest =
      Blake3(std::string_view(reinterpret_cast<const char*>(same.data()), same.size() * sizeof(bpf_insn)));
  static_assert(BPF_OBJ_NAME_LEN == 16);
  return "v" + digest.Hex().substr(0, BPF_OBJ_NAME_LEN - 2);
}

Result<SharedPrograms> SharedPrograms::Open(int cgroup) {
  SharedPrograms shared;
  shared.parent_.Reset(::openat(cgroup, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!shared.parent_ || ::flock(shared.parent_.get(), LOCK_EX) != 0) return ErrnoError("lock the shared BPF programs");
  if (::mkdirat(shared.parent_.get(), kGroup, 0755) != 0 && errno != EEXIST) {
    return ErrnoError("make a control group for shared BPF programs");
  }
  shared.group_.Reset(::openat(shared.parent_.get(), kGroup, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!shared.group_) return ErrnoError("open the control group of shared BPF programs");
  return shared;
}

Status SharedPrograms::Attach(int cgroup, bpf_prog_type type, bpf_attach_type where, bpf_attach_type expected,
                              std::span<const bpf_insn> code) {
  VRUN_ASSIGN(const std::string name, ProgramName(code));
  VRUN_ASSIGN(const Kept kept, Ask(group_.get(), where));
  for (size_t i = 0; i < kept.count; ++i) {
    const UniqueFd program = OpenProgram(kept.ids[i]);
    if (program && NameOf(program.get()) == name) return AttachBpf(cgroup, program.get(), where);
  }
  VRUN_ASSIGN(const UniqueFd program, LoadBpf(type, expected, code, name.c_str()));
  for (size_t i = 0; i + kMostKept <= kept.count; ++i) {
    if (const UniqueFd oldest = OpenProgram(kept.ids[i])) {
      static_cast<void>(DetachBpf(group_.get(), oldest.get(), where));
    }
  }
  VRUN_TRY(AttachBpf(group_.get(), program.get(), where));
  return AttachBpf(cgroup, program.get(), where);
}

}  // namespace vrun::sandbox
