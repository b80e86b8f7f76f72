// SPDX-License-Identifier: Apache-2.0
// vrun
#include "cli/run/command_run.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/random.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/config.h"
#include "base/escape.h"
#include "base/files.h"
#include "cli/base/exit_status.h"
#include "cli/base/home_connection.h"
#include "cli/base/output.h"
#include "cli/base/table.h"
#include "cli/base/terminal.h"
#include "cli/isolation/secret_options.h"
#include "cli/request/job_command.h"
#include "cli/request/named_descriptors.h"
#include "cli/request/named_paths.h"
#include "cli/run/explain_io.h"
#include "cli/run/run_session.h"
#include "cli/run/status_json.h"

namespace vrun::cli {
namespace {

constexpr std::string_view kHelp =
    "usage: vrun [options] [--] COMMAND [ARG...]\n"
    "Runs COMMAND on a node as if it ran here: same files, directory, environment, terminal and exit status.\n"
    "Options end at the first word that is none, or at --.\n\n";

constexpr std::string_view kHelpEnd =
    "\nexit status: the command's own; 128+n when signal n ended it; 2 wrong usage; 124 time limit; 125 could not be\n"
    "started; 126 not executable; 127 not found; 137 out of memory; 255 its result is unknown (the job id is printed)\n"
    "\nenvironment: VRUN_DIR one directory for configuration, state and socket; VRUN_RESUME_SECONDS how long a lost "
    "home\n"
    "daemon is tried again (600)\n"
    "\nsee also: vbatch, vctl\n";

int Usage(const std::string& text) {
  std::fprintf(stderr, "vrun: %s\n", text.c_str());
  return kExitUsage;
}

// The terminal understands "erase to the end of the line".
bool CanUpdateLines() {
  const char* term = std::getenv("TERM");
  return ::isatty(2) == 1 && term != nullptr && *term != 0 && std::strcmp(term, "dumb") != 0;
}

Status NameDescriptors(const RunOptions& options, RunSession::Options* run) {
  VRUN_ASSIGN(std::vector<NamedDescriptor> named, FindNamedDescriptors(options.command));
  if (!named.empty() && run->request.spec().has_gang()) {
    return Error(Code::kInvalid,
                 Escape(named[0].word) + ": the processes of a job cannot share its content: name a file");
  }
  if (!named.empty() && options.spec.scheduling().requeue()) {
    return Error(Code::kInvalid, Escape(named[0].word) +
                                     ": --requeue: a second start cannot read its "
                                     "content again: name a file");
  }
  for (const NamedDescriptor& d : named) {
    v1::Descriptor* out = run->request.mutable_spec()->mutable_command()->add_descriptors();
    out->set_number(static_cast<uint32_t>(d.number));
    out->set_output(d.output);
    run->descriptors.push_back(d.number);
  }
  return {};
}

Result<RunSession::Options> MakeRun(const RunOptions& options, UniqueFd* null) {
  RunSession::Options run;
  VRUN_ASSIGN(std::string root, ConfiguredRoot());
  VRUN_ASSIGN(run.request, MakeRequest(options, root));
  run.request.set_quiet(options.quiet);
  run.request.set_progress(!options.quiet);
  run.request.set_explain_io(options.explain_io);
  run.quiet = options.quiet;
  run.updating_line = CanUpdateLines();
  VRUN_TRY(NameDescriptors(options, &run));
  bool stdin_terminal = ::isatty(0) == 1;
  // `vrun train.py &`: the keyboard belongs to the shell. A local program would stop when it reads; ours gets no input.
  if (options.no_stdin || (stdin_terminal && InBackground(0))) {
    VRUN_ASSIGN(*null, OpenFile("/dev/null", O_RDONLY));
    run.stdio[0] = null->get();
    stdin_terminal = false;
  }
  // The processes of a gang cannot share a terminal.
  bool terminal = !run.request.spec().has_gang() &&
                  (options.terminal == TerminalWish::kForce ||
                   (options.terminal == TerminalWish::kAuto && stdin_terminal && ::isatty(1) == 1));
  v1::Command* command = run.request.mutable_spec()->mutable_command();
  command->set_terminal(terminal);
  if (terminal) *command->mutable_terminal_size() = CurrentTerminalSize();
  if (terminal && options.spec.scheduling().requeue()) {
    return Error(Code::kInvalid, "--requeue: a command with a terminal cannot be started again: add --no-tty");
  }
  if (options.spec.scheduling().retries_size() > 0 && (terminal || !run.descriptors.empty())) {
    return Error(Code::kInvalid, std::string("--retry: a command with ") +
                                     (terminal ? "a terminal cannot be started again: add --no-tty"
                                               : "/dev/fd/N cannot be started again: name a file"));
  }
  run.local_terminal = terminal && stdin_terminal;
  v1::Scheduling* scheduling = run.request.mutable_spec()->mutable_scheduling();
  run.hangup_disconnects = scheduling->on_disconnect() != v1::ON_DISCONNECT_UNSPECIFIED;
  // A user whose terminal is gone will not look for an unnamed command.
  const bool transient = terminal && options.spec.name().empty();
  if (!run.hangup_disconnects) {
    scheduling->set_on_disconnect(transient ? v1::ON_DISCONNECT_HANG_UP : v1::ON_DISCONNECT_KEEP);
  }
  if (const char* seconds = std::getenv("VRUN_RESUME_SECONDS")) {
    auto n = ParseNumber(seconds, 1000000);
    if (!n) return std::move(n).error().With("VRUN_RESUME_SECONDS");
    run.resume_limit_us = static_cast<int64_t>(*n) * 1000 * 1000;
  }
  return run;
}

int Report(const RunOptions& options, const RunOutcome& outcome) {
  if (!outcome.reason.empty()) std::fprintf(stderr, "vrun: %s\n", outcome.reason.c_str());
  if (options.explain_io && outcome.finished) std::fputs(FormatIo(*outcome.finished).c_str(), stderr);
  if (!options.status_json.empty()) {
    Status written = WriteStatus(options.status_json, FormatStatus(outcome));
    if (!written) std::fprintf(stderr, "vrun: --status-json: %s\n", written.error().message().c_str());
  }
  return outcome.exit_status;
}

RunOutcome NotStarted(const Error& error) {
  RunOutcome out;
  out.exit_status = kExitNotStarted;
  out.state = v1::FAILED;
  out.reason = error.message();
  return out;
}

}  // namespace

Result<std::string> ConfiguredRoot() {
  VRUN_ASSIGN(Places places, FindPlaces());
  auto config = ReadConfig(places.config_file);
  if (config) return config->root;
  // Home reports a missing configuration and says what to do.
  if (config.error().code() == Code::kNotFound) return std::string("/");
  return std::move(config).error();
}

Result<std::string> NewRequestId() {
  unsigned char bytes[16];
  if (::getrandom(bytes, sizeof bytes, 0) != sizeof bytes) return ErrnoError("getrandom");
  std::string out;
  for (unsigned char b : bytes) {
    out.push_back("0123456789abcdef"[b >> 4]);
    out.push_back("0123456789abcdef"[b & 15]);
  }
  return out;
}

Result<v1::Run> MakeRequest(const RunOptions& options, const std::string& root) {
  v1::Run run;
  *run.mutable_spec() = options.spec;
  VRUN_ASSIGN(*run.mutable_spec()->mutable_command(), CollectCommand(options, root));
  VRUN_ASSIGN(const auto live, CollectLivePaths(options.live, run.spec().command().directory(), root));
  run.mutable_spec()->mutable_live_paths()->Assign(live.begin(), live.end());
  v1::Scheduling* scheduling = run.mutable_spec()->mutable_scheduling();
  scheduling->set_estimate_s(scheduling->limit_s());
  if (!options.expose.empty()) {
    VRUN_ASSIGN(std::string directory, CurrentDirectory());
    for (const std::string& path : options.expose) run.add_expose(InRoot(Absolute(path, directory), root));
  }
  VRUN_TRY(ApplyShape(options.gang, options.command.empty() ? "" : options.command[0], run.mutable_spec()));
  ApplyNotify(options.notify, run.mutable_spec());
  run.set_label(options.gang.label);
  run.set_input_rank(options.gang.input_rank);
  AddNamedPaths(options.script, root, &run);
  run.set_snapshot(Escape(options.snapshot));
  VRUN_TRY(CheckSecretsAreHere(run.spec()));
  VRUN_ASSIGN(*run.mutable_request_id(), NewRequestId());
  return run;
}

Result<int> TestOnly(v1::Run run, const char* program) {
  VRUN_ASSIGN(HomeConnection home, HomeConnection::Make());
  v1::ClientMessage message;
  run.set_test_only(true);
  *message.mutable_run() = std::move(run);
  VRUN_ASSIGN(FirstAnswer first, SendAndReceive(home, message, {}, true, false));
  for (v1::HomeMessage answer = std::move(first.message); !answer.has_done();) {
    if (answer.has_error()) return FromWire(answer.error());
    if (answer.has_notice()) std::fprintf(stderr, "%s: %s\n", program, SafeLine(answer.notice().text()).c_str());
    VRUN_ASSIGN(answer, ReceiveMessage(first.socket.get(), false));
  }
  return 0;
}

int RunMain(std::span<const std::string> words) {
  auto options = ParseRun(words);
  if (!options) return Usage(options.error().message());
  if (options->help) {
    Print(std::string(kHelp) + FormatOptions(RunTable().options) + std::string(kHelpEnd));
    return 0;
  }
  if (options->version) {
    Print("vrun " VRUN_VERSION "\n");
    return 0;
  }
  if (options->command.empty()) return Usage("no command: name one: `vrun --help` shows how");
  if (!options->status_json.empty()) {
    Status fine = CheckStatusTarget(options->status_json);
    if (!fine) return Usage(fine.error().message());
  }
  if (!options->quiet) {
    for (const std::string& note : options->notes) std::fprintf(stderr, "vrun: %s\n", note.c_str());
  }
  // A closed reader of our messages must not end us.
  ::signal(SIGPIPE, SIG_IGN);
  UniqueFd null;
  auto run = MakeRun(*options, &null);
  if (!run) return Report(*options, NotStarted(run.error()));
  if (options->test_only) {
    auto tested = TestOnly(std::move(run->request), "vrun");
    return tested ? *tested : Report(*options, NotStarted(tested.error()));
  }
  auto home = HomeConnection::Make();
  if (!home) return Report(*options, NotStarted(home.error()));
  RunOutcome outcome;
  {
    RunSession attached(*home, *std::move(run));
    outcome = attached.Go();
  }
  return Report(*options, outcome);
}

}  // namespace vrun::cli
