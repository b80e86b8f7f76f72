// SPDX-License-Identifier: Apache-2.0
#include "sandbox/filter/device_filter.h"

#include "base/files.h"
#include "sandbox/filter/bpf.h"
#include "sandbox/filter/shared_programs.h"

namespace vrun::sandbox {
namespace {

// Offsets in struct bpf_cgroup_dev_ctx.
constexpr int16_t kAccessType = 0, kMajor = 4, kMinor = 8;

std::vector<bpf_insn> Program(const std::vector<DeviceRule>& allowed) {
  BpfAssembler a;
  const auto refused = a.NewLabel();
  a.LoadWord(2, 1, kAccessType);  // type in the low 16 bits, access above
  a.LoadWord(3, 1, kMajor);
  a.LoadWord(4, 1, kMinor);
  a.Move(5, 2);
  a.And(2, 0xffff);
  a.JumpUnless(2, BPF_DEVCG_DEV_CHAR, refused);
  a.ShiftRight(5, 16);
  a.And(5, BPF_DEVCG_ACC_MKNOD);
  a.JumpUnless(5, 0, refused);
  for (const DeviceRule& rule : allowed) {
    const auto next = a.NewLabel();
    a.JumpUnless(3, rule.major, next);
    if (rule.minor) a.JumpUnless(4, *rule.minor, next);
    a.Return(1);
    a.Bind(next);
  }
  a.Bind(refused);
  a.Return(0);
  return a.Finish();
}

}  // namespace

std::vector<DeviceRule> HarmlessDevices() {
  std::vector<DeviceRule> rules = {{1, 3}, {1, 5}, {1, 7}, {1, 8}, {1, 9}, {5, 0}, {5, 2}};
  for (uint32_t major = 136; major < 144; ++major) rules.push_back({major, std::nullopt});  // UNIX98_PTY_SLAVE_MAJOR
  return rules;
}

Status FilterDevices(int cgroup, const std::vector<DeviceRule>& allowed) {
  VRUN_ASSIGN(SharedPrograms programs, SharedPrograms::Open(cgroup));
  return programs.Attach(cgroup, BPF_PROG_TYPE_CGROUP_DEVICE, BPF_CGROUP_DEVICE, static_cast<bpf_attach_type>(0),
                         Program(allowed));
}

Status FilterDevicesV1(const std::string& path, const std::vector<DeviceRule>& allowed) {
  VRUN_TRY(WriteKernelFile(path + "/devices.deny", "a"));
  for (const DeviceRule& rule : allowed) {
    const std::string minor = rule.minor ? std::to_string(*rule.minor) : "*";
    VRUN_TRY(WriteKernelFile(path + "/devices.allow", "c " + std::to_string(rule.major) + ":" + minor + " rw"));
  }
  return {};
}

}  // namespace vrun::sandbox
