// SPDX-License-Identifier: Apache-2.0
// vbatch
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <optional>
#include <utility>

#include "base/command_path.h"
#include "base/config.h"
#include "base/escape.h"
#include "base/files.h"
#include "base/io/stream_progress.h"
#include "cli/base/away_text.h"
#include "cli/base/exit_status.h"
#include "cli/base/home_connection.h"
#include "cli/base/output.h"
#include "cli/base/table.h"
#include "cli/isolation/secret_options.h"
#include "cli/request/command_lookup.h"
#include "cli/request/job_command.h"
#include "cli/request/log_path.h"
#include "cli/request/named_descriptors.h"
#include "cli/request/script_options.h"
#include "cli/run/command_run.h"
#include "cli/run/job_log.h"
#include "jobs/array.h"
#include "jobs/ending.h"

namespace vrun::cli {
namespace {

constexpr size_t kMaxScriptHead = 1u << 20;
constexpr size_t kMaxScript = 4u << 20;  // the same as Slurm's limit

constexpr std::string_view kHelp =
    "usage: vbatch [options] [--] COMMAND [ARG...]\n"
    "       vbatch [options] SCRIPT [ARG...]\n"
    "       vbatch [options] <<EOF ...\n"
    "       vbatch [options] --wrap TEXT\n"
    "Submits COMMAND, prints the job's id and returns. A SCRIPT is a file that begins with #!, or what comes on "
    "standard\n"
    "input; its lines #VRUN and #SBATCH before the first command hold options, which those of the command line "
    "override.\n\n";

int Usage(const std::string& text) {
  std::fprintf(stderr, "vbatch: %s\n", text.c_str());
  return kExitUsage;
}

// A script and how the job gets it.
struct Source {
  std::string name;      // for messages
  std::string text;      // all of it; for a file that the job sees in its root, the first kMaxScriptHead bytes
  bool travels = false;  // sent with the request, because the job's root does not have it
};

Error NoInterpreter(const std::string& name) {
  return Error(Code::kInvalid,
               Escape(name) + ":1: the first line names no interpreter: begin with one, as in #!/bin/sh");
}

// Reads a script that can be read only once, or that lies where the job cannot see it.
Result<Source> ReadStream(int fd, std::string name) {
  Source out{std::move(name), std::string(kMaxScript + 1, 0), true};
  VRUN_ASSIGN(size_t n, ReadUpTo(fd, out.text.data(), out.text.size()));
  if (n > kMaxScript) {
    return Error(Code::kInvalid,
                 Escape(out.name) + ": a script of more than 4 MiB: put it into a file below your root");
  }
  out.text.resize(n);
  return out;
}

// The script that the first word names. nullopt: it is no script.
Result<std::optional<Source>> FindScript(const std::string& path, const std::string& root) {
  UniqueFd place(::open(path.c_str(), O_PATH | O_CLOEXEC));
  struct stat st;
  if (!place || ::fstat(place.get(), &st) != 0 || S_ISDIR(st.st_mode)) return std::optional<Source>();
  const bool regular = S_ISREG(st.st_mode);
  // A bare word is a command unless it is a regular file: no pipe of that name is read.
  if (!regular && path.find('/') == std::string::npos) return std::optional<Source>();
  VRUN_ASSIGN(std::string here, CurrentDirectory());
  // /dev/stdin may link to a file in the root. It is read anyway, because its offset may be anywhere.
  const bool own_place = IsBelowOwnPlace(place.get(), root) || IsOwnPlace(InRoot(Absolute(path, here), root));
  auto fd = OpenFile(path, O_RDONLY);
  if (!fd && regular) return std::optional<Source>();  // a program may be unreadable
  if (!fd) return std::move(fd).error();
  if (regular && !own_place) {
    Source out{path, std::string(kMaxScriptHead, 0)};
    VRUN_ASSIGN(size_t n, ReadUpTo(fd->get(), out.text.data(), out.text.size()));
    out.text.resize(n);
    if (!out.text.starts_with("#!")) return std::optional<Source>();
    return out;
  }
  char head[2] = {};
  if (regular && (!PreadUpTo(fd->get(), head, 2, 0) || std::string_view(head, 2) != "#!")) {
    return std::optional<Source>();  // a program, which cannot be sent along
  }
  VRUN_ASSIGN(Source out, ReadStream(fd->get(), path));
  if (!out.text.starts_with("#!")) return NoInterpreter(path);
  return out;
}

// What will run: the text of --wrap, a script on stdin, a script named by the first word, or a command.
Result<std::optional<Source>> FindSource(const RunOptions& options, const std::string& root) {
  if (!options.wrap.empty()) {
    if (options.command.empty()) return std::optional<Source>();
    return Error(Code::kInvalid, "--wrap: there is a command too: leave one of them out");
  }
  if (options.command.empty() || (!options.after_dashes && options.command[0] == "-")) {
    const bool asked = !options.command.empty();
    if (!asked && (options.after_dashes || ::isatty(STDIN_FILENO) == 1)) {
      return Error(Code::kInvalid, "no command: name one, or a script: `vbatch --help` shows how");
    }
    VRUN_ASSIGN(Source out, ReadStream(STDIN_FILENO, "standard input"));
    if (out.text.empty() && !asked) {
      return Error(Code::kInvalid, "no command, and no script on standard input: `vbatch --help` shows how");
    }
    if (!out.text.starts_with("#!")) return NoInterpreter(out.name);
    return out;
  }
  if (options.after_dashes) return std::optional<Source>();
  return FindScript(options.command[0], root);
}

// Applies the options in the script, then those of the command line again, which win. The command becomes the script's
// path in the job, after its interpreter if the script is not executable (sbatch does not require that bit either).
Status ApplyScript(const Source& source, std::span<const std::string> words, const std::string& root,
                   RunOptions* options) {
  VRUN_ASSIGN(Script script, ParseScript(source.text, source.name));
  if (script.interpreter.empty()) return NoInterpreter(source.name);
  RunOptions merged;
  VRUN_TRY(ApplyOptions(script.options, &merged));
  VRUN_ASSIGN(ParsedWords line, ParseWords(BatchTable(), words));
  VRUN_TRY(ApplyOptions(line.options, &merged));
  if (!merged.wrap.empty())
    return Error(Code::kInvalid, Escape(source.name) + ": --wrap: not in a script: leave it out");
  Status view = CheckView(merged);
  if (!view) return std::move(view).error().With(Escape(source.name));
  Status away = CheckAway(merged);
  if (!away) return std::move(away).error().With(Escape(source.name));
  Status gang = CheckGang(merged);
  if (!gang) return std::move(gang).error().With(Escape(source.name));
  merged.command = std::move(options->command);
  merged.notes = std::move(script.notes);
  merged.notes.insert(merged.notes.end(), line.notes.begin(), line.notes.end());
  *options = std::move(merged);
  options->spec.mutable_command()->set_batch_script(true);
  if (options->command.empty() || options->command[0] == "-") {
    options->command.resize(std::max<size_t>(options->command.size(), 1));
    if (options->spec.name().empty()) options->spec.set_name("vbatch");
  }
  std::string& command = options->command[0];
  if (options->spec.name().empty()) options->spec.set_name(Escape(command.substr(command.rfind('/') + 1)));
  const std::string& interpreter = script.interpreter[0];
  if (options->snapshot.empty() && interpreter.starts_with('/') && !IsInRoot(interpreter, root)) {
    return Error(Code::kNotFound, InterpreterNotFound(source.name, interpreter));
  }
  if (source.travels) {
    command = kScriptPath;
    return {};
  }
  VRUN_ASSIGN(std::string here, CurrentDirectory());
  const bool executable = ::access(command.c_str(), X_OK) == 0;
  command = InRoot(Absolute(command, here), root);
  if (executable) return {};
  options->command.insert(options->command.begin(), script.interpreter.begin(), script.interpreter.end());
  options->script = script.interpreter.size();
  return {};
}

// Finds at once what would make the job end with 126 or 127 hours later.
Status CheckStart(const RunOptions& options, const v1::Run& run, const std::string& root) {
  // Another root, or one in which the jobs before it may have put the command.
  if (!options.snapshot.empty() || ComesAfterOthers(options.spec.scheduling())) return {};
  // Of an array, that of the first element.
  const v1::RunSpec spec =
      run.has_array() ? ElementSpec(run.spec(), run.array(), MinIndex(run.array())) : v1::RunSpec(run.spec());
  const v1::Command& command = spec.command();
  Status status = CheckCommand(command, root);
  const std::string& name = command.argv(0);
  if (status || name.find('/') != std::string::npos || !PathExists(name)) return status;
  return Error(Code::kDenied, Escape(name) +
                                  ": not a script: its first line is not #! and an interpreter: add that line, or give "
                                  "its path if it is a program");
}

// Prints the output until the job ends. Returns the job's status.
Result<int> Follow(const HomeConnection& home, uint64_t job) {
  v1::JobSelection one;
  one.set_job(job);
  VRUN_ASSIGN(LogEnd end, CopyLog(home, one, true));
  int status;
  std::string reason;
  if (end.finished) {
    status = end.finished->exit_status();
    if (status < 0 || status > 255 || (status == 0 && !end.finished->has_record())) status = kExitUnknown;
    reason = SafeLine(end.finished->reason());
  } else {
    VRUN_ASSIGN(v1::JobInfo info, WaitForJob(home, one));
    status = ExitStatus(info);
    reason = EndReason(info);
  }
  // The reason is the last line of the log, unless the log could not be written.
  const std::string line = "vrun: " + reason + "\n";
  if (!reason.empty() && end.last_note != line) std::fputs(line.c_str(), stderr);
  return status;
}

// Prints the id where it cannot be mistaken for the job's output.
void TellId(const RunOptions& options, const std::string& id) {
  const std::string text = options.parsable ? id + "\n" : "Submitted batch job " + id + "\n";
  if (!options.follow) return Print(text);
  if (!options.quiet) std::fputs(text.c_str(), stderr);
}

// What is still to go, on one updating line of a terminal; elsewhere only what the user should act on.
class AwayProgress {
 public:
  explicit AwayProgress(bool quiet) : quiet_(quiet), terminal_(!quiet && ::isatty(STDERR_FILENO) == 1) {}
  ~AwayProgress() { Erase(); }

