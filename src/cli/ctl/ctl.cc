// SPDX-License-Identifier: Apache-2.0
#include "cli/ctl/ctl.h"

#include "base/escape.h"
#include "cli/array/job_ids.h"
#include "cli/isolation/ctl_secret.h"
#include "cli/usage/ctl_usage.h"

namespace vrun::cli {
namespace {

constexpr const CtlCommand* kCommands[] = {
    &kCtlUp,     &kCtlDown,   &kCtlStatus,      &kCtlDoctor, &kCtlNodes,   &kCtlGpus,
    &kCtlTop,    &kCtlCache,  &kCtlSnapshot,    &kCtlEnv,    &kCtlSecret,  &kCtlJobs,
    &kCtlJob,    &kCtlLogs,   &kCtlCancel,      &kCtlHold,   &kCtlRelease, &kCtlRequeue,
    &kCtlWait,   &kCtlQueue,  &kCtlWhy,         &kCtlQuota,  &kCtlUsage,   &kCtlAccounting,
    &kCtlDrain,  &kCtlResume, &kCtlMaintenance, &kCtlUser,   &kCtlNode,    &kCtlLogin,
    &kCtlWhoAmI, &kCtlToken,  &kCtlDashboard,   &kCtlAdmin,  &kCtlSim,     &kCtlCompletion};

std::string GeneralHelp() {
  std::string out = "usage: vctl COMMAND [options] [arguments]\n\n";
  for (const CtlCommand* c : kCommands) {
    std::string left = "  " + std::string(c->name) + (c->arguments.empty() ? "" : " ") + std::string(c->arguments);
    left.resize(std::max<size_t>(left.size() + 2, 34), ' ');
    out += left + std::string(c->summary) + "\n";
  }
  return out + "\n" + FormatOptions(CtlCommonOptions());
}

const CtlCommand* FindCommand(std::string_view name) {
  for (const CtlCommand* c : kCommands) {
    if (c->name == name) return c;
  }
  return nullptr;
}

}  // namespace

std::span<const CtlCommand* const> CtlCommands() { return kCommands; }

Status NoOperands(const CtlInvocation& invocation) {
  if (invocation.words.operands.empty()) return {};
  return Error(Code::kInvalid, Escape(invocation.words.operands[0]) + ": unexpected: this command takes no arguments");
}

Status SomeJobs(const CtlInvocation& invocation) {
  if (invocation.words.operands.empty()) {
    return Error(Code::kInvalid, "no job id: name one: `vctl jobs` lists them");
  }
  for (const std::string& word : invocation.words.operands) {
    auto jobs = ParseJobs(word);
    if (!jobs) return std::move(jobs).error();
  }
  return {};
}

Status OneJob(const CtlInvocation& invocation) {
  VRUN_TRY(SomeJobs(invocation));
  if (invocation.words.operands.size() == 1) {
    auto one = ParseOneJob(invocation.words.operands[0]);
    return one ? Status() : std::move(one).error();
  }
  return Error(Code::kInvalid, Escape(invocation.words.operands[1]) + ": unexpected: name one job");
}

int CtlMain(std::span<const std::string> words) {
  if (words.empty()) return UsageError("no command: name one: `vctl --help` lists them");
  const std::string& first = words[0];
  if (first == "-h" || first == "--help" || first == "help") {
    const CtlCommand* c = words.size() > 1 ? FindCommand(words[1]) : nullptr;
    Print(c == nullptr ? GeneralHelp() : CommandHelp(*c));
    return 0;
  }
  if (first == "--version") {
    Print("vctl " VRUN_VERSION "\n");
    return 0;
  }
  // Common options may come first: `vctl -o json jobs`.
  OptionTable table{{}, {}, CtlCommonOptions(), true};
  auto parsed = ParseWords(table, words);
  if (!parsed) return UsageError(parsed.error().message());
  if (parsed->operands.empty()) return UsageError("no command: name one: `vctl --help` lists them");
  const CtlCommand* command = FindCommand(parsed->operands[0]);
  if (command == nullptr) {
    std::vector<std::string_view> names;
    for (const CtlCommand* c : kCommands) names.push_back(c->name);
    std::string_view nearest = Nearest(parsed->operands[0], names);
    std::string hint = nearest.empty() ? "`vctl --help` lists them" : "did you mean " + std::string(nearest) + "?";
    return UsageError(Escape(parsed->operands[0]) + ": unknown command: " + hint);
  }
  size_t before = words.size() - parsed->operands.size();
  std::vector<std::string> rest(words.begin(), words.begin() + static_cast<ptrdiff_t>(before));
  rest.insert(rest.end(), parsed->operands.begin() + 1, parsed->operands.end());
  return RunCommand(*command, rest);
}

}  // namespace vrun::cli
