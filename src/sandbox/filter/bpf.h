// SPDX-License-Identifier: Apache-2.0
// Programs for the kernel's BPF machine that decide for a control group, assembled by hand: each is a few dozen
// instructions made from a list of rules, which needs neither a compiler nor libbpf.
#pragma once

#include <linux/bpf.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace vrun::sandbox {

// Registers as the kernel's calling convention has them: 0 result, 1 to 5 arguments, 6 to 9 kept by calls, 10 frame.
class BpfAssembler {
 public:
  using Label = size_t;

  Label NewLabel();
  void Bind(Label label);  // here

  void LoadWord(uint8_t to, uint8_t from, int16_t offset);       // 32 bits from memory
  void StoreWord(uint8_t base, int16_t offset, uint8_t from);    // 32 bits
  void StoreDouble(uint8_t base, int16_t offset, uint8_t from);  // 64 bits
  void LoadDouble(uint8_t to, uint8_t from, int16_t offset);     // 64 bits from memory
  void Move(uint8_t to, uint8_t from);
  void Set(uint8_t to, int32_t value);
  void SetMap(uint8_t to, int map);
  void Add(uint8_t to, int32_t value);
  void And(uint8_t to, uint32_t mask);                    // of the low 32 bits
  void ShiftRight(uint8_t to, int bits);                  // of the low 32 bits
  void FromNetwork(uint8_t to, int bits);                 // 16 or 32
  void JumpIf(uint8_t reg, uint32_t value, Label label);  // low 32 bits equal
  void JumpUnless(uint8_t reg, uint32_t value, Label label);
  void JumpIfGreater(uint8_t reg, uint32_t value, Label label);  // unsigned, low 32 bits
  void JumpIfLess(uint8_t reg, uint32_t value, Label label);
  void JumpIfZero64(uint8_t reg, Label label);
  void JumpIfSame64(uint8_t a, uint8_t b, Label label);
  void Jump(Label label);
  void Call(int32_t function);
  void Exit();
  void Return(int32_t value) { Set(0, value), Exit(); }

  // Resolves the labels.
  std::vector<bpf_insn> Finish();

 private:
  struct Use {
    size_t instruction;
    Label label;
  };
  void Emit(uint8_t code, uint8_t dst, uint8_t src, int16_t off, int32_t imm);
  void EmitJump(uint8_t code, uint8_t dst, uint8_t src, int32_t imm, Label label);

  std::vector<bpf_insn> code_;
  std::vector<size_t> labels_;
  std::vector<Use> uses_;
};

// Needs CAP_BPF or CAP_SYS_ADMIN of the host. `expected`: 0 unless the type of program wants to know where it will be
// attached. An error has the verifier's last line.
Result<UniqueFd> LoadBpf(bpf_prog_type type, bpf_attach_type expected, std::span<const bpf_insn> code,
                         const char* name);
// In addition to the programs of the groups above; all of them must allow. The program lives as long as the group.
Status AttachBpf(int cgroup, int program, bpf_attach_type where);
Status DetachBpf(int cgroup, int program, bpf_attach_type where);

// bpf(2); errno is set.
long Bpf(int command, bpf_attr* attr);

}  // namespace vrun::sandbox
