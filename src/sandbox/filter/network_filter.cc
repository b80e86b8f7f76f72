// SPDX-License-Identifier: Apache-2.0
#include "sandbox/filter/network_filter.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <memory>

#include "base/escape.h"
#include "sandbox/filter/bpf.h"

namespace vrun::sandbox {
namespace {

// struct bpf_sock_addr and struct bpf_sock.
constexpr int16_t kAddress4 = 4, kAddress6 = 8, kPort = 24, kProtocol = 36;
constexpr int16_t kSocketProtocol = 12, kSocketPort = 44;

struct PortKey {
  uint64_t network;  // the cookie of the network namespace
  uint32_t port, protocol;
};
struct PortOwner {
  uint64_t job, pod;
};
constexpr char kTableName[] = "vrun_ports";
constexpr uint32_t kMostPorts = 1 << 16;

// Registers that calls keep.
constexpr uint8_t kContext = 6, kIp = 7, kPortNumber = 8;

uint32_t Word(const Destination& d, int index) {
  uint32_t word;
  std::memcpy(&word, d.address.data() + 4 * index, sizeof word);
  return ntohl(word);
}

class Writer {
 public:
  Writer(const NetworkPolicy& policy, const std::vector<Destination>& local, int table)
      : policy_(policy), local_addresses_(local), table_(table) {
    refused_ = a_.NewLabel();
    allowed_ = a_.NewLabel();
    local_ = a_.NewLabel();
  }

  std::vector<bpf_insn> Connect(bool v6) {
    const auto v4 = a_.NewLabel();
    a_.Move(kContext, 1);
    a_.LoadWord(kPortNumber, kContext, kPort);
    a_.FromNetwork(kPortNumber, 16);
    if (v6) {
      const auto plain = a_.NewLabel();  // not ::ffff:a.b.c.d
      JumpUnlessWord(0, 0, plain);
      JumpUnlessWord(1, 0, plain);
      JumpUnlessWord(2, 0xffff, plain);
      LoadWord(kIp, 3);
      a_.Jump(v4);
      a_.Bind(plain);
      Match(true);
    } else {
      a_.LoadWord(kIp, kContext, kAddress4);
      a_.FromNetwork(kIp, 32);
    }
    a_.Bind(v4);
    Match(false);
    a_.Bind(local_);
    for (const uint16_t port : policy_.refused_local_ports) a_.JumpIf(kPortNumber, port, refused_);
    if (table_ >= 0) AskTable();
    a_.Bind(allowed_);
    a_.Return(1);
    a_.Bind(refused_);
    a_.Return(0);
    return a_.Finish();
  }

 private:
  void LoadWord(uint8_t to, int index) {
    a_.LoadWord(to, kContext, static_cast<int16_t>(kAddress6 + 4 * index));
    a_.FromNetwork(to, 32);
  }
  void JumpUnlessWord(int index, uint32_t value, BpfAssembler::Label label) {
    LoadWord(2, index);
    a_.JumpUnless(2, value, label);
  }

  void JumpIfMatches(const Destination& d, BpfAssembler::Label there) {
    const auto next = a_.NewLabel();
    for (int word = 0; word < (d.v6 ? 4 : 1); ++word) {
      const uint32_t bits = d.bits <= static_cast<uint32_t>(word) * 32 ? 0 : d.bits - static_cast<uint32_t>(word) * 32;
      if (bits == 0) break;
      const uint32_t mask = bits >= 32 ? UINT32_MAX : ~(UINT32_MAX >> bits);
      d.v6 ? LoadWord(2, word) : a_.Move(2, kIp);
      a_.And(2, mask);
      a_.JumpUnless(2, Word(d, word) & mask, next);
    }
    if (d.port != 0) a_.JumpUnless(kPortNumber, d.port, next);
    a_.Jump(there);
    a_.Bind(next);
  }

  void Match(bool v6) {
    for (const Destination& d : policy_.refused) {
      if (d.v6 == v6) JumpIfMatches(d, refused_);
    }
    for (const Destination& d : local_addresses_) {
      if (d.v6 == v6) JumpIfMatches(d, local_);
    }
    a_.Jump(allowed_);
  }

  // A port that no sandbox has bound is the host's.
  void AskTable() {
    a_.Move(1, kContext);
    a_.Call(BPF_FUNC_get_netns_cookie);
    a_.StoreDouble(10, -16, 0);
    a_.StoreWord(10, -8, kPortNumber);
    a_.LoadWord(2, kContext, kProtocol);
    a_.StoreWord(10, -4, 2);
    a_.SetMap(1, table_);
    a_.Move(2, 10);
    a_.Add(2, -16);
    a_.Call(BPF_FUNC_map_lookup_elem);
    a_.JumpIfZero64(0, allowed_);
    a_.LoadDouble(3, 0, 0);
    a_.SetDouble(4, policy_.job);
    a_.JumpIfSame64(3, 4, allowed_);
    a_.Jump(refused_);
  }

