// SPDX-License-Identifier: Apache-2.0
// Random lives of gangs: nodes that fail to start them, die, come back, forget; a controller that is killed; jobs that
// fail, are cancelled, preempted, made smaller and larger. Simulated agents obey the orders, and a simple model is
// checked after every step:
//
//   - all or nothing: a job has all of its pods or none, and no command starts before all pods of its attempt were
//   ready
//   - the pods of an elastic gang are as many as it may have, and each knows the others
//   - nothing is held by what waits: the scheduler accounts room to exactly the jobs whose commands have not ended
//   - no two attempts of a job at once: none is ordered before the last one is over and its writes are home
//   - every job ends once the failures stop
//   - parts of GPUs: no memory slice is given twice, no GPU more than once in all, none in two ways, and no share of
//   one to two users; the scheduler, also one that was rebuilt, never believes that more is free
#include <bit>
#include <random>

#include "control/gpus/gpu_needs.h"
#include "control/testing/state_testing.h"
#include "sched/engine/inspect.h"

namespace vrun::control {
namespace {

constexpr int kNodes = 4;
constexpr uint32_t kGpus = 4;

class GangProperties : public StateTest {
 protected:
  enum class Phase { kPreparing, kReady, kRunning, kEnded, kOver };
  struct Pod {
    v1::Placement placement;
    bool gang = false;
    bool orphan = false;  // its node was called lost, so nobody waits for its writes
    Phase phase = Phase::kPreparing;
    v1::StopAttempt stop;  // the last order to stop; job 0: none
    std::set<uint32_t> members;
    v1::AttemptReport report;
  };
  using Key = std::tuple<uint64_t, uint32_t, uint32_t>;  // job, attempt, pod
  struct Machine {
    bool connected = false;
    uint64_t boot = 1;
    std::map<Key, Pod> pods;  // and their reports until they are acknowledged
  };

  int Random(int n) { return static_cast<int>(random_() % static_cast<uint32_t>(n)); }
  bool Chance(int percent) { return Random(100) < percent; }

  void Live(uint32_t first, uint32_t count);
  void LiveOne(uint32_t seed, int steps);
  void Step();
  void Progress(const std::string& name, Machine& node, bool faults);
  bool Advance(Machine& node, Pod& pod, bool faults);
  void Leave(Pod& pod);
  void Deliver();
  void Obey(const std::string& name, const v1::ControllerMessage& m);
  void Connect(const std::string& name);
  void Check();
  void CheckParts();
  void AskForParts(v1::Resources* resources);
  void CheckMembers(const Machine& machine, const Key& key, const Pod& pod);
  void SubmitOne();
  void Tell(const std::string& name, const v1::AttemptReport& report) {
    if (machines_[name].connected) Report(name, report);
    Deliver();
  }

