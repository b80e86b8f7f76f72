// SPDX-License-Identifier: Apache-2.0
#include "gpu/inject/cdi.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <memory>

#include "base/escape.h"
#include "base/files.h"
#include "gpu/inject/root_dir.h"
#include "gpu/inject/trusted.h"
#include "gpu/inject/yaml.h"

// Macros of <sys/sysmacros.h>, and names of the schema.
#undef major
#undef minor

namespace vrun::gpu {
namespace {

constexpr char kOurKind[] = "vrun/gpu";
// CDI 0.5 has all that we write, and old runtimes refuse newer numbers.
constexpr char kOurVersion[] = "0.5.0";

std::optional<uint32_t> Number(const std::string& text, int base = 10) {
  uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

bool IsSupported(const std::string& version) {
  const size_t dot = version.find('.');
  const std::optional<uint32_t> major = Number(version.substr(0, dot));
  if (!major || dot == std::string::npos) return false;
  const std::optional<uint32_t> minor = Number(version.substr(dot + 1, version.find('.', dot + 1) - dot - 1));
  return minor && (*major == 0 || (*major == 1 && *minor <= 1));
}

CdiEdits ReadEdits(const YamlNode& node) {
  CdiEdits edits;
  for (const YamlNode& variable : node.Items("env")) edits.environment.push_back(variable.text);
  for (const YamlNode& item : node.Items("deviceNodes")) {
    CdiEdits::Node device{.path = item.Text("path"), .host_path = item.Text("hostPath"), .number = {}};
    const std::optional<uint32_t> major = Number(item.Text("major")), minor = Number(item.Text("minor"));
    if (major && minor && *major != 0) device.number = {*major, *minor};
    // "fileMode" is a number in JSON: decimal, as Go writes it.
    if (const auto mode = Number(item.Text("fileMode")); mode && *mode <= 0777) device.mode = *mode;
    edits.nodes.push_back(std::move(device));
  }
  for (const YamlNode& item : node.Items("mounts")) {
    CdiEdits::Mount mount{.host_path = item.Text("hostPath"), .container_path = item.Text("containerPath")};
    for (const YamlNode& option : item.Items("options")) mount.read_only = mount.read_only || option.text == "ro";
    edits.mounts.push_back(std::move(mount));
  }
  for (const YamlNode& item : node.Items("hooks")) {
    CdiEdits::Hook hook{.name = item.Text("hookName"), .path = item.Text("path"), .arguments = {}};
    for (const YamlNode& argument : item.Items("args")) hook.arguments.push_back(argument.text);
    edits.hooks.push_back(std::move(hook));
  }
  return edits;
}

// With the links followed, so that all that is checked is all that is used.
Result<std::string> RealPath(const std::string& path) {
  const std::unique_ptr<char, void (*)(void*)> real(::realpath(path.c_str(), nullptr), std::free);
  if (real == nullptr) return ErrnoError("find " + Escape(path));
  return std::string(real.get());
}

Result<std::string> TrustedPath(const std::string& path) {
  VRUN_ASSIGN(std::string real, RealPath(path));
  VRUN_TRY(CheckOnlyRootWrites(real));
  return real;
}

class Importer {
 public:
  explicit Importer(std::vector<std::string>* skipped) : skipped_(skipped) {}

  void Add(const CdiEdits& edits) {
    for (const std::string& variable : edits.environment) injection_.add_environment(variable);
    for (const CdiEdits::Node& node : edits.nodes) AddNode(node);
    for (const CdiEdits::Mount& mount : edits.mounts) AddMount(mount);
    for (const CdiEdits::Hook& hook : edits.hooks) AddHook(hook);
  }
  v1::GpuInjection Take() { return std::move(injection_); }

 private:
  void Skip(const std::string& what, const std::string& why) { skipped_->push_back(Escape(what) + ": " + why); }

  // The pod's /dev and its filter get the numbers, never a mount of the node's file.
  void AddNode(const CdiEdits::Node& node) {
    constexpr std::string_view kDev = "/dev/";
    const bool plain = node.path.starts_with(kDev) && node.path.find("/../") == std::string::npos;
    if (!plain) return Skip(node.path, "no device below /dev");
    std::optional<std::pair<uint32_t, uint32_t>> number = node.number;
    struct stat st;
    const std::string& host = node.host_path.empty() ? node.path : node.host_path;
    if (!number && ::stat(host.c_str(), &st) == 0 && S_ISCHR(st.st_mode))
      number = {gnu_dev_major(st.st_rdev), gnu_dev_minor(st.st_rdev)};
    if (!number) return Skip(node.path, "no such character device on the node");
    v1::GpuInjection::Device* device = injection_.add_devices();
    device->set_path(node.path.substr(kDev.size()));
    device->set_major(number->first);
    device->set_minor(number->second);
    device->set_mode(node.mode);
  }

  void AddMount(const CdiEdits::Mount& mount) {
    if (!mount.container_path.starts_with('/')) return Skip(mount.container_path, "no absolute path");
    const Result<std::string> source = TrustedPath(mount.host_path);
    if (!source) return Skip(mount.host_path, source.error().message());
    v1::GpuInjection::Mount* out = injection_.add_mounts();
    out->set_source(*source);
    out->set_target(mount.container_path);
    out->set_read_only(true);
    // Mount points cannot be made in all roots. The libraries are in the bundle anyway.
    out->set_optional(!mount.container_path.starts_with("/run/"));
  }

  void AddHook(const CdiEdits::Hook& hook) {
    const auto is = [&](const char* name) {
      return std::find(hook.arguments.begin(), hook.arguments.end(), name) != hook.arguments.end();
    };
    if (is("create-symlinks")) return AddLinks(hook.arguments);
    if (is("update-ldcache") || is("disable-device-node-modification")) return;  // done for every pod
    Skip(hook.path, "a hook, not executed: " + Escape(hook.arguments.empty() ? hook.name : hook.arguments.back()));
  }

  // --link TARGET::PATH
  void AddLinks(const std::vector<std::string>& arguments) {
    for (size_t i = 0; i + 1 < arguments.size(); ++i) {
      if (arguments[i] != "--link" && arguments[i] != "-link") continue;
      const std::string& link = arguments[i + 1];
      const size_t colons = link.find("::");
      const std::string path = colons == std::string::npos ? "" : link.substr(colons + 2);
      if (!path.starts_with("/run/") || path.find("/../") != std::string::npos) {
        Skip(link, "a link outside of /run: the bundle has the links of the driver");
        continue;
      }
      v1::GpuInjection::Link* out = injection_.add_links();
      out->set_target(link.substr(0, colons));
      out->set_path(path);
    }
  }

  std::vector<std::string>* skipped_;
  v1::GpuInjection injection_;
};

std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      quoted += fmt::format("\\u{:04x}", c);
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

std::string DeviceNode(const std::string& name, uint32_t major, uint32_t minor) {
  return fmt::format(R"({{"path": "/dev/{}", "type": "c", "major": {}, "minor": {}, "permissions": "rw"}})", name,
                     major, minor);
}

}  // namespace

Result<CdiSpec> ParseCdi(std::string_view text) {
  if (text.size() > kMostCdiBytes) return Error(Code::kCorrupt, "too large");
  VRUN_ASSIGN(const YamlNode root, ParseYaml(text));
  CdiSpec spec{.version = root.Text("cdiVersion"), .kind = root.Text("kind"), .devices = {}, .edits = {}};
  if (spec.version.empty() || spec.kind.find('/') == std::string::npos) {
    return Error(Code::kCorrupt, "no CDI specification: cdiVersion or kind is missing");
  }
  if (!IsSupported(spec.version)) {
    return Error(Code::kUnsupported, "CDI version " + Escape(spec.version) + ": versions up to 1.1.0 are known");
  }
  if (const YamlNode* edits = root.Get("containerEdits")) spec.edits = ReadEdits(*edits);
  for (const YamlNode& device : root.Items("devices")) {
    const YamlNode* edits = device.Get("containerEdits");
    spec.devices.push_back({device.Text("name"), edits != nullptr ? ReadEdits(*edits) : CdiEdits()});
  }
  return spec;
}

CdiFiles ReadCdi(const std::vector<std::string>& directories) {
  CdiFiles files;
  for (const std::string& path : directories) {
    const UniqueFd directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    const Result<std::vector<std::string>> names =
        directory ? NamesIn(directory.get()) : Result<std::vector<std::string>>(std::vector<std::string>());
    if (!names) continue;
    for (const std::string& name : *names) {
      if (!name.ends_with(".json") && !name.ends_with(".yaml")) continue;
      const std::string file = path + "/" + name;
      const auto problem = [&](const Error& error) { files.problems.push_back(Escape(file) + ": " + error.message()); };
      const Result<std::string> trusted = TrustedPath(file);
      const Result<std::string> text = trusted ? ReadFile(*trusted, kMostCdiBytes) : trusted;
      Result<CdiSpec> spec = text ? ParseCdi(*text) : Result<CdiSpec>(text.error());
      if (spec) {
        files.specs.push_back(*std::move(spec));
      } else {
        problem(spec.error());
      }
    }
  }
  return files;
}

Result<v1::GpuInjection> CdiInjection(const std::vector<CdiSpec>& specs, const std::string& device,
                                      std::vector<std::string>* skipped) {
  const size_t equal = device.find('=');
  for (const CdiSpec& spec : specs) {
    if (equal == std::string::npos || spec.kind != device.substr(0, equal)) continue;
    for (const CdiDevice& candidate : spec.devices) {
      if (candidate.name != device.substr(equal + 1)) continue;
      Importer importer(skipped);
      importer.Add(spec.edits);
      importer.Add(candidate.edits);
      return importer.Take();
    }
  }
  return Error(Code::kNotFound, "no CDI device " + Escape(device) + ": see /etc/cdi and /var/run/cdi");
}

std::vector<std::string> CdiDriverDirectories(const std::vector<CdiSpec>& specs) {
  std::vector<std::string> directories;
  const auto look = [&](const CdiEdits& edits) {
    for (const CdiEdits::Mount& mount : edits.mounts) {
      const size_t slash = mount.host_path.rfind('/');
      if (slash == std::string::npos || !mount.host_path.substr(slash + 1).starts_with("libcuda.so.")) continue;
      const std::string directory = mount.host_path.substr(0, slash);
      if (std::find(directories.begin(), directories.end(), directory) == directories.end()) {
        directories.push_back(directory);
      }
    }
  };
  for (const CdiSpec& spec : specs) {
    look(spec.edits);
    for (const CdiDevice& device : spec.devices) look(device.edits);
  }
  return directories;
}

std::string FormatCdi(const std::vector<v1::Gpu>& gpus, const Bundle& bundle, const DeviceMajors& majors) {
  std::string devices, all;
  const auto add = [&](const std::string& name, const std::string& nodes) {
    devices += fmt::format("{}    {{\"name\": {}, \"containerEdits\": {{\"deviceNodes\": [{}]}}}}",
                           devices.empty() ? "" : ",\n", Quoted(name), nodes);
  };
  for (size_t i = 0; i < gpus.size(); ++i) {
    const std::string node = DeviceNode(fmt::format("nvidia{}", gpus[i].minor()), majors.nvidia, gpus[i].minor());
    add(std::to_string(i), node);
    if (!gpus[i].uuid().empty()) add(gpus[i].uuid(), node);
    all += (all.empty() ? "" : ", ") + node;
  }
  if (!gpus.empty()) add("all", all);
  std::string mounts;
  const auto mount = [&](const std::string& from, const std::string& to) {
    mounts += fmt::format(
        "{}      {{\"hostPath\": {}, \"containerPath\": {}, \"options\": [\"ro\", \"nosuid\", \"nodev\", \"bind\"]}}",
        mounts.empty() ? "" : ",\n", Quoted(from), Quoted(to));
  };
  mount(bundle.directory, kBundleInside);
  for (const std::string& program : bundle.programs) mount(bundle.directory + "/bin/" + program, "/usr/bin/" + program);
  return fmt::format(
      "{{\n  \"cdiVersion\": \"{}\",\n  \"kind\": \"{}\",\n  \"devices\": [\n{}\n  ],\n  \"containerEdits\": {{\n"
      "    \"env\": [\"LD_LIBRARY_PATH={}\", \"NVIDIA_VISIBLE_DEVICES=void\"],\n"
      "    \"deviceNodes\": [{}, {}],\n    \"mounts\": [\n{}\n    ]\n  }}\n}}\n",
      kOurVersion, kOurKind, devices, kLibrariesInside, DeviceNode("nvidiactl", majors.nvidia, 255),
      DeviceNode("nvidia-uvm", majors.nvidia_uvm, 0), mounts);
}

}  // namespace vrun::gpu