  BpfAssembler a_;
  BpfAssembler::Label refused_, allowed_, local_;
  const NetworkPolicy& policy_;
  const std::vector<Destination>& local_addresses_;
  int table_;
};

// Notes the owner of a port that was bound.
std::vector<bpf_insn> Bound(int table, const PortOwner& owner) {
  BpfAssembler a;
  a.Move(kContext, 1);
  a.LoadWord(kPortNumber, kContext, kSocketPort);
  a.LoadWord(kIp, kContext, kSocketProtocol);
  a.Call(BPF_FUNC_get_netns_cookie);
  a.StoreDouble(10, -16, 0);
  a.StoreWord(10, -8, kPortNumber);
  a.StoreWord(10, -4, kIp);
  a.SetDouble(2, owner.job);
  a.StoreDouble(10, -32, 2);
  a.SetDouble(2, owner.pod);
  a.StoreDouble(10, -24, 2);
  a.SetMap(1, table);
  a.Move(2, 10);
  a.Add(2, -16);
  a.Move(3, 10);
  a.Add(3, -32);
  a.Set(4, BPF_ANY);
  a.Call(BPF_FUNC_map_update_elem);
  a.Return(1);
  return a.Finish();
}

long Bpf(int command, bpf_attr* attr) { return ::syscall(SYS_bpf, command, attr, sizeof *attr); }

UniqueFd FindTable() {
  bpf_attr attr{};
  while (Bpf(BPF_MAP_GET_NEXT_ID, &attr) == 0) {
    bpf_attr open{};
    open.map_id = attr.next_id;
    UniqueFd map(static_cast<int>(Bpf(BPF_MAP_GET_FD_BY_ID, &open)));
    bpf_map_info info{};
    bpf_attr ask{};
    ask.info.bpf_fd = static_cast<uint32_t>(map.get());
    ask.info.info_len = sizeof info;
    ask.info.info = reinterpret_cast<uint64_t>(&info);
    if (map && Bpf(BPF_OBJ_GET_INFO_BY_FD, &ask) == 0 && std::strcmp(info.name, kTableName) == 0 &&
        info.key_size == sizeof(PortKey) && info.value_size == sizeof(PortOwner)) {
      return map;
    }
    attr.start_id = attr.next_id;
  }
  return {};
}

// Programs that allow everything, on the group above all sandboxes, for as long as that exists. They keep the table,
// and the hooks patched into the kernel's code: to do that for each start costs milliseconds.
Status KeepHooks(int parent, int table) {
  struct Hook {
    bpf_prog_type type;
    bpf_attach_type where;
  };
  constexpr Hook kHooks[] = {{BPF_PROG_TYPE_CGROUP_SOCK_ADDR, BPF_CGROUP_INET4_CONNECT},
                             {BPF_PROG_TYPE_CGROUP_SOCK_ADDR, BPF_CGROUP_INET6_CONNECT},
                             {BPF_PROG_TYPE_CGROUP_SOCK_ADDR, BPF_CGROUP_UDP4_SENDMSG},
                             {BPF_PROG_TYPE_CGROUP_SOCK_ADDR, BPF_CGROUP_UDP6_SENDMSG},
                             {BPF_PROG_TYPE_CGROUP_SOCK, BPF_CGROUP_INET4_POST_BIND},
                             {BPF_PROG_TYPE_CGROUP_SOCK, BPF_CGROUP_INET6_POST_BIND},
                             {BPF_PROG_TYPE_CGROUP_DEVICE, BPF_CGROUP_DEVICE}};
  BpfAssembler a;
  a.SetMap(1, table);
  a.Return(1);
  const std::vector<bpf_insn> code = a.Finish();
  for (const Hook& hook : kHooks) {
    const bpf_attach_type expected = hook.where == BPF_CGROUP_DEVICE ? static_cast<bpf_attach_type>(0) : hook.where;
    VRUN_ASSIGN(const UniqueFd program, LoadBpf(hook.type, expected, code, "vrun_keep"));
    VRUN_TRY(AttachBpf(parent, program.get(), hook.where));
  }
  return {};
}

Destination Make(const char* address, uint32_t bits) { return *ParseDestination(address, bits, 0); }

std::vector<Destination> MetadataServices() {
  // Link-local of both versions: the addresses of clouds' metadata, and what else is only for the node.
  return {Make("169.254.0.0", 16), Make("fe80::", 10), Make("fd00:ec2::254", 128), Make("fd20:ce::254", 128)};
}

}  // namespace

Result<Destination> ParseDestination(const std::string& address, uint32_t bits, uint16_t port) {
  Destination d;
  d.port = port;
  d.v6 = address.find(':') != std::string::npos;
  const uint32_t all = d.v6 ? 128 : 32;
  d.bits = bits == 0 ? all : bits;
  if (d.bits > all || ::inet_pton(d.v6 ? AF_INET6 : AF_INET, address.c_str(), d.address.data()) != 1) {
    return Error(Code::kInvalid, "address " + Escape(address) + "/" + std::to_string(bits) + ": not numeric");
  }
  return d;
}

std::vector<Destination> LocalAddresses() {
  // Unspecified addresses mean the host itself.
  std::vector<Destination> local = {Make("127.0.0.0", 8), Make("0.0.0.0", 8), Make("::1", 128), Make("::", 128)};
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return local;
  for (const ifaddrs* i = all; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr) continue;
    Destination d;
    if (i->ifa_addr->sa_family == AF_INET) {
      std::memcpy(d.address.data(), &reinterpret_cast<const sockaddr_in*>(i->ifa_addr)->sin_addr, 4);
      if (d.address[0] == 127) continue;
    } else if (i->ifa_addr->sa_family == AF_INET6) {
      std::memcpy(d.address.data(), &reinterpret_cast<const sockaddr_in6*>(i->ifa_addr)->sin6_addr, 16);
      d.v6 = true;
      d.bits = 128;
    } else {
      continue;
    }
    local.push_back(d);
  }
  ::freeifaddrs(all);
  return local;
}