  std::mt19937 random_;
  std::map<std::string, Machine> machines_;
  std::map<uint64_t, v1::Gang> submitted_;
  std::map<std::pair<uint64_t, uint32_t>, std::set<uint32_t>> were_ready_;  // by job and attempt
  std::map<uint64_t, rpc::Peer> owners_;
  int elastic_percent_ = 20, parts_percent_ = 0, most_micros_ = 2'000'000;
  int serial_ = 0;
  int started_ = 0, went_ = 0, again_ = 0, failed_ = 0, joined_ = 0, left_ = 0;
  std::map<std::string, int> parts_;  // by kind: pods that were seen
};

void GangProperties::SubmitOne() {
  const auto pods = static_cast<uint32_t>(1 + Random(kNodes));
  v1::SubmitRequest request = GangJob("r" + std::to_string(serial_++), pods, 1, static_cast<uint32_t>(1 + Random(3)));
  if (pods * request.spec().resources().gpus() > kNodes * 2) request.mutable_spec()->mutable_resources()->set_gpus(1);
  v1::Gang* gang = request.mutable_spec()->mutable_gang();
  gang->set_no_kill(Chance(20));
  gang->set_wait_s(Chance(20) ? 5 : 0);
  if (pods > 1 && Chance(elastic_percent_)) {
    gang->set_min_pods(static_cast<uint32_t>(1 + Random(static_cast<int>(pods) - 1)));
    request.mutable_spec()->mutable_scheduling()->set_resize_seconds(0);
    request.mutable_spec()->mutable_scheduling()->set_estimate_s(100'000);
  }
  request.mutable_spec()->mutable_scheduling()->set_requeue(Chance(60));
  request.mutable_spec()->mutable_scheduling()->set_class_(static_cast<v1::JobClass>(v1::SCAVENGER + Random(4)));
  if (parts_percent_ > 0) request.mutable_spec()->mutable_resources()->set_gpus(1);
  if (Chance(parts_percent_)) AskForParts(request.mutable_spec()->mutable_resources());
  const rpc::Peer& owner = parts_percent_ > 0 && Chance(40) ? kBob : kAnna;
  const uint64_t id = Submit(request, owner).job();
  owners_[id] = owner;
  submitted_[id] = *gang;
  Deliver();
}

void GangProperties::Connect(const std::string& name) {
  Machine& node = machines_[name];
  v1::Register hello = SimpleNode(name, 64, kGpus, node.boot);
  for (const auto& [key, pod] : node.pods) {
    *hello.add_attempts() = pod.report;
    if (pod.report.ready()) were_ready_[{std::get<0>(key), std::get<1>(key)}].insert(std::get<2>(key));
  }
  for (uint32_t i = 0; i < kGpus && parts_percent_ > 0; ++i) {
    hello.mutable_facts()->set_mig_model("h100-80gb");
    v1::Gpu* gpu = hello.mutable_facts()->add_gpus();
    gpu->set_type("h100");
    gpu->set_memory_bytes(uint64_t{name == "n3" ? 40u : 80u} << 30);
    gpu->set_mig(i < kGpus / 2);
    gpu->set_mps(true);
  }
  node.connected = true;
  Register(hello);
  Deliver();
}

void GangProperties::Deliver() {
  while (!sent_.empty()) {
    const auto [name, message] = sent_.front();
    sent_.erase(sent_.begin());
    if (machines_[name].connected) Obey(name, message);
  }
}

std::set<uint32_t> NumbersOf(const google::protobuf::RepeatedPtrField<v1::GangPod>& pods) {
  std::set<uint32_t> numbers;
  for (const v1::GangPod& pod : pods) numbers.insert(pod.first_rank() / pod.ranks());
  return numbers;
}

void GangProperties::Obey(const std::string& name, const v1::ControllerMessage& m) {
  Machine& node = machines_[name];
  if (m.has_start()) {
    const v1::Placement& p = m.start().placement();
    const Key key{p.job(), p.attempt(), p.pod()};
    ASSERT_EQ(p.node(), name);
    // No two attempts at once.
    for (const auto& [other, machine] : machines_) {
      for (const auto& [k, pod] : machine.pods) {
        if (std::get<0>(k) != p.job() || std::get<1>(k) == p.attempt()) continue;
        EXPECT_LT(std::get<1>(k), p.attempt());
        // One that got ready too late was given up; nobody tells it to go any more.
        const bool never_ran = pod.gang && pod.phase <= Phase::kReady;
        EXPECT_TRUE(never_ran || pod.phase == Phase::kOver || (pod.phase == Phase::kEnded && pod.orphan))
            << "job " << p.job() << ": attempt " << std::get<1>(k) << " is not over on " << other << " when attempt "
            << p.attempt() << " starts";
      }
    }
    const v1::Gang& asked = submitted_.at(p.job());
    if (!IsElastic(asked)) {
      EXPECT_EQ(m.start().pods_size(), asked.pods() > 1 ? static_cast<int>(asked.pods()) : 0);
    }
    if (node.pods.contains(key)) return Tell(name, node.pods[key].report);
    Pod& pod = node.pods[key];
    pod.placement = p;
    pod.members = NumbersOf(m.start().pods());
    pod.gang = asked.pods() > 1;
    pod.report = ReportOf(p, v1::STARTING);
    ++started_;
    again_ += p.attempt() > 1;
    return;
  }
  if (m.has_go()) {
    const auto it = node.pods.find({m.go().job(), m.go().attempt(), m.go().pod()});
    if (it == node.pods.end() || it->second.phase == Phase::kPreparing) return;
    const auto& ready = were_ready_[{m.go().job(), m.go().attempt()}];
    const auto job = state_->jobs().find(m.go().job());
    for (size_t i = 0; job != state_->jobs().end() && i < job->second.pods.size(); ++i) {
      const PodRow& row = job->second.pods[i];
      if (row.membership != Membership::kFull || job->second.attempt != m.go().attempt()) continue;
      EXPECT_TRUE(ready.contains(row.pod)) << "job " << m.go().job() << " went too early";
    }
    if (it->second.phase != Phase::kReady) return;
    joined_ += job != state_->jobs().end() && job->second.attempt == m.go().attempt() &&
               job->second.pods.at(m.go().pod()).membership == Membership::kJoining;
    it->second.phase = Phase::kRunning;
    it->second.report.set_state(v1::RUNNING);
    ++went_;
    return;
  }
  if (m.has_members()) {
    const auto it = node.pods.find({m.members().job(), m.members().attempt(), m.members().pod()});
    if (it != node.pods.end()) it->second.members = NumbersOf(m.members().pods());
    return;
  }
  if (m.has_stop()) {
    const auto it = node.pods.find({m.stop().job(), m.stop().attempt(), m.stop().pod()});
    if (it != node.pods.end() && it->second.phase < Phase::kEnded) it->second.stop = m.stop();
    return;
  }
  if (m.has_report_ack()) {
    const auto it = node.pods.find({m.report_ack().job(), m.report_ack().attempt(), m.report_ack().pod()});
    if (it != node.pods.end() && it->second.phase == Phase::kOver &&
        it->second.report.state() == m.report_ack().state()) {
      node.pods.erase(it);
    }
  }
}

// The pod ends as it was told to.
void GangProperties::Leave(Pod& pod) {
  v1::ExitRecord* exit = pod.report.mutable_exit();
  const v1::StopAttempt& stop = pod.stop;
  left_ += !stop.resized().empty();
  exit->set_kind(!stop.gang_ended().empty()  ? v1::ExitRecord::GANG_ENDED
                 : !stop.resized().empty()   ? v1::ExitRecord::LEFT_GANG
                 : !stop.preempted().empty() ? v1::ExitRecord::PREEMPTED_BY_JOB
                                             : v1::ExitRecord::CANCELLED_BY_USER);
  exit->set_signal(SIGTERM);
  exit->set_reason(stop.gang_ended() + stop.preempted() + stop.resized());
}

// Returns whether the pod has something new to report.
bool GangProperties::Advance(Machine&, Pod& pod, bool faults) {
  v1::ExitRecord* exit = pod.report.mutable_exit();
  const auto over = [&] {
    const auto kind = exit->kind();
    pod.phase = Phase::kOver;
    pod.report.set_state(kind == v1::ExitRecord::CANCELLED_BY_USER                  ? v1::CANCELLED
                         : kind == v1::ExitRecord::PREEMPTED_BY_JOB                 ? v1::PREEMPTED
                         : kind == v1::ExitRecord::LEFT_GANG                        ? v1::COMPLETED
                         : kind == v1::ExitRecord::EXITED && exit->exit_code() == 0 ? v1::COMPLETED
                                                                                    : v1::FAILED);
    return true;
  };
  switch (pod.phase) {
    case Phase::kPreparing:
    case Phase::kReady:
      if (pod.stop.job() != 0) {
        Leave(pod);
        return over();
      }
      if (faults && Chance(4)) {
        exit->set_kind(v1::ExitRecord::START_FAILED);
        exit->set_reason("no room");
        return over();
      }
      if (pod.phase == Phase::kReady) break;
      if (pod.gang) {
        pod.phase = Phase::kReady;
        pod.report.set_ready(true);
      } else {
        pod.phase = Phase::kRunning;
        pod.report.set_state(v1::RUNNING);
      }
      break;
    case Phase::kRunning:
      if (faults && pod.stop.job() == 0 && Chance(60)) {
        pod.report.clear_exit();
        return true;  // it goes on
      }
      exit->set_started_us(clock_.Wall() - 1000);
      exit->set_ended_us(clock_.Wall());
      if (pod.stop.job() != 0 && Chance(90)) {
        Leave(pod);
      } else {
        exit->set_kind(v1::ExitRecord::EXITED);
        exit->set_exit_code(faults && Chance(15) ? 3 : 0);
      }
      pod.phase = Phase::kEnded;
      pod.report.set_state(v1::COMPLETING);
      return true;
    case Phase::kEnded: return over();
    case Phase::kOver: return true;  // until it is acknowledged
  }
  if (!pod.report.exit().kind()) pod.report.clear_exit();
  return true;
}

void GangProperties::Progress(const std::string& name, Machine& node, bool faults) {
  std::vector<Key> keys;
  for (const auto& [key, pod] : node.pods) keys.push_back(key);
  for (const Key& key : keys) {
    const auto it = node.pods.find(key);
    if (it == node.pods.end() || (faults && Chance(40))) continue;
    Pod& pod = it->second;
    if (!Advance(node, pod, faults)) continue;
    if (pod.phase == Phase::kReady && node.connected) {
      were_ready_[{std::get<0>(key), std::get<1>(key)}].insert(std::get<2>(key));
    }
    Tell(name, v1::AttemptReport(pod.report));
  }
}

void GangProperties::Check() {
  if (parts_percent_ > 0) CheckParts();
  std::map<std::string, std::set<uint64_t>> held;  // jobs by node
  std::map<std::string, int64_t> gpus;
  for (const auto& [id, job] : state_->jobs()) {
    if (job.state == v1::PENDING) {
      EXPECT_TRUE(job.pods.empty());
    } else if (!IsElastic(job.gang)) {
      EXPECT_EQ(job.pods.size(), submitted_.at(id).pods());
    } else if (HoldsResources(job)) {
      const auto there = std::count_if(job.pods.begin(), job.pods.end(), HoldsRoom);
      EXPECT_GE(there, 1) << id;
      EXPECT_LE(there, job.gang.pods()) << id;
      std::set<std::string> nodes;
      for (const PodRow& pod : job.pods) {
        EXPECT_TRUE(!HoldsRoom(pod) || nodes.insert(pod.node).second) << id << " has two pods on " << pod.node;
      }
    }
    const auto view = sched::core::InspectJob(state_->scheduler(), id);
    if (HoldsResources(job)) {
      ASSERT_TRUE(view);
      size_t stay = 0;
      for (const PodRow& pod : job.pods) {
        if (!HoldsRoom(pod)) continue;
        held[pod.node].insert(id);
        gpus[pod.node] += job.needs.gpus;
        stay += std::none_of(view->leaving.begin(), view->leaving.end(),
                             [&](const auto& place) { return place.node == pod.node; });
      }
      // A job that leaves gives its room back as a whole.
      const bool leaves = view->phase == sched::core::JobPhase::kStopping;
      EXPECT_TRUE(leaves || view->pods == stay)
          << "job " << id << " has " << stay << " pods, and " << view->pods << " for the scheduler";
      EXPECT_GE(static_cast<int>(view->phase), static_cast<int>(sched::core::JobPhase::kRunning)) << id;
    } else if (job.state == v1::PENDING) {
      ASSERT_TRUE(view) << "job " << id << " waits, and the scheduler does not know it";
      EXPECT_LT(static_cast<int>(view->phase), static_cast<int>(sched::core::JobPhase::kRunning)) << id;
    } else {
      EXPECT_FALSE(view) << "job " << id << " holds nothing any more";
    }
  }
  for (const auto& [name, machine] : machines_) {
    EXPECT_LE(gpus[name], kGpus);
    for (const uint64_t id : sched::core::RunningOn(state_->scheduler(), name)) {
      EXPECT_TRUE(held[name].contains(id)) << "job " << id << " holds room on " << name;
    }
    // What runs on this machine belongs to an attempt that the controller knows, or is being stopped.
    std::set<uint32_t> used;
    for (const auto& [key, pod] : machine.pods) {
      CheckMembers(machine, key, pod);
      if (pod.phase != Phase::kRunning) continue;
      for (uint32_t i = 0; i < kGpus; ++i) {
        if ((pod.placement.gpu_mask() >> i & 1) == 0 || !machine.connected) continue;
        const bool free = used.insert(i).second;
        EXPECT_TRUE(free || pod.stop.job() != 0 || parts_percent_ > 0)
            << "GPU " << i << " of " << name << " is used twice";
      }
    }
  }
}

void GangProperties::AskForParts(v1::Resources* resources) {
  constexpr const char* kProfiles[] = {"1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb"};
  resources->set_gpus(0);
  switch (Random(3)) {
    case 0:
      resources->set_gpu_milli(static_cast<uint32_t>(200 + 100 * Random(5)));
      resources->set_gpu_sharing(Chance(30) ? v1::GPU_TIME_SLICE : v1::GPU_MPS);
      break;
    case 1: resources->set_mig_profile(kProfiles[Random(4)]); break;
    default: resources->set_gpu_memory_bytes(static_cast<uint64_t>(5 + Random(35)) << 30); break;
  }
}

void GangProperties::CheckParts() {
  namespace core = sched::core;
  struct Gpu {
    uint32_t milli = 0;
    int slices = 0;
    std::set<std::string> ways, users;
  };
  std::map<std::pair<std::string, int>, Gpu> gpus;
  const core::mig::Model model = core::mig::FindModel("h100-80gb");
  for (const auto& [id, job] : state_->jobs()) {
    if (!HoldsResources(job)) continue;
    for (const PodRow& pod : job.pods) {
      if (!HoldsRoom(pod)) continue;
      EXPECT_EQ(std::popcount(pod.gpu_mask), 1);
      Gpu& gpu = gpus[{pod.node, std::countr_zero(pod.gpu_mask)}];
      gpu.milli += MilliOf(pod, "h100-80gb");
      const bool cut = !pod.mig_profile.empty();
      if (cut) {
        const int slices = core::mig::At(model, core::mig::FindProfile(pod.mig_profile), pod.mig_start, 0);
        EXPECT_NE(slices, 0);
        EXPECT_EQ(gpu.slices & slices, 0) << "job " << id << " on " << pod.node;
        gpu.slices |= slices;
      } else if (pod.gpu_milli > 0) {
        gpu.users.insert(job.user);
      }
      const std::string way = cut                                           ? "instance"
                              : pod.gpu_milli == 0                          ? "whole"
                              : job.needs.gpu_sharing == v1::GPU_TIME_SLICE ? "time"
                                                                            : "mps";
      gpu.ways.insert(way);
      ++parts_[way];
      EXPECT_EQ(cut, std::countr_zero(pod.gpu_mask) < static_cast<int>(kGpus / 2)) << "only these are in MIG mode";
    }
  }
  for (const auto& [where, gpu] : gpus) {
    EXPECT_LE(gpu.milli, 1000u) << where.first << " " << where.second;
    EXPECT_EQ(gpu.ways.size(), 1u) << where.first << " " << where.second;
    EXPECT_LE(gpu.users.size(), 1u) << where.first << " " << where.second;
  }
  for (const core::NodeRoom& room : core::Nodes(state_->scheduler())) {
    for (int i = 0; i < room.spec->gpus; ++i) {
      const auto used = gpus.find({room.spec->name, i});
      if (used == gpus.end()) continue;
      EXPECT_LE(room.room->free_milli[static_cast<size_t>(i)], 1000 - static_cast<int>(used->second.milli))
          << room.spec->name << " " << i;
      EXPECT_EQ(room.room->sliced[static_cast<size_t>(i)] & used->second.slices, used->second.slices);
    }
  }
}

void GangProperties::CheckMembers(const Machine& machine, const Key& key, const Pod& pod) {
  const auto it = state_->jobs().find(std::get<0>(key));
  if (it == state_->jobs().end() || it->second.attempt != std::get<1>(key) || !machine.connected) return;
  const JobRow& job = it->second;
  const bool runs = job.state == v1::RUNNING && !job.cancelled && job.stopping.empty() && job.ending == Ending::kNone;
  if (!IsElastic(job.gang) || !runs || pod.phase != Phase::kRunning) return;
  std::set<uint32_t> members;
  for (const PodRow& row : job.pods) {
    if (IsMember(job, row)) members.insert(row.pod);
  }
  const PodRow& row = job.pods.at(std::get<2>(key));
  EXPECT_EQ(pod.members, members) << "job " << job.id << ", pod " << row.pod << ", " << static_cast<int>(row.membership)
                                  << " " << v1::JobState_Name(row.state) << (row.ready ? " ready" : "");
}

void GangProperties::Step() {
  const std::string name = "n" + std::to_string(Random(kNodes));
  Machine& node = machines_[name];
  const int what = Random(100);
  clock_.AdvanceMicros(Random(most_micros_));
  if (what < 12 && state_->jobs().size() < 12) {
    SubmitOne();
  } else if (what < 70) {
    for (auto& [n, machine] : machines_) Progress(n, machine, true);
  } else if (what < 78) {
    if (state_->jobs().empty()) return;
    auto it = state_->jobs().begin();
    std::advance(it, Random(static_cast<int>(state_->jobs().size())));
    if (Chance(40)) CancelJob(it->first, owners_.at(it->first));
  } else if (what < 84) {
    if (node.connected) {
      node.connected = false;
      Transaction([&] {
        state_->Disconnected(name);
        return 0;
      });
    } else {
      Connect(name);
    }
  } else if (what < 88) {  // the host is restarted
    for (auto it = node.pods.begin(); it != node.pods.end();) {
      // An end that is in the journal survives.
      it = it->second.phase == Phase::kOver ? std::next(it) : node.pods.erase(it);
    }
    ++node.boot;
    Connect(name);
  } else if (what < 90) {  // the agent loses its journal, and what ran ends
    node.pods.clear();
    Connect(name);
  } else if (what < 95) {
    if (node.connected || state_->nodes().at(name).row.lost) return;
    // After its lease a node ends the pods of gangs by itself.
    for (auto it = node.pods.begin(); it != node.pods.end();) {
      it = it->second.gang && it->second.phase < Phase::kEnded ? node.pods.erase(it) : std::next(it);
    }
    for (auto& [key, pod] : node.pods) pod.orphan = pod.gang;
    Lose(name);
  } else {
    for (auto& [n, machine] : machines_) machine.connected = false;
    sent_.clear();
    Restart();
    sent_.clear();
    for (auto& [n, machine] : machines_) {
      if (Chance(80)) Connect(n);
    }
  }
  Deliver();
  // While a node is away, what it knows is not what the controller knows.
  Check();
}

void GangProperties::Live(uint32_t first, uint32_t count) {
  for (uint32_t seed = first; seed < first + count && !HasFailure(); ++seed) {
    machines_.clear();
    submitted_.clear();
    were_ready_.clear();
    Forget();
    LiveOne(seed, 300);
  }
}

void GangProperties::LiveOne(uint32_t seed, int steps) {
  random_.seed(seed);
  for (int i = 0; i < kNodes; ++i) Connect("n" + std::to_string(i));
  for (int i = 0; i < steps && !HasFailure(); ++i) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ", step " + std::to_string(i));
    Step();
  }
  // Now nothing fails any more.
  for (int i = 0; i < 2000 && !state_->jobs().empty() && !HasFailure(); ++i) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ", end " + std::to_string(i));
    for (auto& [name, machine] : machines_) {
      if (!machine.connected) Connect(name);
      Progress(name, machine, false);
    }
    clock_.AdvanceSeconds(30);
    Transaction([] { return 0; });
    Deliver();
    Check();
  }
  for (const auto& [id, job] : state_->jobs()) {
    ADD_FAILURE() << "seed " << seed << ": job " << id << " does not end: " << v1::JobState_Name(job.state) << " "
                  << job.reason;
  }
  for (const auto& [id, gang] : submitted_) {
    const v1::JobInfo info = InfoOf(id);
    EXPECT_TRUE(IsEnd(info.state()));
    failed_ += info.state() == v1::FAILED;
    if (info.state() == v1::FAILED && gang.pods() > 1) {
      EXPECT_NE(info.reason(), "") << "job " << id;
    }
  }
}

TEST_F(GangProperties, HoldInRandomLives) {
  Live(1, 8);
  // The lives were worth looking at.
  EXPECT_GT(started_, 500);
  EXPECT_GT(went_, 200);
  EXPECT_GT(again_, 30);
  EXPECT_GT(failed_, 20);
}

TEST_F(GangProperties, HoldForJobsThatChangeTheirSize) {
  elastic_percent_ = 80;
  most_micros_ = 100'000'000;  // a gang to which a pod could not be added does not grow for some minutes
  settings_.start_micros = 3600ll * 1'000'000;  // its pods get ready in steps of that length
  Live(100, 4);
  EXPECT_GT(joined_, 8);
  EXPECT_GT(left_, 8);
}

TEST_F(GangProperties, HoldForPartsOfGpus) {
  parts_percent_ = 85;
  Live(200, 5);
  for (const char* way : {"whole", "instance", "mps", "time"}) EXPECT_GT(parts_[way], 50) << way;
}

}  // namespace
}  // namespace vrun::control
