// SPDX-License-Identifier: Apache-2.0
#include "node/task/job_link.h"

#include <sys/wait.h>

#include <optional>
#include <utility>

#include "base/escape.h"
#include "base/log.h"
#include "node/gang/gang.h"
#include "node/gang/gang_environment.h"
#include "node/task/task_spec.h"

namespace vrun::node {

namespace {
constexpr size_t kMostAsked = 1024;  // processes that one pod may have in others
}

JobLink::JobLink(EventLoop* loop, Events events)
    : events_(std::move(events)),
      socket_(loop, {.on_saved = [this] { events_.on_saved(); },
                     .members = [this] { return Gang(spec_->order(), spec_->node()).MembersJson(); },
                     .on_exec = [this](uint64_t connection, const std::string& pod,
                                       v1::ExecInPod exec) { Ask(connection, pod, std::move(exec)); }}),
      processes_(loop, [this](const v1::ExecInPod& answer) { OnAnswer(answer); }) {}

void JobLink::Begin(const v1::TaskSpec* spec, sandbox::Sandbox* sandbox) {
  spec_ = spec;
  sandbox_ = sandbox;
  socket_.Listen(sandbox->TakeJobSocket());
}

void JobLink::Started() {
  started_ = true;
  for (const v1::ExecInPod& exec : std::exchange(early_, {})) Run(exec);
}

void JobLink::Ask(uint64_t connection, const std::string& name, v1::ExecInPod exec) {
  const Gang gang(spec_->order(), spec_->node());
  const std::optional<uint32_t> target = gang.Find(name);
  exec.set_job(spec_->order().placement().job());
  exec.set_attempt(spec_->order().placement().attempt());
  exec.set_from_pod(pod());
  exec.set_pod(target.value_or(0));
  exec.set_id(next_id_++);
  asked_[exec.id()] = connection;
  v1::ExecInPod refusal = AnswerTo(exec);
  if (!target) {
    refusal.set_problem("the job has no pod " + Escape(name) + ": its pods are " + gang.pods().front().name +
                        (gang.pods().size() > 1 ? " to " + gang.pods().back().name : ""));
    return Deliver(refusal);
  }
  if (asked_.size() > kMostAsked) {
    refusal.set_problem("more than " + std::to_string(kMostAsked) + " processes in other pods at a time");
    return Deliver(refusal);
  }
  if (*target == pod()) return Run(exec);
  v1::TaskDown down;
  *down.mutable_exec() = std::move(exec);
  if (events_.send(down)) return;
  refusal.set_problem("the agent of node " + spec_->node() + " is being restarted: try again");
  Deliver(refusal);
}

void JobLink::OnExec(const v1::ExecInPod& exec) {
  if (!exec.ended()) return Run(exec);
  if (exec.from_pod() == pod()) Deliver(exec);
}

void JobLink::Run(const v1::ExecInPod& exec) {
  if (sandbox_ == nullptr) {
    v1::ExecInPod refusal = AnswerTo(exec);
    refusal.set_problem("pod " + std::to_string(exec.pod()) + " of the job has ended");
    return OnAnswer(refusal);
  }
  if (!started_) return early_.push_back(exec);
  processes_.Start(sandbox_, exec, sandbox_->spec().environment, events_.writer(false), events_.writer(true));
}

void JobLink::MembersChanged() {
  if (sandbox_ == nullptr) return;
  const v1::StartAttempt& order = spec_->order();
  const Gang gang(order, spec_->node());
  for (const sandbox::RunFile& file : GangFiles(order, gang)) {
    if (Status written = sandbox_->Replace(file); !written) LogWarning("{}", written.error().message());
  }
  if (Status added = sandbox_->AddHosts(gang.HostsLines()); !added) LogWarning("{}", added.error().message());
  socket_.TellMembers();
}

void JobLink::OnControl() {
  if (sandbox_ == nullptr) return;  // its end was known before
  for (const sandbox::ProcessEnd& end : sandbox_->TakeExecEnds()) processes_.OnEnd(*sandbox_, end);
}

void JobLink::OnAnswer(const v1::ExecInPod& answer) {
  if (answer.from_pod() == pod()) return Deliver(answer);
  v1::TaskDown down;
  *down.mutable_exec() = answer;
  if (!events_.send(down)) unsent_.push_back(std::move(down));
}

void JobLink::Connected() {
  std::vector<v1::TaskDown> unsent = std::exchange(unsent_, {});
  for (v1::TaskDown& down : unsent) {
    if (!events_.send(down)) unsent_.push_back(std::move(down));
  }
}

void JobLink::Deliver(const v1::ExecInPod& answer) {
  const auto asked = asked_.extract(answer.id());
  if (asked.empty()) return;
  const int status = answer.wait_status();
  if (!answer.problem().empty()) return socket_.Answer(asked.mapped(), "PROBLEM", answer.problem());
  if (WIFSIGNALED(status)) return socket_.Answer(asked.mapped(), "SIGNALED", std::to_string(WTERMSIG(status)));
  socket_.Answer(asked.mapped(), "EXITED", std::to_string(WEXITSTATUS(status)));
}

void JobLink::End() {
  if (sandbox_ == nullptr) return;
  sandbox_ = nullptr;
  const std::string problem = "pod " + std::to_string(pod()) + " of the job has ended";
  processes_.EndAll(problem);
  for (const v1::ExecInPod& exec : std::exchange(early_, {})) Run(exec);
  asked_.clear();
  socket_.Close();
}

}  // namespace vrun::node
