// SPDX-License-Identifier: Apache-2.0
// vbatch
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>

#include "base/escape.h"
#include "base/files.h"
#include "base/stream_progress.h"
#include "cli/command_run.h"
#include "cli/ctl.h"
#include "cli/exit_status.h"
#include "cli/home_connection.h"
#include "cli/job_command.h"
#include "cli/job_log.h"
#include "cli/script_options.h"
#include "cli/table.h"

namespace vrun::cli {
namespace {

constexpr size_t kMaxScriptHead = 1u << 20;

constexpr std::string_view kHelp =
    "usage: vbatch [options] [--] COMMAND [ARG...]\n"
    "       vbatch [options] SCRIPT [ARG...]\n"
    "Submits COMMAND, prints the job's id and returns. A SCRIPT is a file that begins with #!; its lines #VRUN and "
    "#SBATCH\n"
    "before the first command hold options, which those of the command line override.\n\n";

int Usage(const std::string& text) {
  std::fprintf(stderr, "vbatch: %s\n", text.c_str());
  return kExitUsage;
}

// The head of a script: a regular file that begins with "#!". Empty: not one.
Result<std::string> ReadScript(const std::string& path) {
  auto fd = OpenFile(path, O_RDONLY | O_NONBLOCK);
  if (!fd) return std::string();
  struct stat st;
  if (::fstat(fd->get(), &st) != 0 || !S_ISREG(st.st_mode)) return std::string();
  std::string text(std::min<size_t>(static_cast<size_t>(st.st_size), kMaxScriptHead), 0);
  VRUN_ASSIGN(size_t n, ReadUpTo(fd->get(), text.data(), text.size()));
  text.resize(n);
  if (!text.starts_with("#!")) return std::string();
  return text;
}

// Options of the script's lines, then those of the command line again, which win. The command becomes the script as the
// jobs see it, behind its interpreter when it is not executable itself (sbatch does not ask for that bit either).
Status ApplyScript(std::span<const std::string> words, const std::string& root, RunOptions* options) {
  if (options->after_dashes) return {};
  std::string path = options->command[0];
  VRUN_ASSIGN(std::string text, ReadScript(path));
  if (text.empty()) return {};
  VRUN_ASSIGN(Script script, ParseScript(text, path));
  RunOptions merged;
  VRUN_TRY(ApplyOptions(script.options, &merged));
  VRUN_ASSIGN(ParsedWords line, ParseWords(BatchTable(), words));
  VRUN_TRY(ApplyOptions(line.options, &merged));
  merged.command = std::move(options->command);
  *options = std::move(merged);
  VRUN_ASSIGN(std::string here, CurrentDirectory());
  std::string in_root = InRoot(Absolute(path, here), root);
  options->command[0] = in_root;
  if (::access(path.c_str(), X_OK) != 0) {
    options->command.insert(options->command.begin(), script.interpreter.begin(), script.interpreter.end());
    options->script = script.interpreter.size();
  }
  if (options->name.empty()) options->name = path.substr(path.rfind('/') + 1);
  return {};
}

// Slurm's patterns; %j is home's to fill in, since the id is not known yet. kInvalid: a pattern that is not known.
Result<std::string> LogPath(const std::string& pattern, const std::string& name, const std::string& directory) {
  if (pattern.empty()) return std::string();
  std::string out;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '%' || i + 1 == pattern.size()) {
      out.push_back(pattern[i]);
      continue;
    }
    char c = pattern[++i];
    if (c == 'x') {
      for (char n : name) out.push_back(n == '/' || n == '%' ? '_' : n);
    } else if (c == 'j' || c == 'A' || c == '%') {
      out += c == '%' ? "%" : "%j";
    } else {
      return Error(Code::kInvalid, Escape(pattern) + ": unknown pattern %" + Escape(std::string(1, c)) +
                                       ": known are %j (id), %x (name) and %%");
    }
  }
  return Absolute(out, directory);
}

// The output up to the job's end; then its own status.
Result<int> Follow(const HomeConnection& home, uint64_t job) {
  VRUN_TRY(CopyLog(home, job, true));
  v1::Query query;
  query.mutable_get_job()->set_job(job);
  VRUN_ASSIGN(v1::HomeMessage answer, Ask(home, query, true));
  if (!answer.has_jobs() || answer.jobs().jobs_size() != 1 || !answer.jobs().jobs(0).has_exit()) return kExitUnknown;
  return StatusOf(answer.jobs().jobs(0).exit());
}

Result<int> Submit(const RunOptions& options, const std::string& root) {
  VRUN_ASSIGN(v1::Run run, MakeRequest(options, root));
  run.set_detached(true);
  run.mutable_scheduling()->set_requeue(options.requeue.value_or(true));
  run.set_quiet(true);
  std::string name = options.name;
  if (name.empty()) name = options.command[0].substr(options.command[0].rfind('/') + 1);
  run.set_name(Escape(name));
  const std::string& directory = run.command().directory();
  VRUN_ASSIGN(*run.mutable_stdout_path(), LogPath(options.output, name, directory));
  VRUN_ASSIGN(*run.mutable_stderr_path(), LogPath(options.error, name, directory));
  VRUN_ASSIGN(HomeConnection home, HomeConnection::Make());
  v1::ClientMessage message;
  *message.mutable_run() = std::move(run);
  // The streams of a run, as for an attached one: nothing to read, and nobody who would see the output.
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
    std::string id = std::to_string(answer.accepted().job());
    Print(options.parsable ? id + "\n" : "Submitted batch job " + id + "\n");
    if (!options.follow) return 0;
    return Follow(home, answer.accepted().job());
  }
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
  if (options->command.empty()) return Usage("no command: name one, or a script: `vbatch --help` shows how");
  ::signal(SIGPIPE, SIG_IGN);
  auto failed = [](const Error& error) {
    std::fprintf(stderr, "vbatch: %s\n", error.message().c_str());
    return kExitNotStarted;
  };
  auto root = ConfiguredRoot();
  if (!root) return failed(root.error());
  Status script = ApplyScript(words, *root, &*options);
  if (!script) return Usage(script.error().message());
  for (const std::string* pattern : {&options->output, &options->error}) {
    auto path = LogPath(*pattern, "", "/");
    if (!path) return Usage(path.error().message());
  }
  auto status = Submit(*options, *root);
  return status ? *status : failed(status.error());
}

}  // namespace vrun::cli
