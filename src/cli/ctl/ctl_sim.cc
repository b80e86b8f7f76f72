// SPDX-License-Identifier: Apache-2.0
// vctl sim: executes vrun-sim. The simulator is a separate program, so that the CLI stays small.
#include <sys/mman.h>
#include <unistd.h>

#include <vector>

#include "base/clock.h"
#include "base/escape.h"
#include "base/files.h"
#include "cli/base/daemon_process.h"
#include "cli/ctl/ctl.h"
#include "cli/ctl/sim_command.h"
#include "cli/usage/cluster_history.h"

namespace vrun::cli {
namespace {

constexpr int kOnlyHere[] = {kFromCluster, kSince, kSaveTrace, kTeam, kNodeChange};

bool IsOnlyHere(int option) {
  return std::find(std::begin(kOnlyHere), std::end(kOnlyHere), option) != std::end(kOnlyHere);
}

// The rest is validated by vrun-sim.
Status Validate(const CtlInvocation& invocation) {
  if (!invocation.Has(kFromCluster)) {
    for (const ParsedOption& option : invocation.words.options) {
      if (!IsOnlyHere(option.spec->id)) continue;
      return Error(Code::kInvalid, "--" + std::string(option.spec->long_name) + " needs --from-cluster");
    }
    return {};
  }
  if (!invocation.words.operands.empty()) return Error(Code::kInvalid, "--from-cluster is the trace: name no other");
  for (const auto& [id, instead] :
       {std::pair(kFrom, "--since"), std::pair(kNodes, "--node-change"), std::pair(kCluster, "--node-change"),
        std::pair(kNodesFile, "--node-change"), std::pair(kPresentCluster, "nothing"),
        std::pair(kPresentTeams, "nothing"), std::pair(kLabel, "nothing")}) {
    if (!invocation.Has(id)) continue;
    return Error(Code::kInvalid,
                 std::string("--from-cluster knows the cluster as it is: write ") + instead + " instead");
  }
  if (invocation.Has(kTeam) && invocation.Has(kTeams)) {
    return Error(Code::kInvalid, "--teams replaces all teams, --team changes some: leave one out");
  }
  VRUN_TRY(ParseSince(invocation.Value(kSince).value_or("14d"), WallMicros()).map([](int64_t) {}));
  return {};
}

// A file without a name, which the program that we become reads and nobody has to remove.
Result<std::string> Unnamed(const char* what, const std::string& text) {
  const int fd = ::memfd_create(what, 0);  // stays open
  if (fd < 0) return ErrnoError(std::string("memory for ") + what);
  VRUN_TRY(WriteAll(fd, text));
  return "/proc/self/fd/" + std::to_string(fd);
}

// Joins repeated options with commas.
std::string Joined(const CtlInvocation& invocation, int id) {
  std::string text;
  for (const ParsedOption& option : invocation.words.options) {
    if (option.spec->id == id) text += (text.empty() ? "" : ",") + option.value;
  }
  return text;
}

std::string OptionWord(const char* name, const std::string& value) { return std::string("--") + name + "=" + value; }

// Adds what vrun-sim is told in place of a trace. The last word is the trace.
Status AddHistory(const CtlInvocation& invocation, std::vector<std::string>* words) {
  const int64_t now = WallMicros();
  history::Span span{0, now};
  VRUN_ASSIGN(span.since_us, ParseSince(invocation.Value(kSince).value_or("14d"), now));
  if (const auto until = invocation.Value(kUntil)) {
    VRUN_ASSIGN(span.until_us, ParseSince(*until, now));
  }
  if (span.since_us >= span.until_us)
    return Error(Code::kInvalid, "it ends before it begins: correct --since or --until");
  VRUN_ASSIGN(const ClusterHistory past, AskClusterHistory(span));
  if (const auto file = invocation.Value(kSaveTrace)) {
    VRUN_TRY(WriteFileAtomic(*file, past.trace, 0600));
  }
  std::vector<history::Part> parts = past.parts;
  std::vector<history::TeamQuota> teams = past.teams;
  VRUN_TRY(history::ChangeParts(Joined(invocation, kNodeChange), &parts));
  VRUN_TRY(history::ChangeTeams(Joined(invocation, kTeam), &teams));
  VRUN_ASSIGN(const std::string cluster_file, Unnamed("cluster", history::TableOf(parts)));
  VRUN_ASSIGN(const std::string teams_file, Unnamed("teams", history::TableOf(teams)));
  words->push_back(OptionWord("cluster", cluster_file));
  if (!invocation.Has(kTeams)) words->push_back(OptionWord("teams", teams_file));
  const bool changed =
      invocation.Has(kPolicy) || invocation.Has(kTeams) || invocation.Has(kTeam) || invocation.Has(kNodeChange);
  if (changed) {
    VRUN_ASSIGN(const std::string cluster, Unnamed("present-cluster", history::TableOf(past.parts)));
    VRUN_ASSIGN(const std::string present, Unnamed("present-teams", history::TableOf(past.teams)));
    words->push_back(OptionWord("present-cluster", cluster));
    words->push_back(OptionWord("present-teams", present));
  }
  words->push_back("--label=the cluster's own history");
  VRUN_ASSIGN(const std::string trace, Unnamed("trace", past.trace));
  words->emplace_back("--");
  words->push_back(trace);
  const std::string note = history::Describe(past.counts);
  const std::string line = "vctl: " + std::to_string(past.counts.jobs) + " jobs since " + FormatRfc3339(span.since_us) +
                           (note.empty() ? "" : "; " + note) + "\n";
  (void)WriteAll(STDERR_FILENO, line);
  return {};
}

Result<int> Run(const CtlInvocation& invocation) {
  VRUN_ASSIGN(const std::string program, FindProgram("vrun-sim"));
  const bool from_cluster = invocation.Has(kFromCluster);
  std::vector<std::string> words{program};
  for (const ParsedOption& option : invocation.words.options) {
    if (IsOnlyHere(option.spec->id) || (from_cluster && option.spec->id == kUntil)) continue;
    words.push_back("--" + std::string(option.spec->long_name));
    if (option.spec->argument == Argument::kRequired) words.back() += "=" + option.value;
  }
  if (from_cluster) {
    VRUN_TRY(AddHistory(invocation, &words));
  } else {
    words.emplace_back("--");
    words.insert(words.end(), invocation.words.operands.begin(), invocation.words.operands.end());
  }
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::execv(program.c_str(), argv.data());
  return ErrnoError("start " + Escape(program));
}

}  // namespace

const CtlCommand kCtlSim = SimCommand(kCtlSimOptions, Validate, Run);

}  // namespace vrun::cli