  void Show(uint64_t job, const v1::AwayState& state) {
    if (quiet_) return;
    if (state.safe()) {
      Erase();
      std::fprintf(stderr, "vbatch: job %s needs nothing of this machine any more: safe to disconnect\n",
                   std::to_string(job).c_str());
      return;
    }
    const std::string left = AwayText(state);
    if (!state.problem().empty() && state.problem() != problem_) {
      Erase();
      std::fprintf(stderr, "vbatch: %s: %s\n", SafeLine(state.problem()).c_str(), left.c_str());
    }
    problem_ = state.problem();
    if (!terminal_) return;
    std::fprintf(stderr, "\r\033[Kvbatch: %s", left.c_str());
    drawn_ = true;
  }
  void Over(uint64_t job, const std::string& reason) {
    Erase();
    if (quiet_) return;
    std::fprintf(stderr, "vbatch: job %s is over%s%s\n", std::to_string(job).c_str(), reason.empty() ? "" : ": ",
                 SafeLine(reason).c_str());
  }

 private:
  void Erase() {
    if (std::exchange(drawn_, false)) std::fputs("\r\033[K", stderr);
  }

  const bool quiet_, terminal_;
  bool drawn_ = false;
  std::string problem_;
};

// Waits until the job needs nothing of this machine. Home may end meanwhile; the next one goes on.
Result<int> WaitUntilAway(const HomeConnection& home, UniqueFd socket, uint64_t job, bool quiet) {
  constexpr useconds_t kAgain = 1'000'000;
  AwayProgress progress(quiet);
  while (socket) {
    auto answer = ReceiveMessage(socket.get(), quiet);
    if (!answer || !answer->has_away()) break;
    progress.Show(job, answer->away());
    if (answer->away().safe()) return 0;
  }
  socket.Reset();
  for (int failures = 0;; ::usleep(kAgain)) {
    v1::Query query;
    query.mutable_get_job()->set_job(job);
    auto answer = Ask(home, query, true, quiet);
    if (!answer && ++failures > 30) return std::move(answer).error();
    if (!answer || answer->jobs().jobs_size() != 1) continue;
    failures = 0;
    const v1::JobInfo& info = answer->jobs().jobs(0);
    if (IsEnd(info.state())) {
      progress.Over(job, EndReason(info));
      return 0;
    }
    progress.Show(job, info.away());
    if (info.away().safe()) return 0;
  }
}

Result<int> Submit(const RunOptions& options, v1::Run run) {
  VRUN_ASSIGN(HomeConnection home, HomeConnection::Make());
  const bool waits = run.wait_until_away();
  v1::ClientMessage message;
  *message.mutable_run() = std::move(run);
  // Streams as for an attached run: no input, and the output is not shown.
  VRUN_ASSIGN(UniqueFd null, OpenFile("/dev/null", O_RDWR));
  VRUN_ASSIGN(UniqueFd memory, CreateStreamProgress());
  VRUN_ASSIGN(FirstAnswer first,
              SendAndReceive(home, message, {null.get(), null.get(), null.get(), memory.get()}, true, options.quiet));
  for (v1::HomeMessage answer = std::move(first.message);;) {
    if (answer.has_error()) return FromWire(answer.error());
    if (answer.has_notice() && !options.quiet)
      std::fprintf(stderr, "vbatch: %s\n", SafeLine(answer.notice().text()).c_str());
    if (!answer.has_accepted()) {
      VRUN_ASSIGN(answer, ReceiveMessage(first.socket.get(), options.quiet));
      continue;
    }
    TellId(options, std::to_string(answer.accepted().job()));
    std::fflush(stdout);
    if (waits) return WaitUntilAway(home, std::move(first.socket), answer.accepted().job(), options.quiet);
    if (!options.follow) return 0;
    return Follow(home, answer.accepted().job());
  }
}

// The configuration decides only where nothing speaks against it.
Result<bool> IsAway(RunOptions options, bool array) {
  if (array && options.away.value_or(false)) {
    return Error(Code::kInvalid, "--away with an array: its elements need this machine: leave one out");
  }
  if (array || options.away) return options.away.value_or(false);
  VRUN_ASSIGN(Places places, FindPlaces());
  const auto config = ReadConfig(places.config_file);
  if (!config || config->away != "on") return false;
  options.away = true;
  return CheckAway(options).has_value();
}

// Whether the elements of an array overwrite each other's output.
bool ElementsShare(const std::string& pattern) {
  if (pattern.empty() || pattern == "/dev/null") return false;
  // The job's id is an element's own.
  const auto expanded = ExpandLogPath(pattern, {.array = true});
  if (!expanded) return false;
  for (size_t at = 0; (at = expanded->find('%', at)) != std::string::npos; at += 2) {
    const size_t letter = expanded->find_first_not_of("0123456789", at + 1);
    if (letter != std::string::npos && ((*expanded)[letter] == 'a' || (*expanded)[letter] == 'j')) return false;
  }
  return true;
}

Result<v1::Run> MakeBatchRequest(const RunOptions& options, bool array, const std::string& root, std::string script) {
  VRUN_ASSIGN(v1::Run run, MakeRequest(options, root));
  if (array) *run.mutable_array() = options.array;
  run.set_detached(true);
  if (!options.spec.scheduling().has_requeue()) run.mutable_spec()->mutable_scheduling()->set_requeue(true);
  run.set_quiet(true);
  run.mutable_spec()->mutable_command()->set_script(std::move(script));
  std::string* name = run.mutable_spec()->mutable_name();
  if (name->empty()) *name = Escape(options.command[0].substr(options.command[0].rfind('/') + 1));
  const std::string& directory = run.spec().command().directory();
  const LogNames names{*name, run.spec().command().identity().user_name(), run.spec().has_gang(), array};
  for (auto [pattern, path] :
       {std::pair(&options.output, run.mutable_stdout_path()), std::pair(&options.error, run.mutable_stderr_path())}) {
    if (pattern->empty()) continue;
    VRUN_ASSIGN(std::string expanded, ExpandLogPath(*pattern, names));
    *path = Absolute(expanded, directory);
  }
  run.set_append_output(options.append_output);
  VRUN_ASSIGN(const bool away, IsAway(options, array));
  run.mutable_spec()->set_away(away);
  VRUN_TRY(CheckSecretsAreHere(run.spec()));  // also with --away
  run.set_wait_until_away(away && options.wait_until_away);
  return run;
}

}  // namespace

int BatchMain(std::span<const std::string> words) {
  auto options = ParseBatch(words);
  if (!options) return Usage(options.error().message());
  if (options->help) {
    Print(std::string(kHelp) + FormatOptions(BatchTable().options));
    return 0;
  }
  if (options->version) {
    Print("vbatch " VRUN_VERSION "\n");
    return 0;
  }
  ::signal(SIGPIPE, SIG_IGN);
  auto failed = [](const Error& error) {
    std::fprintf(stderr, "vbatch: %s\n", error.message().c_str());
    return error.code() == Code::kNotFound ? kExitNotFound : kExitNotExecutable;
  };
  auto not_submitted = [](const Error& error) {
    std::fprintf(stderr, "vbatch: %s\n", error.message().c_str());
    return kExitNotStarted;
  };
  auto root = ConfiguredRoot();
  if (!root) return not_submitted(root.error());
  auto source = FindSource(*options, *root);
  if (!source) return Usage(source.error().message());
  if (*source) {
    Status script = ApplyScript(**source, words, *root, &*options);
    if (!script && script.error().code() == Code::kNotFound) return failed(script.error());
    if (!script) return Usage(script.error().message());
  } else if (!options->wrap.empty()) {
    options->command = {"/bin/sh", "-c", options->wrap};
    options->spec.mutable_command()->set_batch_script(true);
    if (options->spec.name().empty()) options->spec.set_name("wrap");
  }
  auto named = FindNamedDescriptors(std::span<const std::string>(options->command).subspan(1));
  if (!named || !named->empty()) {
    return Usage(!named ? named.error().message()
                        : Escape(named->front().word) +
                              ": is open only as long as this command runs: name a file, or use vrun");
  }
  auto array = CompleteArray(&*options);
  if (!array) return Usage(array.error().message());
  if (*array && !options->append_output && ElementsShare(options->output)) {
    options->notes.push_back(Escape(options->output) +
                             ": all elements write into this file: name their index in it with %a");
  }
  if (!options->quiet) {
    for (const std::string& note : options->notes) std::fprintf(stderr, "vbatch: %s\n", note.c_str());
  }
  auto run = MakeBatchRequest(*options, *array, *root, *source && (*source)->travels ? std::move((*source)->text) : "");
  if (!run) return not_submitted(run.error());
  Status start = CheckStart(*options, *run, *root);
  if (!start) return failed(start.error());
  if (options->test_only) {
    auto tested = TestOnly(*std::move(run), "vbatch");
    return tested ? *tested : not_submitted(tested.error());
  }
  auto status = Submit(*options, *std::move(run));
  return status ? *status : not_submitted(status.error());
}

}  // namespace vrun::cli
