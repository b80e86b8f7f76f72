// SPDX-License-Identifier: Apache-2.0
#include "node/gpus/node_gpus.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <future>

#include "base/clock.h"
#include "base/escape.h"
#include "base/files.h"
#include "base/log.h"
#include "gpu/inject/cdi.h"
#include "gpu/programs.h"

namespace vrun::node {
namespace {

constexpr int64_t kSettleMicros = 10'000'000;
constexpr int64_t kRetryMicros = 100'000;
constexpr uint64_t kSpareBytes = 256u << 20;  // the driver's own needs vary by this much
constexpr int kXidTries = 5;
constexpr int kStopSeconds = 5;

std::string GpuName(uint32_t gpu) { return "GPU " + std::to_string(gpu); }

// The driver's own daemons are no users of a GPU.
bool IsMpsProcess(uint32_t pid) {
  const std::string name = ReadFile("/proc/" + std::to_string(pid) + "/comm", 64).value_or("");
  return name.starts_with("nvidia-cuda-mps");
}

// JOB.ATTEMPT of a process's control group, which is named JOB.ATTEMPT-HASH (node/task/task_spec.h). {0, 0}: of no pod.
std::pair<uint64_t, uint32_t> JobOfGroup(const std::string& text) {
  for (size_t slash = text.find('/'); slash != text.npos; slash = text.find('/', slash + 1)) {
    char* rest = nullptr;
    const char* begin = text.c_str() + slash + 1;
    const uint64_t job = std::strtoull(begin, &rest, 10);
    if (rest == begin || *rest != '.') continue;
    const char* second = rest + 1;
    const uint64_t attempt = std::strtoull(second, &rest, 10);
    if (rest != second && *rest == '-') return {job, static_cast<uint32_t>(attempt)};
  }
  return {0, 0};
}

}  // namespace

NodeGpus::NodeGpus(EventLoop* loop, NodeGpusOptions options, Events events)
    : loop_(loop), options_(std::move(options)), events_(std::move(events)) {}

NodeGpus::~NodeGpus() {
  *alive_ = false;
  loop_->Cancel(timer_);
  stopping_ = true;
  if (xid_thread_.joinable()) xid_thread_.join();
  queue_.Stop();
}

std::string NodeGpus::Below(const std::string& root, const std::string& path) const {
  return root == "/" ? path : root + path;
}

Result<std::unique_ptr<NodeGpus>> NodeGpus::Start(EventLoop* loop, const NodeGpusOptions& options, Events events) {
  std::unique_ptr<NodeGpus> gpus(new NodeGpus(loop, options, std::move(events)));
  VRUN_TRY(gpus->Open());
  gpus->queue_.Post([raw = gpus.get()] { raw->FindDriverFiles(); });
  gpus->BeginTicks();
  gpus->WatchXids();
  return gpus;
}

Status NodeGpus::Open() {
  VRUN_ASSIGN(nvml_, gpu::Nvml::Open(options_.driver_root));
  VRUN_ASSIGN(inventory_, gpu::TakeInventory(nvml_.get()));
  const std::string directory = options_.state_directory + "/gpus";
  for (const char* sub : {"/mig", "/mps"}) VRUN_TRY(MakeDirs(directory + sub, 0711));
  mig_ = std::make_unique<gpu::MigInstances>(nvml_.get(), directory + "/mig", Below(options_.device_root, "/proc"));
  mps_ = std::make_unique<gpu::MpsDaemons>(gpu::MpsDaemons::Options{directory + "/mps", options_.driver_root});
  meter_ = std::make_unique<gpu::Meter>(nvml_.get());
  if (Result<gpu::KernelLog> log = gpu::KernelLog::Open(Below(options_.device_root, "/dev/kmsg"))) {
    log_ = std::move(*log);
  } else {
    LogWarning("GPUs: faults are known, but not whose they are: {}", log.error().message());
  }
  health_.resize(inventory_.gpus.size());
  for (uint32_t i = 0; i < health_.size(); ++i) {
    const gpu::Reading reading = gpu::Read(nvml_.get(), i, false);
    uint64_t processes = 0;
    for (const gpu::Nvml::Process& p : reading.processes) processes += p.bytes;
    health_[i].idle_bytes = reading.used_bytes - std::min(processes, reading.used_bytes);
    CheckHealth(i);
  }
  told_ = inventory_;
  LogInfo("GPUs: {} of type {}, driver {}", inventory_.gpus.size(), Escape(inventory_.Type()),
          Escape(inventory_.driver));
  return {};
}

// The bundle, and the module without which no CUDA program starts. Nothing here stops the node: its jobs without GPUs
// run.
void NodeGpus::FindDriverFiles() {
  const std::string proc = Below(options_.device_root, "/proc");
  const gpu::DeviceMajors majors = gpu::ParseDeviceMajors(ReadFile(proc + "/devices").value_or(""));
  if (majors.nvidia_uvm == 0 && options_.device_root == "/") {
    const Result<std::string> loaded =
        gpu::RunProgram({"/sbin/modprobe", "nvidia-uvm"}, {"PATH=/sbin:/usr/sbin:/bin:/usr/bin"}, "", 10'000);
    if (!loaded) LogError("nvidia-uvm is not loaded, and cannot be: {}", loaded.error().message());
  }
  gpu::DriverSearch search;
  search.root = options_.driver_root;
  search.kernel_version = gpu::KernelDriverVersion(ReadFile(proc + "/driver/nvidia/version").value_or(""));
  Result<gpu::Driver> driver = gpu::FindDriver(search);
  if (!driver && driver.error().code() == Code::kNotFound) {
    gpu::CdiFiles cdi = gpu::ReadCdi({Below(search.root, "/etc/cdi"), Below(search.root, "/var/run/cdi")});
    for (const std::string& problem : cdi.problems) LogWarning("CDI: {}", problem);
    std::erase_if(cdi.specs, [](const gpu::CdiSpec& spec) { return spec.kind == "vrun/gpu"; });  // our own
    search.directories = gpu::CdiDriverDirectories(cdi.specs);
    if (!search.directories.empty()) driver = gpu::FindDriver(search);
  }
  bundle_ = driver ? gpu::MakeBundle(*driver, options_.state_directory + "/gpus/driver")
                   : Result<gpu::Bundle>(driver.error());
  if (!bundle_) {
    for (uint32_t i = 0; i < health_.size(); ++i) {
      health_[i].lasting = "the driver's files: " + bundle_.error().message();
      SetProblem(i, health_[i].lasting);
    }
    return SendReport();
  }
  // For Docker and Podman on this machine.
  if (options_.driver_root != "/" || options_.device_root != "/") return;
  const std::string cdi =
      gpu::FormatCdi(inventory_.gpus, *bundle_, gpu::ParseDeviceMajors(ReadFile("/proc/devices").value_or("")));
  const Status made = MakeDirs("/var/run/cdi", 0755);
  const Status written = made ? WriteFileAtomic("/var/run/cdi/vrun-gpu.json", cdi, 0644) : made;
  if (!written) LogWarning("CDI: {}", written.error().message());
}

void NodeGpus::BeginTicks() {
  timer_ = loop_->After(options_.interval_us, [this] {
    queue_.Post([this] {
      Tick();
      loop_->Post([this, alive = std::weak_ptr(alive_)] {
        if (!alive.expired()) BeginTicks();
      });
    });
  });
}

void NodeGpus::WatchXids() {
  Result<std::unique_ptr<gpu::Nvml::Events>> events = nvml_->Watch();
  if (!events) return LogWarning("GPUs: {}", events.error().message());
  xids_ = std::move(*events);
  xid_thread_ = std::thread([this] {
    while (!stopping_) {
      constexpr uint32_t kWaitMs = 200;
      const Result<gpu::Nvml::Xid> xid = xids_->Wait(kWaitMs);
      if (xid) {
        queue_.Post([this, xid = *xid] { OnXid(xid, kXidTries); });
      } else if (xid.error().code() != Code::kTimeout) {
        ::usleep(kWaitMs * 1000);
      }
    }
  });
}

// --- a pod's life

void NodeGpus::Recover(const std::vector<v1::StartAttempt>& alive) {
  queue_.Post([this, alive] { RecoverNow(alive); });
}

void NodeGpus::Prepare(const v1::StartAttempt& order, Done done) {
  queue_.Post([this, order, done = std::move(done)] {
    waiting_.insert(AttemptKey::Of(order.placement()));
    PrepareNow(order, MonotonicMicros() + kSettleMicros, done);
  });
}

void NodeGpus::Release(const AttemptKey& key) {
  queue_.Post([this, key] { ReleaseNow(key); });
}

void NodeGpus::AfterAll(std::function<void()> then) {
  queue_.Post([this, then = std::move(then)] {
    loop_->Post([then, alive = std::weak_ptr(alive_)] {
      if (!alive.expired()) then();
    });
  });
}

void NodeGpus::Stop() {
  auto over = std::make_shared<std::promise<void>>();
  queue_.Post([this, over] {
    std::vector<AttemptKey> keys;
    for (const auto& [key, pod] : pods_) keys.push_back(key);
    for (const AttemptKey& key : keys) ReleaseNow(key);
    // Processes that use an instance are being killed now.
    for (int64_t end = MonotonicMicros() + 2'000'000; MonotonicMicros() < end; ::usleep(20'000)) {
      if (mig_->Recover(inventory_.gpus, {}).empty()) break;
    }
    over->set_value();
  });
  over->get_future().wait_for(std::chrono::seconds(kStopSeconds));
}

void NodeGpus::Answer(const Done& done, Result<v1::GpuInjection> result) {
  loop_->Post([done, result = std::move(result), alive = std::weak_ptr(alive_)] {
    if (!alive.expired()) done(result);
  });
}

void NodeGpus::PrepareNow(const v1::StartAttempt& order, int64_t deadline_us, const Done& done) {
  const AttemptKey key = AttemptKey::Of(order.placement());
  if (!waiting_.contains(key)) return Answer(done, Error(Code::kAborted, "the job ended before its GPUs were ready"));
  const Result<GpuRequest> request = ReadGpuRequest(order, inventory_);
  Result<v1::GpuInjection> made = v1::GpuInjection();
  if (!request) {
    made = request.error();
  } else if (request->part != GpuPart::kNone) {
    made = TryToMake(*request, MonotonicMicros() >= deadline_us);
  }
  if (!made && made.error().code() == Code::kTimeout) {
    return loop_->Post([this, order, deadline_us, done, alive = std::weak_ptr(alive_)] {
      if (alive.expired()) return;
      loop_->After(kRetryMicros, [this, order, deadline_us, done, alive] {
        if (!alive.expired()) queue_.Post([this, order, deadline_us, done] { PrepareNow(order, deadline_us, done); });
      });
    });
  }
  waiting_.erase(key);
  if (changed_) SendReport();
  Answer(done, std::move(made));
}

Result<v1::GpuInjection> NodeGpus::TryToMake(const GpuRequest& request, bool last_try) {
  const auto again = [&](const std::string& why) { return Error(last_try ? Code::kUnavailable : Code::kTimeout, why); };
  for (const uint32_t number : request.gpus) {
    const v1::Gpu& gpu = inventory_.gpus[number];
    if (!gpu.problem().empty()) return Error(Code::kUnavailable, GpuName(number) + " has a problem: " + gpu.problem());
    if (gpu.mig() != (request.part == GpuPart::kInstance)) {
      return Error(Code::kInvalid,
                   GpuName(number) + (gpu.mig() ? " is in MIG mode: ask for an instance" : " is not in MIG mode"));
    }
    const gpu::Reading reading = gpu::Read(nvml_.get(), number, false);
    if (reading.lost) {
      SetProblem(number, gpu::Problem(reading, false));
      return Error(Code::kUnavailable, GpuName(number) + ": " + reading.why_lost);
    }
    if (const std::string who = Occupied(number, reading); !who.empty()) {
      if (last_try) SetProblem(number, who);
      return again(GpuName(number) + ": " + who);
    }
  }
  SweepInstances();
  Result<gpu::Allotment> allotment = Allot(request);
  if (!allotment && allotment.error().code() == Code::kExhausted) return again(allotment.error().message());
  if (!allotment) return allotment.error();
  Result<v1::GpuInjection> list = List(*allotment);
  if (!list) {
    TakeDown(request);
    return list.error();
  }
  Pod& pod = pods_[request.key] = {request, std::nullopt};
  if (allotment->mig) pod.gpu_instance = allotment->mig->gpu_instance;
  Meter(pod);
  WriteJobFiles(request, pod.gpu_instance);
  return list;
}

Result<gpu::Allotment> NodeGpus::Allot(const GpuRequest& request) {
  gpu::Allotment allotment;
  allotment.gpus = request.gpus;
  const uint32_t first = request.gpus[0];
  switch (request.part) {
    case GpuPart::kInstance: {
      VRUN_ASSIGN(allotment.mig, mig_->Take(first, inventory_.gpus[first], request.mig_profile, request.mig_start));
      break;
    }
    case GpuPart::kMps: {
      VRUN_ASSIGN(allotment.mps, mps_->Join({request.key.Name(), request.owner, first, inventory_.gpus[first].uuid(),
                                             request.percentage, request.memory_bytes}));
      break;
    }
    case GpuPart::kTimeSlice: allotment.time_slice = true; break;
    default: break;
  }
  return allotment;
}

Result<v1::GpuInjection> NodeGpus::List(const gpu::Allotment& allotment) const {
  if (!bundle_) return bundle_.error();
  const std::string proc = Below(options_.device_root, "/proc"), nvidia = proc + "/driver/nvidia";
  gpu::InjectionRequest request;
  request.gpus = &inventory_.gpus;
  request.allotment = &allotment;
  request.bundle = &*bundle_;
  request.majors = gpu::ParseDeviceMajors(ReadFile(proc + "/devices").value_or(""));
  request.proc = gpu::ReadDriverProc(nvidia);
  for (const v1::Gpu& gpu : inventory_.gpus) {
    // The kernel's names have a domain of four digits.
    const std::string bus = gpu.pci_bus_id().size() > 4 ? gpu.pci_bus_id().substr(4) : "";
    request.gpu_information.push_back(ReadFile(nvidia + "/gpus/" + bus + "/information").value_or(""));
  }
  return gpu::MakeInjection(request);
}

// An instance that is still in use is destroyed by a later sweep.
void NodeGpus::TakeDown(const GpuRequest& request) {
  if (request.part == GpuPart::kMps) mps_->Leave(request.key.Name());
  if (request.part != GpuPart::kInstance) return;
  const uint32_t first = request.gpus[0];
  if (const Status given = mig_->Give(first, inventory_.gpus[first], request.mig_start); !given) {
    LogWarning("{}: MIG instance at {}: {}: trying again", GpuName(first), request.mig_start, given.error().message());
  }
}

void NodeGpus::ReleaseNow(const AttemptKey& key) {
  waiting_.erase(key);
  const auto found = pods_.extract(key);
  if (found.empty()) return;
  const Pod& pod = found.mapped();
  if (const std::optional<v1::GpuUsage> last = meter_->Remove(key.Name())) {
    v1::GpuUsages usages;
    *usages.add_usages() = *last;
    SendUsages(std::move(usages));
  }
  TakeDown(pod.request);
  WriteJobFiles(pod.request, pod.gpu_instance);
}

void NodeGpus::RecoverNow(const std::vector<v1::StartAttempt>& alive) {
  RemoveJobFiles();
  std::vector<gpu::MpsDaemons::Member> members;
  for (const v1::StartAttempt& order : alive) {
    const Result<GpuRequest> request = ReadGpuRequest(order, inventory_);
    if (!request || request->part == GpuPart::kNone) continue;
    Pod& pod = pods_[request->key] = {*request, std::nullopt};
    const uint32_t first = request->gpus[0];
    if (request->part == GpuPart::kMps) {
      members.push_back({request->key.Name(), request->owner, first, inventory_.gpus[first].uuid(), request->percentage,
                         request->memory_bytes});
    }
    if (request->part == GpuPart::kInstance) {
      const Result<gpu::MigInstance> instance =
          mig_->Take(first, inventory_.gpus[first], request->mig_profile, request->mig_start);
      if (instance) pod.gpu_instance = instance->gpu_instance;
    }
    Meter(pod);
    WriteJobFiles(pod.request, pod.gpu_instance);
  }
  mps_->Recover(members);
  SweepInstances();
  if (alive.empty() && bundle_) {
    const Status removed = gpu::RemoveBundles(options_.state_directory + "/gpus/driver", {bundle_->directory});
    if (!removed) LogWarning("{}", removed.error().message());
  }
}

void NodeGpus::SweepInstances() {
  std::set<std::pair<std::string, uint32_t>> used;
  for (const auto& [key, pod] : pods_) {
    if (pod.request.part == GpuPart::kInstance) {
      used.insert({inventory_.gpus[pod.request.gpus[0]].uuid(), pod.request.mig_start});
    }
  }
  for (const std::string& problem : mig_->Recover(inventory_.gpus, used)) LogDebug("MIG: {}", problem);
}

void NodeGpus::Meter(const Pod& pod) {
  gpu::Meter::Pod metered;
  metered.job = pod.request.key.job;
  metered.attempt = pod.request.key.attempt;
  metered.pod = pod.request.key.pod;
  metered.gpus = pod.request.gpus;
  metered.milli = pod.request.milli;
  metered.shared = pod.request.shared();
  metered.gpu_instance = pod.gpu_instance;
  if (pod.request.part == GpuPart::kInstance) {
    // "3g.40gb": its compute slices are its part of the energy.
    const int slices = std::atoi(pod.request.mig_profile.c_str());
    metered.milli = static_cast<uint32_t>(std::clamp(slices, 1, 7) * 1000 / 7);
  }
  meter_->Add(pod.request.key.Name(), metered);
}

std::vector<const NodeGpus::Pod*> NodeGpus::PodsOn(uint32_t gpu) const {
  std::vector<const Pod*> found;
  for (const auto& [key, pod] : pods_) {
    if (std::find(pod.request.gpus.begin(), pod.request.gpus.end(), gpu) != pod.request.gpus.end())
      found.push_back(&pod);
  }
  return found;
}

std::string NodeGpus::PodOf(uint32_t gpu, uint32_t pid) const {
  const auto [job, attempt] = JobOfGroup(ReadFile("/proc/" + std::to_string(pid) + "/cgroup").value_or(""));
  if (job == 0) return "";
  for (const Pod* pod : PodsOn(gpu)) {
    if (pod->request.key.job == job && pod->request.key.attempt == attempt) return pod->request.key.Name();
  }
  return "";
}

std::string NodeGpus::Occupied(uint32_t gpu, const gpu::Reading& reading) const {
  for (const gpu::Nvml::Process& process : reading.processes) {
    const std::string pid = std::to_string(process.pid);
    if (!PathExists("/proc/" + pid) || IsMpsProcess(process.pid) || !PodOf(gpu, process.pid).empty()) continue;
    std::string name = ReadFile("/proc/" + pid + "/comm", 64).value_or("?");
    if (!name.empty() && name.back() == '\n') name.pop_back();
    return "process " + pid + " (" + Escape(name) + ") uses it, which is of no job that has it";
  }
  // What is used on a cut GPU does not say by which instance.
  const uint64_t limit = health_[gpu].idle_bytes + kSpareBytes;
  if (PodsOn(gpu).empty() && !inventory_.gpus[gpu].mig() && reading.used_bytes > limit) {
    return std::to_string((reading.used_bytes - health_[gpu].idle_bytes) >> 20) +
           " MiB of its memory are used by nobody";
  }
  return "";
}

void NodeGpus::WriteJobFiles(const GpuRequest& request, const std::optional<uint32_t>& instance) const {
  if (options_.job_file_directory.empty()) return;
  for (const uint32_t gpu : request.gpus) {
    std::vector<uint64_t> jobs;
    for (const Pod* pod : PodsOn(gpu)) {
      if (pod->gpu_instance == instance) jobs.push_back(pod->request.key.job);
    }
    const std::string name = std::to_string(gpu) + (instance ? "." + std::to_string(*instance) : "");
    if (const Status written = gpu::WriteJobFile(options_.job_file_directory, name, jobs); !written) {
      LogWarning("--dcgm-job-dir: {}", written.error().message());
    }
  }
}

// Makes the directory, and removes what a killed agent left: whose pods go on are written again.
void NodeGpus::RemoveJobFiles() const {
  if (options_.job_file_directory.empty()) return;
  if (const Status made = MakeDirs(options_.job_file_directory, 0755); !made) {
    LogWarning("--dcgm-job-dir: {}", made.error().message());
  }
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(options_.job_file_directory, error)) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789.") == name.npos) ::unlink(entry.path().c_str());
  }
}

// --- metering and health

void NodeGpus::Tick() {
  gpu::RefreshInventory(nvml_.get(), &inventory_);
  SweepInstances();
  for (uint32_t i = 0; i < inventory_.gpus.size(); ++i) CheckHealth(i);
  v1::GpuUsages usages;
  for (const v1::GpuUsage& usage : meter_->Tick([this](uint32_t gpu, uint32_t pid) { return PodOf(gpu, pid); })) {
    *usages.add_usages() = usage;
  }
  if (usages.usages_size() > 0) SendUsages(std::move(usages));
  if (changed_ || !faults_.empty()) SendReport();
}

void NodeGpus::CheckHealth(uint32_t gpu) {
  Health& health = health_[gpu];
  const gpu::Reading reading = gpu::Read(nvml_.get(), gpu);
  const std::string before = inventory_.gpus[gpu].problem();
  std::string problem = gpu::Problem(reading, gpu::IsTemperature(before));
  if (reading.lost && before.empty()) {
    for (const Pod* pod : PodsOn(gpu)) AddFault(gpu, pod, problem, false, true);
  }
  if (reading.uncorrected && *reading.uncorrected > health.uncorrected) {
    if (health.uncorrected != 0 || !PodsOn(gpu).empty()) {
      for (const Pod* pod : PodsOn(gpu)) {
        AddFault(gpu, pod, std::to_string(*reading.uncorrected - health.uncorrected) + " uncorrectable ECC errors",
                 false, false);
      }
    }
    health.uncorrected = *reading.uncorrected;
  }
  if (!health.lasting.empty()) problem = health.lasting;
  if (problem.empty()) {
    const std::string who = Occupied(gpu, reading);
    const int64_t now = MonotonicMicros();
    health.occupied_us = who.empty() ? 0 : health.occupied_us == 0 ? now : health.occupied_us;
    // While a pod has it, that is the pod's trouble, not a reason to take the GPU from it.
    if (!who.empty() && PodsOn(gpu).empty() && (now - health.occupied_us >= kSettleMicros || !before.empty()))
      problem = who;
  }
  SetProblem(gpu, problem);
}

void NodeGpus::OnXid(const gpu::Nvml::Xid& xid, int tries) {
  if (xid.gpu >= inventory_.gpus.size()) return;
  const v1::Gpu& gpu = inventory_.gpus[xid.gpu];
  if (log_) {
    for (gpu::XidLine& line : log_->Read()) lines_.push_back(std::move(line));
  }
  const auto line = std::find_if(lines_.begin(), lines_.end(), [&](const gpu::XidLine& l) {
    return l.number == xid.number && gpu::SamePci(l.pci, gpu.pci_bus_id());
  });
  // The event and the line of the log come in no order.
  if (line == lines_.end() && log_ && tries > 0) {
    return loop_->Post([this, xid, tries, alive = std::weak_ptr(alive_)] {
      if (alive.expired()) return;
      loop_->After(kRetryMicros, [this, xid, tries, alive] {
        if (!alive.expired()) queue_.Post([this, xid, tries] { OnXid(xid, tries - 1); });
      });
    });
  }
  const uint32_t pid = line == lines_.end() ? 0 : line->pid;
  if (line != lines_.end()) lines_.erase(lines_.begin(), line + 1);
  const gpu::XidMeaning meaning = gpu::MeaningOfXid(xid.number);
  const std::string text = gpu::XidText(xid.number);
  LogWarning("{}: {}{}", GpuName(xid.gpu), text, pid == 0 ? "" : ", process " + std::to_string(pid));

  const std::vector<const Pod*> there = PodsOn(xid.gpu);
  const std::string culprit = pid == 0 ? "" : PodOf(xid.gpu, pid);
  const Pod* whose = nullptr;
  for (const Pod* pod : there) {
    const bool instance = xid.gpu_instance != gpu::Nvml::kNoInstance && pod->gpu_instance == xid.gpu_instance;
    // The process may be gone already, and so its group: then it was the only pod's.
    if (pod->request.key.Name() == culprit || (culprit.empty() && (there.size() == 1 || instance))) whose = pod;
  }
  if (whose != nullptr) AddFault(xid.gpu, whose, text, meaning.own, meaning.fatal);
  for (const Pod* pod : there) {
    if (pod == whose) continue;
    // All clients of an MPS daemon end with one of them (decision 32).
    const bool together = meaning.fatal && pod->request.part == GpuPart::kMps &&
                          (whose == nullptr || whose->request.owner == pod->request.owner);
    if (meaning.gpu)
      AddFault(xid.gpu, pod, text, false, true);
    else if (together)
      AddFault(xid.gpu, pod, text + " (of another job that shares this GPU)", false, true);
  }
  if (there.empty()) AddFault(xid.gpu, nullptr, text, false, false);
  if (meaning.gpu) {
    health_[xid.gpu].lasting = text;
    SetProblem(xid.gpu, text);
  }
  if (meaning.node) drain_ = GpuName(xid.gpu) + ": " + text;
  SendReport();
}

void NodeGpus::AddFault(uint32_t gpu, const Pod* pod, const std::string& what, bool own, bool fatal) {
  v1::GpuReport::Fault fault;
  fault.set_gpu(gpu);
  fault.set_what(what);
  if (pod != nullptr) {
    fault.set_job(pod->request.key.job);
    fault.set_attempt(pod->request.key.attempt);
    fault.set_pod(pod->request.key.pod);
  }
  fault.set_own(own);
  fault.set_fatal(fatal);
  faults_.push_back(std::move(fault));
}

void NodeGpus::SetProblem(uint32_t gpu, const std::string& problem) {
  if (inventory_.gpus[gpu].problem() == problem) return;
  if (problem.empty()) {
    LogInfo("{}: it is fit again", GpuName(gpu));
  } else {
    LogWarning("{}: no job gets it: {}", GpuName(gpu), problem);
  }
  inventory_.gpus[gpu].set_problem(problem);
  changed_ = true;
}

void NodeGpus::SendReport() {
  v1::GpuReport report;
  report.mutable_gpus()->Assign(inventory_.gpus.begin(), inventory_.gpus.end());
  report.set_drain(drain_);
  for (v1::GpuReport::Fault& fault : faults_) *report.add_faults() = std::move(fault);
  faults_.clear();
  changed_ = false;
  loop_->Post([this, report = std::move(report), inventory = inventory_, alive = std::weak_ptr(alive_)] {
    if (alive.expired()) return;
    told_ = inventory;
    if (events_.on_report) events_.on_report(report);
  });
}

void NodeGpus::SendUsages(v1::GpuUsages usages) {
  loop_->Post([this, usages = std::move(usages), alive = std::weak_ptr(alive_)] {
    if (!alive.expired() && events_.on_usages) events_.on_usages(usages);
  });
}

}  // namespace vrun::node
