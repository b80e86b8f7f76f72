// SPDX-License-Identifier: Apache-2.0
#include "sandbox/filter/bpf.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "base/escape.h"

namespace vrun::sandbox {
namespace {

// The verifier's log ends with statistics and an empty line; the last line before these says what it refuses.
std::string Complaint(const std::string& log) {
  std::string last;
  size_t at = 0;
  while (at < log.size()) {
    const size_t end = std::min(log.find('\n', at), log.size());
    const std::string line = log.substr(at, end - at);
    if (!line.empty() && line.rfind("processed ", 0) != 0) last = line;
    at = end + 1;
  }
  return Escape(last);
}

}  // namespace

BpfAssembler::Label BpfAssembler::NewLabel() {
  labels_.push_back(SIZE_MAX);
  return labels_.size() - 1;
}

void BpfAssembler::Bind(Label label) { labels_[label] = code_.size(); }

void BpfAssembler::Emit(uint8_t code, uint8_t dst, uint8_t src, int16_t off, int32_t imm) {
  bpf_insn i{};
  i.code = code;
  i.dst_reg = dst & 15;
  i.src_reg = src & 15;
  i.off = off;
  i.imm = imm;
  code_.push_back(i);
}

void BpfAssembler::EmitJump(uint8_t code, uint8_t dst, uint8_t src, int32_t imm, Label label) {
  uses_.push_back({code_.size(), label});
  Emit(code, dst, src, 0, imm);
}

void BpfAssembler::LoadWord(uint8_t to, uint8_t from, int16_t offset) {
  Emit(BPF_LDX | BPF_MEM | BPF_W, to, from, offset, 0);
}
void BpfAssembler::LoadDouble(uint8_t to, uint8_t from, int16_t offset) {
  Emit(BPF_LDX | BPF_MEM | BPF_DW, to, from, offset, 0);
}
void BpfAssembler::StoreWord(uint8_t base, int16_t offset, uint8_t from) {
  Emit(BPF_STX | BPF_MEM | BPF_W, base, from, offset, 0);
}
void BpfAssembler::StoreDouble(uint8_t base, int16_t offset, uint8_t from) {
  Emit(BPF_STX | BPF_MEM | BPF_DW, base, from, offset, 0);
}
void BpfAssembler::Move(uint8_t to, uint8_t from) { Emit(BPF_ALU64 | BPF_MOV | BPF_X, to, from, 0, 0); }
void BpfAssembler::Set(uint8_t to, int32_t value) { Emit(BPF_ALU64 | BPF_MOV | BPF_K, to, 0, 0, value); }
void BpfAssembler::SetMap(uint8_t to, int map) {
  Emit(BPF_LD | BPF_DW | BPF_IMM, to, BPF_PSEUDO_MAP_FD, 0, map);
  Emit(0, 0, 0, 0, 0);
}
void BpfAssembler::Add(uint8_t to, int32_t value) { Emit(BPF_ALU64 | BPF_ADD | BPF_K, to, 0, 0, value); }
void BpfAssembler::And(uint8_t to, uint32_t mask) {
  Emit(BPF_ALU | BPF_AND | BPF_K, to, 0, 0, static_cast<int32_t>(mask));
}
void BpfAssembler::ShiftRight(uint8_t to, int bits) { Emit(BPF_ALU | BPF_RSH | BPF_K, to, 0, 0, bits); }
void BpfAssembler::FromNetwork(uint8_t to, int bits) { Emit(BPF_ALU | BPF_END | BPF_TO_BE, to, 0, 0, bits); }
void BpfAssembler::JumpIf(uint8_t reg, uint32_t value, Label label) {
  EmitJump(BPF_JMP32 | BPF_JEQ | BPF_K, reg, 0, static_cast<int32_t>(value), label);
}
void BpfAssembler::JumpUnless(uint8_t reg, uint32_t value, Label label) {
  EmitJump(BPF_JMP32 | BPF_JNE | BPF_K, reg, 0, static_cast<int32_t>(value), label);
}
void BpfAssembler::JumpIfGreater(uint8_t reg, uint32_t value, Label label) {
  EmitJump(BPF_JMP32 | BPF_JGT | BPF_K, reg, 0, static_cast<int32_t>(value), label);
}
void BpfAssembler::JumpIfLess(uint8_t reg, uint32_t value, Label label) {
  EmitJump(BPF_JMP32 | BPF_JLT | BPF_K, reg, 0, static_cast<int32_t>(value), label);
}
void BpfAssembler::JumpIfZero64(uint8_t reg, Label label) { EmitJump(BPF_JMP | BPF_JEQ | BPF_K, reg, 0, 0, label); }
void BpfAssembler::JumpIfSame64(uint8_t a, uint8_t b, Label label) {
  EmitJump(BPF_JMP | BPF_JEQ | BPF_X, a, b, 0, label);
}
void BpfAssembler::Jump(Label label) { EmitJump(BPF_JMP | BPF_JA, 0, 0, 0, label); }
void BpfAssembler::Call(int32_t function) { Emit(BPF_JMP | BPF_CALL, 0, 0, 0, function); }
void BpfAssembler::Exit() { Emit(BPF_JMP | BPF_EXIT, 0, 0, 0, 0); }

std::vector<bpf_insn> BpfAssembler::Finish() {
  for (const Use& use : uses_) {
    code_[use.instruction].off = static_cast<int16_t>(labels_[use.label] - use.instruction - 1);
  }
  uses_.clear();
  return code_;
}

Result<UniqueFd> LoadBpf(bpf_prog_type type, bpf_attach_type expected, std::span<const bpf_insn> code,
                         const char* name) {
  static constexpr char kLicense[] = "Apache-2.0";
  bpf_attr attr{};
  attr.prog_type = type;
  attr.insns = reinterpret_cast<uint64_t>(code.data());
  attr.insn_cnt = static_cast<uint32_t>(code.size());
  attr.license = reinterpret_cast<uint64_t>(kLicense);
  attr.expected_attach_type = expected;
  std::strncpy(attr.prog_name, name, sizeof attr.prog_name - 1);
  UniqueFd program(static_cast<int>(Bpf(BPF_PROG_LOAD, &attr)));
  if (program) return program;
  const Error error = ErrnoError(std::string("load the BPF program ") + name);
  if (error.error_number() != EINVAL && error.error_number() != EACCES) return error;
  // Once more, for the verifier's words: a log costs more than the load.
  std::string log(1 << 16, '\0');
  attr.log_level = 1;
  attr.log_buf = reinterpret_cast<uint64_t>(log.data());
  attr.log_size = static_cast<uint32_t>(log.size());
  static_cast<void>(Bpf(BPF_PROG_LOAD, &attr));
  log.resize(std::strlen(log.c_str()));
  return Error(error.code(), error.message() + ": " + Complaint(log));
}

Status DetachBpf(int cgroup, int program, bpf_attach_type where) {
  bpf_attr attr{};
  attr.target_fd = static_cast<uint32_t>(cgroup);
  attr.attach_bpf_fd = static_cast<uint32_t>(program);
  attr.attach_type = where;
  if (Bpf(BPF_PROG_DETACH, &attr) != 0) return ErrnoError("detach a BPF program from the control group");
  return {};
}

long Bpf(int command, bpf_attr* attr) { return ::syscall(SYS_bpf, command, attr, sizeof *attr); }

Status AttachBpf(int cgroup, int program, bpf_attach_type where) {
  bpf_attr attr{};
  attr.target_fd = static_cast<uint32_t>(cgroup);
  attr.attach_bpf_fd = static_cast<uint32_t>(program);
  attr.attach_type = where;
  attr.attach_flags = BPF_F_ALLOW_MULTI;
  if (Bpf(BPF_PROG_ATTACH, &attr) != 0) return ErrnoError("attach a BPF program to the control group");
  return {};
}

}  // namespace vrun::sandbox