Status NetworkFilter::OpenTable(int cgroup) {
  // Locked, so that two sandboxes that start at once do not make two tables.
  const UniqueFd parent(::openat(cgroup, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!parent || ::flock(parent.get(), LOCK_EX) != 0) return ErrnoError("lock the table of ports");
  table_ = FindTable();
  if (table_) return {};
  bpf_attr attr{};
  attr.map_type = BPF_MAP_TYPE_HASH;
  attr.key_size = sizeof(PortKey);
  attr.value_size = sizeof(PortOwner);
  attr.max_entries = kMostPorts;
  attr.map_flags = BPF_F_NO_PREALLOC;
  std::strncpy(attr.map_name, kTableName, sizeof attr.map_name - 1);
  table_.Reset(static_cast<int>(Bpf(BPF_MAP_CREATE, &attr)));
  if (!table_) return ErrnoError("make the table of ports");
  return KeepHooks(parent.get(), table_.get());
}

Status NetworkFilter::Attach(int cgroup, const NetworkPolicy& policy, uint64_t pod) {
  pod_ = pod;
  if (policy.job != 0) VRUN_TRY(OpenTable(cgroup));
  NetworkPolicy all = policy;
  for (const Destination& d : MetadataServices()) all.refused.push_back(d);
  // In a network of its own these are the sandbox's own.
  const bool shared = policy.job != 0 || !policy.refused_local_ports.empty();
  const std::vector<Destination> local = shared ? LocalAddresses() : std::vector<Destination>();
  const auto add = [&](bpf_prog_type type, bpf_attach_type where, const std::vector<bpf_insn>& code,
                       const char* name) -> Status {
    VRUN_ASSIGN(const UniqueFd program, LoadBpf(type, where, code, name));
    return AttachBpf(cgroup, program.get(), where);
  };
  const std::vector<bpf_insn> v4 = Writer(all, local, table_.get()).Connect(false);
  const std::vector<bpf_insn> v6 = Writer(all, local, table_.get()).Connect(true);
  VRUN_TRY(add(BPF_PROG_TYPE_CGROUP_SOCK_ADDR, BPF_CGROUP_INET4_CONNECT, v4, "vrun_connect4"));
  VRUN_TRY(add(BPF_PROG_TYPE_CGROUP_SOCK_ADDR, BPF_CGROUP_INET6_CONNECT, v6, "vrun_connect6"));
  VRUN_TRY(add(BPF_PROG_TYPE_CGROUP_SOCK_ADDR, BPF_CGROUP_UDP4_SENDMSG, v4, "vrun_send4"));
  VRUN_TRY(add(BPF_PROG_TYPE_CGROUP_SOCK_ADDR, BPF_CGROUP_UDP6_SENDMSG, v6, "vrun_send6"));
  if (!table_) return {};
  const std::vector<bpf_insn> bound = Bound(table_.get(), {policy.job, pod});
  VRUN_TRY(add(BPF_PROG_TYPE_CGROUP_SOCK, BPF_CGROUP_INET4_POST_BIND, bound, "vrun_bound4"));
  return add(BPF_PROG_TYPE_CGROUP_SOCK, BPF_CGROUP_INET6_POST_BIND, bound, "vrun_bound6");
}

void NetworkFilter::Forget() {
  if (!table_) return;
  PortKey key{}, next{};
  PortOwner owner{};
  const auto ask = [&](int command, const PortKey* with, void* answer) {
    bpf_attr attr{};
    attr.map_fd = static_cast<uint32_t>(table_.get());
    attr.key = reinterpret_cast<uint64_t>(with);
    attr.value = reinterpret_cast<uint64_t>(answer);
    return Bpf(command, &attr);
  };
  bool more = ask(BPF_MAP_GET_NEXT_KEY, nullptr, &next) == 0;
  while (more) {
    key = next;
    more = ask(BPF_MAP_GET_NEXT_KEY, &key, &next) == 0;  // before the key goes
    if (ask(BPF_MAP_LOOKUP_ELEM, &key, &owner) == 0 && owner.pod == pod_) ask(BPF_MAP_DELETE_ELEM, &key, nullptr);
  }
  table_.Reset();
}

}  // namespace vrun::sandbox
