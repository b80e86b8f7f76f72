// SPDX-License-Identifier: Apache-2.0
#include "gpu/amd.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>

#include "base/files.h"
#include "gpu/gpu_names.h"

namespace vrun::gpu {
namespace {

constexpr uint32_t kDrmMajor = 226;
constexpr uint64_t kAmd = 0x1002;
constexpr uint64_t kXgmi = 11;  // type of an io_link: the GPUs' own fabric

std::string Read(const std::string& path) {
  std::string text = ReadFile(path, 1 << 16).value_or("");
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

std::vector<std::string> Entries(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error))
    names.push_back(entry.path().filename());
  return names;
}

// location_id: bus, device and function of PCI.
std::string BusId(uint64_t domain, uint64_t location) {
  return fmt::format("{:08x}:{:02x}:{:02x}.{}", domain, location >> 8 & 0xff, location >> 3 & 0x1f, location & 7);
}

// Chips that the kernel names only by number.
const char* ProductOf(uint64_t device) {
  static const std::map<uint64_t, const char*> kNames = {
      {0x740c, "AMD Instinct MI250X"}, {0x7408, "AMD Instinct MI250X"}, {0x740f, "AMD Instinct MI210"},
      {0x74a0, "AMD Instinct MI300A"}, {0x74a1, "AMD Instinct MI300X"}, {0x74a5, "AMD Instinct MI325X"},
      {0x75a0, "AMD Instinct MI350X"}, {0x75a3, "AMD Instinct MI355X"}, {0x738c, "AMD Instinct MI100"}};
  const auto it = kNames.find(device);
  return it == kNames.end() ? nullptr : it->second;
}

uint64_t Memory(const std::string& node) {
  uint64_t bytes = 0;
  for (const std::string& bank : Entries(node + "/mem_banks")) {
    const std::string properties = Read(node + "/mem_banks/" + bank + "/properties");
    const uint64_t heap = KfdProperty(properties, "heap_type");
    if (heap == 1 || heap == 2) bytes += KfdProperty(properties, "size_in_bytes");  // public and private frame buffer
  }
  return bytes;
}

struct Node {
  uint64_t number = 0;  // in the topology
  v1::Gpu gpu;
  std::vector<uint64_t> linked;  // numbers
};

Node Describe(const std::string& sys, const std::string& path, uint64_t number, const std::string& properties) {
  Node out;
  out.number = number;
  const uint64_t minor = KfdProperty(properties, "drm_render_minor");
  const std::string device = sys + "/class/drm/renderD" + std::to_string(minor) + "/device";
  const std::string product = Read(device + "/product_name");
  const uint64_t device_id = KfdProperty(properties, "device_id");
  const char* known = ProductOf(device_id);
  out.gpu.set_product(known != nullptr ? known : !product.empty() ? product : fmt::format("AMD {:04x}", device_id));
  out.gpu.set_type(GpuType(out.gpu.product()));
  out.gpu.set_uuid(fmt::format("GPU-{:016x}", KfdProperty(properties, "unique_id")));
  out.gpu.set_pci_bus_id(BusId(KfdProperty(properties, "domain"), KfdProperty(properties, "location_id")));
  out.gpu.set_minor(static_cast<uint32_t>(minor));
  out.gpu.set_memory_bytes(Memory(path));
  const std::string numa = Read(device + "/numa_node");
  uint32_t node = 0;
  if (std::from_chars(numa.data(), numa.data() + numa.size(), node).ec == std::errc()) out.gpu.set_numa_node(node);
  for (const std::string& link : Entries(path + "/io_links")) {
    const std::string text = Read(path + "/io_links/" + link + "/properties");
    if (KfdProperty(text, "type") == kXgmi) out.linked.push_back(KfdProperty(text, "node_to"));
  }
  return out;
}

}  // namespace

