// SPDX-License-Identifier: Apache-2.0
#include "node/task/pod_processes.h"

#include <optional>
#include <utility>

#include "node/gang/gang.h"
#include "node/gang/gang_environment.h"

namespace vrun::node {

PodProcesses::~PodProcesses() {
  for (auto& [number, process] : processes_) Unwatch(&process);
}

void PodProcesses::Unwatch(Process* process) {
  if (std::exchange(process->waits, false)) loop_->Remove(process->start.get());
}

void PodProcesses::Start(sandbox::Sandbox* sandbox, const v1::ExecInPod& exec,
                         const std::vector<std::string>& environment, UniqueFd output, UniqueFd error) {
  const int32_t number = next_++;
  Process& process = processes_[number];
  process.answer = AnswerTo(exec);
  const std::vector<std::string> argv(exec.argv().begin(), exec.argv().end());
  process.name = argv.empty() ? "" : argv[0];
  std::vector<std::string> its = environment;
  for (const std::string& e : exec.environment()) {
    if (const size_t equals = e.find('='); equals != std::string::npos) {
      SetVariable(&its, e.substr(0, equals), e.substr(equals + 1));
    }
  }
  Result<UniqueFd> start = sandbox->Exec(number, argv, its, exec.directory(), output.get(), error.get());
  Status watched;
  if (start) {
    process.start = *std::move(start);
    watched =
        loop_->Add(process.start.get(), EPOLLIN, [this, sandbox, number](uint32_t) { OnStart(*sandbox, number); });
    process.waits = watched.has_value();
  } else {
    watched = tl::unexpected(start.error());
  }
  if (watched) return;
  process.answer.set_problem(watched.error().message());
  Answer(number);
}

void PodProcesses::OnStart(const sandbox::Sandbox& sandbox, int32_t number) {
  const auto it = processes_.find(number);
  if (it == processes_.end()) return;
  Unwatch(&it->second);
  const std::optional<sandbox::StartFailure> failure = sandbox.FinishExec(it->second.start.get(), it->second.name);
  if (!failure) return;
  it->second.answer.set_problem(failure->reason);
  it->second.answer.set_wait_status(failure->kind == sandbox::StartFailure::Kind::kNotFound ? 127 << 8 : 126 << 8);
  Answer(number);
}

void PodProcesses::OnEnd(const sandbox::Sandbox& sandbox, const sandbox::ProcessEnd& end) {
  const auto it = processes_.find(end.number);
  if (it == processes_.end()) return;
  // What it wrote when it could not be executed is there, although the loop may not have come to it yet.
  if (it->second.waits) OnStart(sandbox, end.number);
  if (!processes_.contains(end.number)) return;
  it->second.answer.set_wait_status(end.wait_status);
  Answer(end.number);
}

void PodProcesses::Answer(int32_t number) {
  auto process = processes_.extract(number);
  Unwatch(&process.mapped());
  answer_(process.mapped().answer);
}

void PodProcesses::EndAll(const std::string& problem) {
  while (!processes_.empty()) {
    processes_.begin()->second.answer.set_problem(problem);
    Answer(processes_.begin()->first);
  }
}

}  // namespace vrun::node
