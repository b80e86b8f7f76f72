// SPDX-License-Identifier: Apache-2.0
// Shared helpers of the controller's tests: a temporary directory, a manual clock, short requests.
#pragma once

#include <stdlib.h>

#include <atomic>
#include <string>

#include "base/clock.h"
#include "base/files.h"
#include "proto/control.pb.h"

namespace vrun::control {

class TestDirectory {
 public:
  TestDirectory() {
    const char* base = getenv("TMPDIR");
    path_ = std::string(base != nullptr ? base : "/var/tmp") + "/vrun-control-XXXXXX";
    VRUN_CHECK(mkdtemp(path_.data()) != nullptr);
  }
  ~TestDirectory() { (void)RemoveTree(path_); }
  TestDirectory(const TestDirectory&) = delete;
  TestDirectory& operator=(const TestDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class FakeClock : public Clock {
 public:
  int64_t Monotonic() const override { return now_; }
  int64_t Wall() const override { return 1'700'000'000'000'000 + now_ + stepped_; }
  void AdvanceSeconds(int64_t s) { now_ += s * 1'000'000; }
  void AdvanceMicros(int64_t us) { now_ += us; }
  void StepWall(int64_t us) { stepped_ += us; }  // somebody sets the clock

 private:
  std::atomic<int64_t> now_{1'000'000};
  std::atomic<int64_t> stepped_{0};
};

inline v1::SubmitRequest SimpleJob(const std::string& request_id, uint32_t cores = 1, uint32_t gpus = 0,
                                   const std::string& pool = "local") {
  v1::SubmitRequest request;
  request.set_request_id(request_id);
  request.mutable_spec()->mutable_command()->add_argv("true");
  request.mutable_spec()->mutable_command()->set_directory("/home/anna");
  request.mutable_spec()->set_pool(pool);
  request.mutable_spec()->set_name("true");
  request.mutable_spec()->mutable_resources()->set_milli_cpus(cores * 1000);
  request.mutable_spec()->mutable_resources()->set_gpus(gpus);
  request.set_home_id("home-1");
  return request;
}

// A job of several pods, each with this many cores and GPUs.
inline v1::SubmitRequest GangJob(const std::string& request_id, uint32_t pods, uint32_t cores = 1, uint32_t gpus = 0) {
  v1::SubmitRequest request = SimpleJob(request_id, cores, gpus);
  request.mutable_spec()->mutable_gang()->set_pods(pods);
  return request;
}

inline v1::Register SimpleNode(const std::string& name, uint32_t cores = 4, uint32_t gpus = 0, uint64_t boot_id = 1) {
  v1::Register r;
  r.set_node(name);
  r.set_pool("local");
  r.mutable_total()->set_milli_cpus(cores * 1000);
  r.mutable_total()->set_memory_bytes(uint64_t{8} << 30);
  r.mutable_total()->set_gpus(gpus);
  r.mutable_total()->set_gpu_type(gpus > 0 ? "h100" : "");
  r.add_addresses("10.0.0.1:7000");
  r.set_version("0.1.0");
  r.set_boot_id(boot_id);
  return r;
}

inline v1::AttemptReport ReportOf(const v1::Placement& p, v1::JobState state) {
  v1::AttemptReport r;
  r.set_job(p.job());
  r.set_attempt(p.attempt());
  r.set_epoch(p.epoch());
  r.set_pod(p.pod());
  r.set_state(state);
  return r;
}

inline v1::AttemptReport ExitOf(const v1::Placement& p, v1::JobState state, v1::ExitRecord::Kind kind, int code) {
  v1::AttemptReport r = ReportOf(p, state);
  r.mutable_exit()->set_job(p.job());
  r.mutable_exit()->set_attempt(p.attempt());
  r.mutable_exit()->set_pod(p.pod());
  r.mutable_exit()->set_kind(kind);
  r.mutable_exit()->set_exit_code(code);
  return r;
}

}  // namespace vrun::control