uint64_t KfdProperty(std::string_view properties, std::string_view name) {
  for (size_t at = 0; at < properties.size();) {
    const size_t end = std::min(properties.find('\n', at), properties.size());
    const std::string_view line = properties.substr(at, end - at);
    at = end + 1;
    if (line.size() <= name.size() || !line.starts_with(name) || line[name.size()] != ' ') continue;
    uint64_t value = 0;
    std::from_chars(line.data() + name.size() + 1, line.data() + line.size(), value);
    return value;
  }
  return 0;
}

Result<Inventory> TakeAmdInventory(const std::string& sys) {
  const std::string topology = sys + "/class/kfd/kfd/topology/nodes";
  std::vector<Node> nodes;
  for (const std::string& name : Entries(topology)) {
    const std::string path = topology + "/" + name, properties = Read(path + "/properties");
    // Processors are nodes too, without compute units.
    if (KfdProperty(properties, "simd_count") == 0 || KfdProperty(properties, "vendor_id") != kAmd) continue;
    uint64_t number = 0;
    std::from_chars(name.data(), name.data() + name.size(), number);
    nodes.push_back(Describe(sys, path, number, properties));
  }
  if (nodes.empty()) return Error(Code::kNotFound, topology + ": no GPU of AMD");
  std::sort(nodes.begin(), nodes.end(),
            [](const Node& a, const Node& b) { return a.gpu.pci_bus_id() < b.gpu.pci_bus_id(); });
  if (nodes.size() > kMostGpus) nodes.resize(kMostGpus);
  Inventory inventory;
  inventory.driver = Read(sys + "/module/amdgpu/version");
  std::vector<std::vector<bool>> linked(nodes.size(), std::vector<bool>(nodes.size()));
  for (size_t i = 0; i < nodes.size(); ++i) {
    inventory.gpus.push_back(nodes[i].gpu);
    for (size_t j = 0; j < nodes.size(); ++j) {
      linked[i][j] =
          i != j && std::find(nodes[i].linked.begin(), nodes[i].linked.end(), nodes[j].number) != nodes[i].linked.end();
    }
  }
  inventory.groups = Groups(inventory.gpus, linked, {});
  return inventory;
}

Result<v1::GpuInjection> MakeAmdInjection(const Inventory& inventory, const std::vector<uint32_t>& gpus,
                                          const std::string& proc_devices) {
  // "234 kfd" among the character devices.
  uint32_t major = 0;
  for (size_t at = 0; at < proc_devices.size();) {
    const size_t end = std::min(proc_devices.find('\n', at), proc_devices.size());
    const std::string line = proc_devices.substr(at, end - at);
    at = end + 1;
    if (line.starts_with("Block")) break;
    if (line.ends_with(" kfd")) major = static_cast<uint32_t>(std::strtoul(line.c_str(), nullptr, 10));
  }
  if (major == 0) return Error(Code::kUnavailable, "amdkfd is not loaded: `modprobe amdgpu`");
  v1::GpuInjection out;
  const auto add = [&](const std::string& path, uint32_t device_major, uint32_t minor) {
    v1::GpuInjection::Device* device = out.add_devices();
    device->set_path(path);
    device->set_major(device_major);
    device->set_minor(minor);
    device->set_mode(0666);
  };
  add("kfd", major, 0);
  std::string list;
  for (const uint32_t number : gpus) {
    if (number >= inventory.gpus.size())
      return Error(Code::kInvalid, "GPU " + std::to_string(number) + ": the node has fewer");
    const uint32_t minor = inventory.gpus[number].minor();
    add("dri/renderD" + std::to_string(minor), kDrmMajor, minor);
    list += (list.empty() ? "" : ",") + std::to_string(out.devices_size() - 2);
  }
  // As seen inside, where only these GPUs are.
  for (const char* name : {"ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"}) {
    out.add_environment(std::string(name) + "=" + list);
  }
  return out;
}

}  // namespace vrun::gpu
