// SPDX-License-Identifier: Apache-2.0
#include "cli/run_options.h"

#include "base/clock.h"
#include "base/escape.h"

namespace vrun::cli {
namespace {

enum Id {
  kPool,
  kName,
  kCpus,
  kMemory,
  kGpus,
  kTime,
  kDirectory,
  kExport,
  kExpose,
  kTty,
  kNoTty,
  kQuiet,
  kStatusJson,
  kExplainIo,
  kWrites,
  kDiscard,
  kClass,
  kTeam,
  kRequeue,
  kNoRequeue,
  kSignal,
  kSnapshot,
  kBegin,
  kDeadline,
  kDependency,
  kView,
  kOutput,
  kError,
  kFollow,
  kParsable,
  kNodes,
  kTasks,
  kHelp,
  kVersion,
};

constexpr auto kValue = Argument::kRequired;
constexpr auto kFlag = Argument::kNone;

constexpr OptionSpec kPoolSpec{
    kPool, 'P', "pool", kValue, "POOL", "where to run (default: the configuration's)", Completes::kPools};
constexpr OptionSpec kPartition{kPool, 'p', "partition", kValue, "POOL"};
constexpr OptionSpec kNameSpec{kName, 'J', "job-name", kValue, "NAME", "name of the job (default: the command's)"};
constexpr OptionSpec kCpusSpec{kCpus, 'c', "cpus-per-task", kValue, "N", "cores, as in 4 or 0.5 (1)"};
constexpr OptionSpec kMemorySpec{
    kMemory, 0, "mem", kValue, "SIZE", "memory, as in 16G; a bare number is in MiB", Completes::kMemory};
constexpr OptionSpec kGpusSpec{kGpus, 'G', "gpus", kValue, "[TYPE:]N", "GPUs"};
constexpr OptionSpec kTimeSpec{kTime,  't',     "time",
                               kValue, "LIMIT", "time limit: minutes, MM:SS, HH:MM:SS, D-HH[:MM[:SS]]"};
constexpr OptionSpec kDirectorySpec{
    kDirectory, 'D', "chdir", kValue, "DIR", "working directory (default: this one)", Completes::kDirectories};
constexpr OptionSpec kExportSpec{kExport, 0,      "export",
                                 kValue,  "WHAT", "environment: ALL, NONE, or NAME[=VALUE],...; ALL,NAME=VALUE adds"};
constexpr OptionSpec kExposeSpec{
    kExpose, 0, "expose", kValue, "PATH", "serve this private file or directory to the job as well", Completes::kFiles};
constexpr OptionSpec kWritesSpec{kWrites,
                                 0,
                                 "writes",
                                 kValue,
                                 "WHERE",
                                 "what becomes of what the command writes: home (default): it is carried home; keep: "
                                 "it stays on the node until `vctl "
                                 "job ID pull` fetches it; discard: it is forgotten",
                                 Completes::kWrites};
constexpr OptionSpec kDiscardSpec{kDiscard, 0, "discard-writes", kFlag};
constexpr OptionSpec kClassSpec{
    kClass,
    0,
    "class",
    kValue,
    "CLASS",
    "what it is for: scavenger, experiment, training (default), production or inference; a higher one "
    "may take the room of a lower",
    Completes::kClasses};
constexpr OptionSpec kQosSpec{kClass, 0, "qos", kValue, "CLASS"};
constexpr OptionSpec kTeamSpec{kTeam, 'A', "account", kValue, "TEAM", "whose share it counts against (default: yours)"};
constexpr OptionSpec kRequeueSpec{
    kRequeue, 0,  "requeue",
    kFlag,    "", "it may be stopped for another job and is then started again from its beginning (vbatch: default)"};
constexpr OptionSpec kNoRequeueSpec{kNoRequeue, 0,  "no-requeue",
                                    kFlag,      "", "it runs undisturbed to its end (vrun: default)"};
constexpr OptionSpec kSignalSpec{
    kSignal,         0,
    "signal",        kValue,
    "SIG[@SECONDS]", "it saves its state on this signal, so long before it is killed (TERM, 30)"};
constexpr OptionSpec kSnapshotSpec{
    kSnapshot, 0, "snapshot", kValue, "NAME", "run in this snapshot, not in the root as it is", Completes::kSnapshots};
constexpr OptionSpec kBeginSpec{
    kBegin, 'b', "begin", kValue, "TIME", "not before then: now+2hours, HH:MM, tomorrow, YYYY-MM-DD[THH:MM[:SS]]"};
constexpr OptionSpec kDeadlineSpec{
    kDeadline,     0,
    "deadline",    kValue,
    "[hard:]TIME", "it should have ended by then; hard: say whether it will, and keep room for it"};
constexpr OptionSpec kDependencySpec{
    kDependency, 'd',          "dependency",
    kValue,      "WHEN:ID...", "after other jobs: afterok:ID[:ID...] if they succeed, afterany:ID[:ID...] in any case"};
constexpr OptionSpec kViewSpec{
    kView,
    0,
    "view",
    kValue,
    "live|frozen",
    "the root as it is at any moment, what is written goes home at once; or as it is now, what is written goes home at "
    "the end (default)",
    Completes::kViews};
constexpr OptionSpec kQuietSpec{kQuiet, 'q', "quiet", kFlag, "", "say nothing about waiting"};
constexpr OptionSpec kNodesSpec{kNodes, 'N', "nodes", kValue, "1"};
constexpr OptionSpec kTasksSpec{kTasks, 'n', "ntasks", kValue, "1"};
constexpr OptionSpec kHelpSpec{kHelp, 'h', "help", kFlag, "", "this text"};
constexpr OptionSpec kVersionSpec{kVersion, 0, "version", kFlag, "", "the version"};

constexpr OptionSpec kRunOptions[] = {
    kPoolSpec,
    kPartition,
    kNameSpec,
    kCpusSpec,
    kMemorySpec,
    kGpusSpec,
    kTimeSpec,
    kDirectorySpec,
    kExportSpec,
    kExposeSpec,
    kWritesSpec,
    kDiscardSpec,
    kClassSpec,
    kQosSpec,
    kTeamSpec,
    kRequeueSpec,
    kNoRequeueSpec,
    kSignalSpec,
    kSnapshotSpec,
    kBeginSpec,
    kDeadlineSpec,
    kDependencySpec,
    kViewSpec,
    {kTty, 'T', "tty", kFlag, "", "give the command a terminal in any case"},
    {kNoTty, 0, "no-tty", kFlag, "", "give the command pipes in any case"},
    kQuietSpec,
    {kExplainIo, 0, "explain-io", kFlag, "", "say afterwards what was fetched, why, and what was waited for"},
    {kStatusJson, 0, "status-json", kValue, "FILE|fd:N", "write how it ended as JSON", Completes::kFiles},
    kNodesSpec,
    kTasksSpec,
    kVersionSpec,
    kHelpSpec};

constexpr OptionSpec kBatchOptions[] = {
    kPoolSpec,
    kPartition,
    kNameSpec,
    kCpusSpec,
    kMemorySpec,
    kGpusSpec,
    kTimeSpec,
    kDirectorySpec,
    {kOutput, 'o', "output", kValue, "FILE", "stdout; %j is the job id, %x its name (default: vrun-%j.out)",
     Completes::kFiles},
    {kError, 'e', "error", kValue, "FILE", "stderr (default: where stdout goes)", Completes::kFiles},
    kExportSpec,
    kExposeSpec,
    kWritesSpec,
    kDiscardSpec,
    kClassSpec,
    kQosSpec,
    kTeamSpec,
    kRequeueSpec,
    kNoRequeueSpec,
    kSignalSpec,
    kSnapshotSpec,
    kBeginSpec,
    kDeadlineSpec,
    kDependencySpec,
    kViewSpec,
    {kFollow, 'f', "follow", kFlag, "", "show the output; Ctrl-C leaves the job running"},
    {kParsable, 0, "parsable", kFlag, "", "print nothing but the id"},
    kQuietSpec,
    kNodesSpec,
    kTasksSpec,
    kVersionSpec,
    kHelpSpec};

constexpr std::string_view kOneTask = "jobs of several tasks are not there yet, start one job for each";
constexpr std::string_view kLeaveOut = "leave it out";
#define VRUN_COMMON_UNSUPPORTED                                                                                  \
  {0, "ntasks-per-node", kOneTask}, {0, "gres", "write -G [TYPE:]N for GPUs"},                                   \
      {0, "gpus-per-node", "write -G [TYPE:]N"}, {0, "gpus-per-task", "write -G [TYPE:]N"},                      \
      {0, "mem-per-cpu", "write --mem SIZE for the whole job"},                                                  \
      {0, "mem-per-gpu", "write --mem SIZE for the whole job"}, {'a', "array", "submit one job for each index"}, \
      {'w', "nodelist", "choose a pool with -P"}, {'x', "exclude", "choose a pool with -P"},                     \
      {'C', "constraint", "choose a pool with -P or a GPU type with -G TYPE:N"},                                 \
      {0, "exclusive", "ask for all cores with -c"}, {0, "test-only", kLeaveOut}, {'H', "hold", kLeaveOut},      \
      {0, "mail-type", "no mail is sent, leave it out"}, {0, "mail-user", "no mail is sent, leave it out"},      \
      {'l', "label", kOneTask}, {'W', "wait", "use vrun, or `vctl wait ID`"},                                    \
      {0, "propagate", "soft limits always come along, leave it out"}, {0, "wrap", "write the command itself"},  \
      {'I', "immediate", kLeaveOut}, {                                                                           \
    0, "switches", kLeaveOut                                                                                     \
  }

constexpr UnsupportedOption kRunUnsupported[] = {VRUN_COMMON_UNSUPPORTED,
                                                 {'o', "output", "redirect with the shell, > FILE"},
                                                 {'e', "error", "redirect with the shell, 2> FILE"},
                                                 {0, "pty", "a terminal is given by itself, or with -T"},
                                                 {'u', "unbuffered", "output is never held back, leave it out"}};
constexpr UnsupportedOption kBatchUnsupported[] = {VRUN_COMMON_UNSUPPORTED,
                                                   {'T', "tty", "a batch job has no terminal, use vrun"},
                                                   {0, "status-json", "use `vctl job ID -o json`"}};
#undef VRUN_COMMON_UNSUPPORTED

constexpr OptionTable kRunTable{kRunOptions, kRunUnsupported};
constexpr OptionTable kBatchTable{kBatchOptions, kBatchUnsupported};

Status ApplyExport(const std::string& value, RunOptions* out) {
  out->exported.clear();
  out->export_mode = ExportMode::kListed;
  size_t from = 0;
  while (from <= value.size()) {
    size_t comma = value.find(',', from);
    std::string item = value.substr(from, comma == std::string::npos ? comma : comma - from);
    from = comma == std::string::npos ? value.size() + 1 : comma + 1;
    if (item == "ALL") {
      out->export_mode = ExportMode::kAll;
    } else if (item == "NONE" || item == "NIL") {
      out->export_mode = ExportMode::kNone;
    } else if (item.empty() || item[0] == '=') {
      return Error(Code::kInvalid, Escape(value) + ": a variable without a name: write ALL, NONE or NAME[=VALUE],...");
    } else {
      out->exported.push_back(std::move(item));
    }
  }
  return {};
}

// Stores a parsed value or passes the reason on.
template <typename T, typename U>
Status Store(Result<T> value, U* to) {
  if (!value) return std::move(value).error();
  *to = *std::move(value);
  return {};
}

Status StoreText(const std::string& value, std::string* to) {
  if (value.empty()) return Error(Code::kInvalid, "an empty value: write one or leave the option out");
  *to = value;
  return {};
}

Status ApplyWrites(const std::string& value, RunOptions* out) {
  if (value != "home" && value != "keep" && value != "discard") {
    return Error(Code::kInvalid, Escape(value) + ": no such place: write home, keep or discard");
  }
  out->discard_writes = value == "discard";
  out->keep_writes = value == "keep";
  return {};
}

Result<bool> ParseView(const std::string& value) {
  if (value != "live" && value != "frozen") {
    return Error(Code::kInvalid, Escape(value) + ": no such view: write live or frozen");
  }
  return value == "live";
}

// What a view that all jobs of a node share cannot do for one of them.
Status CheckView(const RunOptions& options) {
  if (!options.live_view.value_or(false)) return {};
  const auto with = [](const char* other) {
    return Error(Code::kInvalid, std::string("--view=live with ") + other + ": needs a view of its own: leave one out");
  };
  if (!options.snapshot.empty()) return with("--snapshot");
  if (!options.expose.empty()) return with("--expose");
  if (options.discard_writes) return with("--writes=discard");
  if (options.keep_writes) return with("--writes=keep");
  return {};
}

Status OnlyOne(const std::string& value) {
  auto n = ParseNumber(value, 1000000);
  if (!n) return std::move(n).error();
  if (*n != 1) return Error(Code::kInvalid, value + ": not supported yet: " + std::string(kOneTask));
  return {};
}

Status Apply(const ParsedOption& option, RunOptions* out) {
  const std::string& value = option.value;
  switch (static_cast<Id>(option.spec->id)) {
    case kPool: return StoreText(value, &out->pool);
    case kName: return StoreText(value, &out->name);
    case kCpus: return Store(ParseCpus(value), &out->milli_cpus);
    case kMemory: return Store(ParseMemory(value), &out->memory_bytes);
    case kGpus: return Store(ParseGpus(value), &out->gpus);
    case kTime: return Store(ParseTimeLimit(value), &out->time_limit_s);
    case kDirectory: return StoreText(value, &out->directory);
    case kExport: return ApplyExport(value, out);
    case kExpose: out->expose.emplace_back(); return StoreText(value, &out->expose.back());
    case kTty: out->terminal = TerminalWish::kForce; return {};
    case kNoTty: out->terminal = TerminalWish::kNever; return {};
    case kSnapshot: return StoreText(value, &out->snapshot);
    case kBegin: return Store(ParseMoment(value, WallMicros()), &out->begin_us);
    case kDeadline: return Store(ParseDeadline(value, WallMicros()), &out->deadline);
    case kDependency: return Store(ParseDependencies(value), &out->dependencies);
    case kView: return Store(ParseView(value), &out->live_view);
    case kQuiet: out->quiet = true; return {};
    case kExplainIo: out->explain_io = true; return {};
    case kStatusJson: return StoreText(value, &out->status_json);
    case kWrites: return ApplyWrites(value, out);
    case kDiscard:
      out->discard_writes = true;
      out->keep_writes = false;
      return {};
    case kClass: return Store(ParseJobClass(value), &out->klass);
    case kTeam: return StoreText(value, &out->team);
    case kRequeue: out->requeue = true; return {};
    case kNoRequeue: out->requeue = false; return {};
    case kSignal: return Store(ParseEndSignal(value), &out->end_signal);
    case kOutput: return StoreText(value, &out->output);
    case kError: return StoreText(value, &out->error);
    case kFollow: out->follow = true; return {};
    case kParsable: out->parsable = true; return {};
    case kNodes:
    case kTasks: return OnlyOne(value);
    case kHelp: out->help = true; return {};
    case kVersion: out->version = true; return {};
  }
  return Error(Code::kInternal, "option without a meaning");
}

Result<RunOptions> Parse(const OptionTable& table, std::span<const std::string> words) {
  VRUN_ASSIGN(ParsedWords parsed, ParseWords(table, words));
  RunOptions out;
  VRUN_TRY(ApplyOptions(parsed.options, &out));
  VRUN_TRY(CheckView(out));
  out.command = std::move(parsed.operands);
  out.after_dashes = parsed.after_dashes;
  return out;
}

}  // namespace

const OptionTable& RunTable() { return kRunTable; }
const OptionTable& BatchTable() { return kBatchTable; }

Status ApplyOptions(std::span<const ParsedOption> options, RunOptions* out) {
  for (const ParsedOption& option : options) {
    Status status = Apply(option, out);
    if (!status) return std::move(status).error().With("--" + std::string(option.spec->long_name));
  }
  return {};
}

Result<RunOptions> ParseRun(std::span<const std::string> words) { return Parse(kRunTable, words); }
Result<RunOptions> ParseBatch(std::span<const std::string> words) { return Parse(kBatchTable, words); }

}  // namespace vrun::cli
