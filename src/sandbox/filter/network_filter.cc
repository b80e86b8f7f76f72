// SPDX-License-Identifier: Apache-2.0
#include "sandbox/filter/network_filter.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cstring>
#include <memory>

#include "base/escape.h"
#include "sandbox/filter/bpf.h"
#include "sandbox/filter/shared_programs.h"

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
constexpr uint32_t kMostPorts = 1 << 16;

// What the programs of all sandboxes share.
struct Maps {
  int ports = -1;   // PortKey to PortOwner; -1: ports have no owners
  int owners = -1;  // storage of each sandbox's group: the PortOwner that it is
};

// Registers that calls keep.
constexpr uint8_t kContext = 6, kIp = 7, kPortNumber = 8, kOwner = 9;

// The PortOwner of the sandbox, into a register.
void LoadOwner(BpfAssembler* a, const Maps& maps) {
  a->SetMap(1, maps.owners);
  a->Set(2, 0);
  a->Call(BPF_FUNC_get_local_storage);
  a->Move(kOwner, 0);
}

uint32_t Word(const Destination& d, int index) {
  uint32_t word;
  std::memcpy(&word, d.address.data() + 4 * index, sizeof word);
  return ntohl(word);
}

class Writer {
 public:
  Writer(const NetworkPolicy& policy, const std::vector<Destination>& local, const Maps& maps)
      : policy_(policy), local_addresses_(local), maps_(maps) {
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
    if (maps_.ports >= 0) AskTable();
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
    LoadOwner(&a_, maps_);
    a_.SetMap(1, maps_.ports);
    a_.Move(2, 10);
    a_.Add(2, -16);
    a_.Call(BPF_FUNC_map_lookup_elem);
    a_.JumpIfZero64(0, allowed_);
    a_.LoadDouble(3, 0, 0);
    a_.LoadDouble(4, kOwner, 0);
    a_.JumpIfSame64(3, 4, allowed_);
    a_.Jump(refused_);
  }

  BpfAssembler a_;
  BpfAssembler::Label refused_, allowed_, local_;
  const NetworkPolicy& policy_;
  const std::vector<Destination>& local_addresses_;
  Maps maps_;
};

// Notes the owner of a port that was bound.
std::vector<bpf_insn> Bound(const Maps& maps) {
  BpfAssembler a;
  a.Move(kContext, 1);
  a.LoadWord(kPortNumber, kContext, kSocketPort);
  a.LoadWord(kIp, kContext, kSocketProtocol);
  a.Call(BPF_FUNC_get_netns_cookie);
  a.StoreDouble(10, -16, 0);
  a.StoreWord(10, -8, kPortNumber);
  a.StoreWord(10, -4, kIp);
  LoadOwner(&a, maps);
  a.SetMap(1, maps.ports);
  a.Move(2, 10);
  a.Add(2, -16);
  a.Move(3, kOwner);
  a.Set(4, BPF_ANY);
  a.Call(BPF_FUNC_map_update_elem);
  a.Return(1);
  return a.Finish();
}

struct MapKind {
  const char* name;
  bpf_map_type type;
  uint32_t key_size, value_size, most, flags;
};
constexpr MapKind kPorts = {"vrun_ports",      BPF_MAP_TYPE_HASH, sizeof(PortKey),
                            sizeof(PortOwner), kMostPorts,        BPF_F_NO_PREALLOC};
constexpr MapKind kOwners = {"vrun_owners", BPF_MAP_TYPE_CGROUP_STORAGE, sizeof(uint64_t), sizeof(PortOwner), 0, 0};

UniqueFd FindMap(const MapKind& kind) {
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
    if (map && Bpf(BPF_OBJ_GET_INFO_BY_FD, &ask) == 0 && std::strcmp(info.name, kind.name) == 0 &&
        info.type == kind.type && info.key_size == kind.key_size && info.value_size == kind.value_size) {
      return map;
    }
    attr.start_id = attr.next_id;
  }
  return {};
}

// That of this host. It lives as long as a program that uses it.
Result<UniqueFd> OpenMap(const MapKind& kind) {
  if (UniqueFd map = FindMap(kind)) return map;
  bpf_attr attr{};
  attr.map_type = kind.type;
  attr.key_size = kind.key_size;
  attr.value_size = kind.value_size;
  attr.max_entries = kind.most;
  attr.map_flags = kind.flags;
  std::strncpy(attr.map_name, kind.name, sizeof attr.map_name - 1);
  UniqueFd map(static_cast<int>(Bpf(BPF_MAP_CREATE, &attr)));
  if (!map) return ErrnoError(std::string("make the BPF map ") + kind.name);
  return map;
}

// `cgroup` has programs that use the map.
Status SetOwner(int owners, int cgroup, const PortOwner& owner) {
  struct stat st;
  if (::fstat(cgroup, &st) != 0) return ErrnoError("look at the control group");
  const uint64_t id = st.st_ino;
  bpf_attr attr{};
  attr.map_fd = static_cast<uint32_t>(owners);
  attr.key = reinterpret_cast<uint64_t>(&id);
  attr.value = reinterpret_cast<uint64_t>(&owner);
  if (Bpf(BPF_MAP_UPDATE_ELEM, &attr) != 0) return ErrnoError("name the owner of ports");
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

Status NetworkFilter::Attach(int cgroup, const NetworkPolicy& policy, uint64_t pod) {
  pod_ = pod;
  VRUN_ASSIGN(SharedPrograms programs, SharedPrograms::Open(cgroup));
  UniqueFd owners;
  if (policy.job != 0) {
    VRUN_ASSIGN(table_, OpenMap(kPorts));
    VRUN_ASSIGN(owners, OpenMap(kOwners));
  }
  const Maps maps{table_.get(), owners.get()};
  NetworkPolicy all = policy;
  for (const Destination& d : MetadataServices()) all.refused.push_back(d);
  // In a network of its own these are the sandbox's own.
  const bool shared = policy.job != 0 || !policy.refused_local_ports.empty();
  const std::vector<Destination> local = shared ? LocalAddresses() : std::vector<Destination>();
  const auto add = [&](bpf_prog_type type, bpf_attach_type where, const std::vector<bpf_insn>& code) {
    return programs.Attach(cgroup, type, where, where, code);
  };
  const std::vector<bpf_insn> v4 = Writer(all, local, maps).Connect(false);
  const std::vector<bpf_insn> v6 = Writer(all, local, maps).Connect(true);
  VRUN_TRY(add(BPF_PROG_TYPE_CGROUP_SOCK_ADDR, BPF_CGROUP_INET4_CONNECT, v4));
  VRUN_TRY(add(BPF_PROG_TYPE_CGROUP_SOCK_ADDR, BPF_CGROUP_INET6_CONNECT, v6));
  VRUN_TRY(add(BPF_PROG_TYPE_CGROUP_SOCK_ADDR, BPF_CGROUP_UDP4_SENDMSG, v4));
  VRUN_TRY(add(BPF_PROG_TYPE_CGROUP_SOCK_ADDR, BPF_CGROUP_UDP6_SENDMSG, v6));
  if (!table_) return {};
  const std::vector<bpf_insn> bound = Bound(maps);
  VRUN_TRY(add(BPF_PROG_TYPE_CGROUP_SOCK, BPF_CGROUP_INET4_POST_BIND, bound));
  VRUN_TRY(add(BPF_PROG_TYPE_CGROUP_SOCK, BPF_CGROUP_INET6_POST_BIND, bound));
  return SetOwner(owners.get(), cgroup, {policy.job, pod});
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
