// SPDX-License-Identifier: Apache-2.0
// All that the agent does with the node's GPUs, off its loop: finds them, prepares what a pod was promised (MIG
// instance, MPS daemon), takes it down afterwards, watches their health and meters their use.
//
//   Prepare ──▶ checks before ──▶ instance or daemon ──▶ list for the sandbox ──▶ (the pod runs) ──▶ Release
//                                                                                          │
//   daemon and instance are taken down, the GPU is checked: no process, memory free ◀──────┘
//
// A pod's preparation waits until what the pod before it left is gone, for kSettleMicros at most; a GPU that does not
// become free gets a problem, and no more jobs.
//
// What outlives a killed agent: pods, MPS daemons, MIG instances. Recover gets the pods that go on, and takes down what
// belongs to no pod. The files that say what was made are in <state>/gpus (gpu/mig.h, gpu/mps.h).
//
// Threads: the public functions on the loop's thread. The driver is asked on one thread of this class, in the order of
// the calls, and callbacks come back on the loop. XIDs are waited for on another one.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/io/event_loop.h"
#include "base/io/work_queue.h"
#include "base/result.h"
#include "gpu/health.h"
#include "gpu/inject/injection.h"
#include "gpu/inventory.h"
#include "gpu/meter.h"
#include "gpu/mig.h"
#include "gpu/mps.h"
#include "gpu/nvml.h"
#include "node/attempt_key.h"
#include "node/gpus/gpu_request.h"
#include "proto/control.pb.h"
#include "proto/supervisor.pb.h"

namespace vrun::node {

struct NodeGpusOptions {
  std::string driver_root = "/";    // where the driver's files are
  std::string device_root = "/";    // where its /proc, /sys and /dev are
  std::string state_directory;      // gpus/mig, gpus/mps, gpus/driver
  std::string job_file_directory;   // for DCGM's exporter; "": none
  int64_t interval_us = 5'000'000;  // of metering and checks
};

class NodeGpus {
 public:
  struct Events {  // on the loop
    std::function<void(const v1::GpuReport&)> on_report;
    std::function<void(const v1::GpuUsages&)> on_usages;
  };
  // Blocks while it asks the driver for what is there: 12 ms and 30 for each GPU. kNotFound: no GPU of NVIDIA, or no
  // driver. Otherwise the driver is there and does not work.
  static Result<std::unique_ptr<NodeGpus>> Start(EventLoop* loop, const NodeGpusOptions& options, Events events);
  ~NodeGpus();

  // For Register.
  void Describe(v1::Resources* resources, v1::NodeFacts* facts) const { told_.Describe(resources, facts); }

  // Once, after Start: the pods that go on.
  void Recover(const std::vector<v1::StartAttempt>& alive);
  // Makes ready what the order's pod was promised. The result is for TaskSpec.gpus; a pod without GPUs gets an empty
  // one.
  void Prepare(const v1::StartAttempt& order, std::function<void(Result<v1::GpuInjection>)> done);
  // The pod's processes are gone, or never were. Called twice it does nothing.
  void Release(const AttemptKey& key);
  // Calls it on the loop once all that was asked for before is done: after Release, when the pod's last usage was told.
  void AfterAll(std::function<void()> then);
  // The agent stops and its pods are killed: takes all down, and waits for that for a few seconds.
  void Stop();

 private:
  struct Pod {
    GpuRequest request;
    std::optional<uint32_t> gpu_instance;
  };
  // What is remembered of a GPU.
  struct Health {
    int64_t occupied_us = 0;   // since when somebody is there who should not be; 0: nobody is
    uint64_t idle_bytes = 0;   // memory used without any process
    std::string lasting;       // a problem that stays until the agent starts again: of an XID
    uint64_t uncorrected = 0;  // ECC errors so far
  };
  using Done = std::function<void(Result<v1::GpuInjection>)>;

  NodeGpus(EventLoop* loop, NodeGpusOptions options, Events events);
  Status Open();
  void BeginTicks();
  void WatchXids();
  std::string Below(const std::string& root, const std::string& path) const;

  // All of these on the queue's thread.
  void FindDriverFiles();
  void PrepareNow(const v1::StartAttempt& order, int64_t deadline_us, const Done& done);
  void Answer(const Done& done, Result<v1::GpuInjection> result);
  // kTimeout: something of an earlier pod is still there, so try again.
  Result<v1::GpuInjection> TryToMake(const GpuRequest& request, bool last_try);
  Result<gpu::Allotment> Allot(const GpuRequest& request);
  Result<v1::GpuInjection> List(const gpu::Allotment& allotment) const;
  void TakeDown(const GpuRequest& request);
  void ReleaseNow(const AttemptKey& key);
  void RecoverNow(const std::vector<v1::StartAttempt>& alive);
  void SweepInstances();
  void Meter(const Pod& pod);
  // Why the GPU cannot be given to another pod: a process of no pod, or memory of nobody. "": it can.
  std::string Occupied(uint32_t gpu, const gpu::Reading& reading) const;
  std::string PodOf(uint32_t gpu, uint32_t pid) const;
  std::vector<const Pod*> PodsOn(uint32_t gpu) const;
  void Tick();
  void CheckHealth(uint32_t gpu);
  void OnXid(const gpu::Nvml::Xid& xid, int tries);
  void AddFault(uint32_t gpu, const Pod* pod, const std::string& what, bool own, bool fatal);
  void SetProblem(uint32_t gpu, const std::string& problem);
  void SendReport();
  void SendUsages(v1::GpuUsages usages);
  void RemoveJobFiles() const;
  void WriteJobFiles(const GpuRequest& request, const std::optional<uint32_t>& instance) const;

  EventLoop* loop_;
  const NodeGpusOptions options_;
  const Events events_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // on the loop, for what comes back from the queue

  // Loop.
  gpu::Inventory told_;  // a copy for Describe
  EventLoop::TimerId timer_ = 0;

  // Queue.
  std::unique_ptr<gpu::Nvml> nvml_;
  gpu::Inventory inventory_;
  std::unique_ptr<gpu::MigInstances> mig_;
  std::unique_ptr<gpu::MpsDaemons> mps_;
  std::unique_ptr<gpu::Meter> meter_;
  std::optional<gpu::KernelLog> log_;
  std::vector<gpu::XidLine> lines_;  // of the log, not yet matched with an event
  Result<gpu::Bundle> bundle_ = Error(Code::kUnavailable, "the driver's files were not looked for yet");
  std::set<AttemptKey> waiting_;  // to be prepared
  std::map<AttemptKey, Pod> pods_;
  std::vector<Health> health_;
  std::vector<v1::GpuReport::Fault> faults_;
  std::string drain_;
  bool changed_ = false;

  std::atomic<bool> stopping_ = false;
  std::unique_ptr<gpu::Nvml::Events> xids_;
  std::thread xid_thread_;
  WorkQueue queue_{"gpus"};  // last: its thread uses all of the above
};

}  // namespace vrun::node
