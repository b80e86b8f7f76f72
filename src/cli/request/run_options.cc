// SPDX-License-Identifier: Apache-2.0
#include "cli/request/run_options.h"

#include "base/clock.h"
#include "base/escape.h"
#include "cli/array/array_options.h"
#include "cli/isolation/network_options.h"
#include "cli/isolation/secret_options.h"
#include "cli/request/gpu_options.h"
#include "cli/request/log_path.h"
#include "cli/request/wishes.h"
#include "jobs/array.h"

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
  kProject,
  kRequeue,
  kNoRequeue,
  kSignal,
  kSnapshot,
  kBegin,
  kDeadline,
  kDependency,
  kView,
  kOnDisconnect,
  kNice,
  kLive,
  kArray,
  kSweep,
  kOutput,
  kError,
  kFollow,
  kParsable,
  kWrap,
  kOpenMode,
  kGres,
  kGpusOfNode,
  kGpusOfTask,
  kShare,
  kGpuMemory,
  kNodes,
  kTasks,
  kTasksPerNode,
  kLabel,
  kInput,
  kNoKill,
  kKillOnBadExit,
  kWait,
  kNoSlurmEnv,
  kLauncher,
  kNoLauncher,
  kNoStdin,
  kConstraint,
  kNodelist,
  kExclude,
  kTolerate,
  kTopology,
  kSwitches,
  kSegment,
  kSpread,
  kCheckpoint,
  kRetry,
  kHold,
  kTestOnly,
  kAway,
  kNoAway,
  kNoWait,
  kNetwork,
  kPublish,
  kPortOrPool,
  kSecret,
  kTmp,
  kMailType,
  kMailUser,
  kNotifyUrl,
  kHelp,
  kVersion,
};

constexpr auto kValue = Argument::kRequired;
constexpr auto kFlag = Argument::kNone;

constexpr OptionSpec kPoolSpec{
    kPool, 'P', "pool", kValue, "POOL", "where to run (default: the configuration's)", Completes::kPools};
constexpr OptionSpec kPartition{kPool, 0, "partition", kValue, "POOL"};
constexpr OptionSpec kPortOrPoolSpec{kPortOrPool, 'p', "", kValue, "", "", Completes::kPools};
constexpr OptionSpec kNameSpec{kName, 'J', "job-name", kValue, "NAME", "name of the job (default: the command's)"};
constexpr OptionSpec kCpusSpec{kCpus, 'c', "cpus-per-task", kValue, "N", "cores, as in 4 or 0.5 (1)"};
constexpr OptionSpec kMemorySpec{
    kMemory, 0, "mem", kValue, "SIZE", "memory, as in 16G; a bare number is in MiB", Completes::kMemory};
constexpr OptionSpec kGpusSpec{
    kGpus,
    'G',
    "gpus",
    kValue,
    "[TYPE:]N",
    "GPUs, for the whole job: 2, h100:2, a share of one as in 0.25, or 0.25..1 if it may compute with more "
    "while nobody else does, a MIG instance as in 1g.10gb; h100:2|a100:2 takes one of these types, the first if it "
    "can"};
constexpr OptionSpec kGpusPerNode{kGpusOfNode, 0, "gpus-per-node", kValue, "[TYPE:]N", "GPUs on each node"};
constexpr OptionSpec kGpusPerTask{kGpusOfTask, 0, "gpus-per-task", kValue, "[TYPE:]N", "GPUs for each task"};
constexpr OptionSpec kGresSpec{kGres, 0, "gres", kValue, "gpu[:TYPE][:N]"};
constexpr OptionSpec kShareSpec{
    kShare,
    0,
    "share",
    kValue,
    "mps|time",
    "how the share of a GPU is made: mps (default): side by side, each held to its share; time: in turns, and nothing "
    "keeps one from taking all memory",
    Completes::kShares};
constexpr OptionSpec kGpuMemorySpec{
    kGpuMemory,
    0,
    "gpu-mem",
    kValue,
    "SIZE",
    "what each GPU, share or instance has at least, as in 20G; without -G: the smallest "
    "instance or share that has it, or a GPU",
    Completes::kMemory};
constexpr OptionSpec kTimeSpec{kTime,  't',     "time",
                               kValue, "LIMIT", "time limit: minutes, MM:SS, HH:MM:SS, D-HH[:MM[:SS]]"};
constexpr OptionSpec kDirectorySpec{
    kDirectory, 'D', "chdir", kValue, "DIR", "working directory (default: this one)", Completes::kDirectories};
constexpr OptionSpec kExportSpec{kExport, 0,      "export",
                                 kValue,  "WHAT", "environment: ALL, NONE, or NAME[=VALUE],...; ALL,NAME=VALUE adds"};
constexpr OptionSpec kExposeSpec{
    kExpose, 0, "expose", kValue, "PATH", "serve this private file or directory to the job as well", Completes::kFiles};
constexpr OptionSpec kLiveSpec{kLive,
                               0,
                               "live",
                               kValue,
                               "DIR",
                               "this directory is home's own at any moment, for locks and files that several jobs "
                               "write; the rest of the root stays as it was at submission",
                               Completes::kDirectories};
constexpr OptionSpec kNetworkSpec{
    kNetwork,
    0,
    "network",
    kValue,
    "host|private",
    "host (default): the node's network; private: a loopback of its own and published ports, nothing else",
    Completes::kNetworks};
constexpr OptionSpec kPublishSpec{kPublish,
                                  0,
                                  "publish",
                                  kValue,
                                  "[ADDRESS:]PORT[:JOB_PORT]",
                                  "connections to this port of this machine's localhost (or of ADDRESS) go on at the "
                                  "job's localhost; may be repeated; also -p PORT"};
constexpr OptionSpec kSecretSpec{kSecret,
                                 0,
                                 "secret",
                                 kValue,
                                 "NAME[=WHERE]",
                                 "give it this secret of `vctl secret`: as a file /run/secrets/NAME, as WHERE below "
                                 "/run, or as the environment variable WHERE; may be repeated",
                                 Completes::kSecrets};
constexpr OptionSpec kTmpSpec{kTmp,
                              0,
                              "tmp",
                              kValue,
                              "SIZE",
                              "what it may keep on the node's disk: its /tmp, and what it writes in a frozen view; a "
                              "job that exceeds it is ended",
                              Completes::kMemory};
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
constexpr OptionSpec kProjectSpec{kProject, 0, "project", kValue, "NAME", "what it is for, as `vctl usage` names it"};
constexpr OptionSpec kMailTypeSpec{kMailType,
                                   0,
                                   "mail-type",
                                   kValue,
                                   "EVENT,...",
                                   "mail when it has come so far: BEGIN, END, FAIL, REQUEUE or ALL of these; "
                                   "TIME_LIMIT, TIME_LIMIT_90, TIME_LIMIT_80, TIME_LIMIT_50; ARRAY_TASKS for each "
                                   "element; NONE"};
constexpr OptionSpec kMailUserSpec{
    kMailUser, 0, "mail-user", kValue, "ADDRESS,...", "where that mail goes (default: your address)"};
constexpr OptionSpec kNotifyUrlSpec{kNotifyUrl, 0,     "notify-url",
                                    kValue,     "URL", "the cluster calls this URL at these events (ALL)"};
constexpr OptionSpec kRequeueSpec{
    kRequeue, 0,  "requeue",
    kFlag,    "", "it may be stopped for another job and is then started again from its beginning (vbatch: default)"};
constexpr OptionSpec kNoRequeueSpec{kNoRequeue, 0,  "no-requeue",
                                    kFlag,      "", "it runs undisturbed to its end (vrun: default)"};
constexpr OptionSpec kSignalSpec{
    kSignal,         0,
    "signal",        kValue,
    "SIG[@SECONDS]", "it gets this signal so long (60) before its time limit, and when it has to make room"};
constexpr OptionSpec kSnapshotSpec{
    kSnapshot, 0, "snapshot", kValue, "NAME", "run in this snapshot, not in the root as it is", Completes::kSnapshots};
constexpr OptionSpec kBeginSpec{
    kBegin, 'b', "begin", kValue, "TIME", "not before then: now+2hours, HH:MM, tomorrow, YYYY-MM-DD[THH:MM[:SS]]"};
constexpr OptionSpec kDeadlineSpec{
    kDeadline,
    0,
    "deadline",
    kValue,
    "[hard:]TIME",
    "it should have ended by then; hard: say whether it will, and keep room for it; 18:00=1,20:00=0.5: "
    "later is worth less"};
constexpr OptionSpec kDependencySpec{
    kDependency,
    'd',
    "dependency",
    kValue,
    "WHEN:ID...",
    "after other jobs: afterok:ID[:ID...] if they succeed, afternotok if they fail, afterany in any case, after when "
    "they have started, aftercorr each element after that of another array; singleton: one of its name at a time"};
constexpr OptionSpec kViewSpec{kView,
                               0,
                               "view",
                               kValue,
                               "live|frozen",
                               "live: the root as it is at any moment, and what is written goes home at once (default "
                               "of vrun); frozen: the root as "
                               "it is now, and what is written goes home at the end (default of vbatch)",
                               Completes::kViews};
constexpr OptionSpec kConstraintSpec{
    kConstraint, 'C', "constraint", kValue, "LABEL,...", "only nodes with all of these labels (`vctl nodes -o wide`)"};
constexpr OptionSpec kNodelistSpec{
    kNodelist, 'w', "nodelist", kValue, "NODE,...", "only these nodes, as in n1,gpu[1-4]", Completes::kNodes};
constexpr OptionSpec kExcludeSpec{kExclude, 'x', "exclude", kValue, "NODE,...", "not these nodes", Completes::kNodes};
constexpr OptionSpec kTolerateSpec{kTolerate, 0,           "tolerate",
                                   kValue,    "TAINT,...", "also nodes that are kept for jobs that name these taints"};
constexpr OptionSpec kTopologySpec{
    kTopology,         0,
    "topology",        kValue,
    "LEVEL[:prefer]",  "all of it within one node, island, rack, block or zone; prefer: if that costs little waiting",
    Completes::kLevels};
constexpr OptionSpec kSwitchesSpec{kSwitches, 0, "switches", kValue, "1[@TIME]"};
constexpr OptionSpec kSegmentSpec{kSegment, 0,           "segment",
                                  kValue,   "N[@LEVEL]", "each N of its pods within one island (or another level)"};
constexpr OptionSpec kSpreadSpec{
    kSpread, 0, "spread", Argument::kOptional, "LEVEL", "its pods on as many nodes (or racks, ...) as possible"};
constexpr OptionSpec kSpreadOfSlurm{kSpread, 0, "spread-job", kFlag};
constexpr OptionSpec kCheckpointSpec{
    kCheckpoint, 0,      "checkpoint",
    kValue,      "WHAT", "how it saves its state, as in signal:USR1,grace:120s,save:45s,restore:60s,every:10m"};
constexpr OptionSpec kRetrySpec{kRetry,
                                0,
                                "retry",
                                kValue,
                                "N[@DELAY][:CAUSE,...]",
                                "start it again up to N times after any, oom, node, timeout, signal or an exit status; "
                                "each try waits twice as long"};
constexpr OptionSpec kHoldSpec{kHold, 'H', "hold", kFlag, "", "do not start it before `vctl release ID`"};
constexpr OptionSpec kTestOnlySpec{
    kTestOnly, 0,  "test-only",
    kFlag,     "", "say when and where it would start and what it would cost, and submit nothing"};
constexpr OptionSpec kQuietSpec{kQuiet, 'q', "quiet", kFlag, "", "say nothing about waiting"};
constexpr OptionSpec kQuietOfSlurm{kQuiet, 'Q', "", kFlag};
constexpr OptionSpec kNodesSpec{
    kNodes, 'N', "nodes",
    kValue, "N", "run on N nodes at the same time (1); MIN:MAX or MIN-MAX: on as many as there are"};
constexpr OptionSpec kTasksSpec{kTasks, 'n', "ntasks",
                                kValue, "N", "processes of COMMAND, the same number on each node"};
constexpr OptionSpec kLongTasksSpec{kTasks, 0,   "ntasks",
                                    kValue, "N", "processes of COMMAND, the same number on each node; also -n N"};
constexpr OptionSpec kTasksPerNodeSpec{kTasksPerNode, 0, "ntasks-per-node", kValue, "N", "processes on each node (1)"};
constexpr OptionSpec kLabelSpec{kLabel, 'l', "label", kFlag, "", "begin each line of output with its rank"};
constexpr OptionSpec kNoKillSpec{kNoKill, 'k', "no-kill",
                                 kFlag,   "",  "go on when a process has failed (default: the others are ended)"};
constexpr OptionSpec kKillOnBadExitSpec{kKillOnBadExit, 'K', "kill-on-bad-exit", Argument::kOptional, "0|1"};
constexpr OptionSpec kWaitSpec{kWait,  0,         "wait",
                               kValue, "SECONDS", "end the others so long after the first process has ended well"};
constexpr OptionSpec kNoSlurmEnvSpec{kNoSlurmEnv, 0, "no-slurm-env", kFlag, "", "set no SLURM_* variables"};
constexpr OptionSpec kLauncherSpec{
    kLauncher,
    0,
    "launcher",
    kFlag,
    "",
    "run COMMAND once, on the first node: it starts the processes itself (default for mpirun and its like)"};
constexpr OptionSpec kNoLauncherSpec{kNoLauncher, 0, "no-launcher", kFlag, "", "run COMMAND on every node in any case"};
constexpr OptionSpec kHelpSpec{kHelp, 'h', "help", kFlag, "", "this text"};
constexpr OptionSpec kVersionSpec{kVersion, 0, "version", kFlag, "", "the version"};
constexpr OptionSpec kVersionOfSlurm{kVersion, 'V', "", kFlag};

constexpr OptionSpec kRunOptions[] = {
    kPoolSpec,
    kPartition,
    kPortOrPoolSpec,
    kNameSpec,
    kCpusSpec,
    kMemorySpec,
    kGpusSpec,
    kGpusPerNode,
    kGpusPerTask,
    kGresSpec,
    kShareSpec,
    kGpuMemorySpec,
    kTimeSpec,
    kDirectorySpec,
    kExportSpec,
    kExposeSpec,
    kLiveSpec,
    kNetworkSpec,
    kPublishSpec,
    kSecretSpec,
    kTmpSpec,
    kWritesSpec,
    kDiscardSpec,
    kClassSpec,
    kQosSpec,
    kTeamSpec,
    kProjectSpec,
    kMailTypeSpec,
    kMailUserSpec,
    kNotifyUrlSpec,
    kRequeueSpec,
    kNoRequeueSpec,
    kSignalSpec,
    kSnapshotSpec,
    kBeginSpec,
    kDeadlineSpec,
    kDependencySpec,
    kConstraintSpec,
    kNodelistSpec,
    kExcludeSpec,
    kTolerateSpec,
    kTopologySpec,
    kSwitchesSpec,
    kSegmentSpec,
    kSpreadSpec,
    kSpreadOfSlurm,
    kCheckpointSpec,
    kRetrySpec,
    kHoldSpec,
    kTestOnlySpec,
    kViewSpec,
    {kOnDisconnect, 0, "on-disconnect", kValue, "keep|cancel",
     "what becomes of the job, waiting or running, when vrun is killed or its terminal closes (default: keep; of an "
     "unnamed command with a terminal: cancel after a minute)"},
    {kNice, 0, "nice", kValue, "N", "niceness of the command, from -20 to 19, as of nice(1) (default: ours)"},
    {kTty, 'T', "tty", kFlag, "", "give the command a terminal in any case"},
    {kNoTty, 0, "no-tty", kFlag, "", "give the command pipes in any case"},
    {kNoStdin, 'n', "no-stdin", Argument::kShortNumber, "", "its stdin is empty, whatever ours is (as with ssh)"},
    kQuietSpec,
    kQuietOfSlurm,
    {kExplainIo, 0, "explain-io", kFlag, "", "say afterwards what was fetched, why, and what was waited for"},
    {kStatusJson, 0, "status-json", kValue, "FILE|fd:N", "write how it ended as JSON", Completes::kFiles},
    kNodesSpec,
    kLongTasksSpec,
    kTasksPerNodeSpec,
    kLabelSpec,
    {kInput, 'i', "input", kValue, "all|none|RANK", "which processes get stdin (0: the first)"},
    kNoKillSpec,
    kKillOnBadExitSpec,
    kWaitSpec,
    {kWait, 'W', "", kValue},
    kNoSlurmEnvSpec,
    kLauncherSpec,
    kNoLauncherSpec,
    kVersionSpec,
    kVersionOfSlurm,
    kHelpSpec};

constexpr OptionSpec kBatchOptions[] = {
    kPoolSpec,
    kPartition,
    kPortOrPoolSpec,
    kNameSpec,
    kCpusSpec,
    kMemorySpec,
    kGpusSpec,
    kGpusPerNode,
    kGpusPerTask,
    kGresSpec,
    kShareSpec,
    kGpuMemorySpec,
    kTimeSpec,
    kDirectorySpec,
    {kArray, 'a', "array", kValue, "INDEXES[%N]",
     "an array: one element for each index, as in 0-99 or 1,3,10-50:10; %N: at most N of them at the same time"},
    {kSweep, 0, "sweep", kValue, "NAME=VALUES",
     "an array of all combinations: {NAME} in COMMAND is 0.1 and 0.01 with NAME=0.1,0.01, and 0, 1, 2 with NAME=0:3"},
    {kOutput, 'o', "output", kValue, "FILE",
     "stdout; %j is the job id, %x its name, %u the user, %N the node, %t the rank; of an array %A its id, %a the "
     "index (default: vrun-%j.out, vrun-%A_%a.out)",
     Completes::kFiles},
    {kError, 'e', "error", kValue, "FILE", "stderr (default: where stdout goes)", Completes::kFiles},
    {kOpenMode, 0, "open-mode", kValue, "append|truncate", "what becomes of output files that exist (truncate)"},
    {kWrap, 0, "wrap", kValue, "TEXT", "run this text with /bin/sh; there is no COMMAND then"},
    kExportSpec,
    kExposeSpec,
    kLiveSpec,
    kNetworkSpec,
    kPublishSpec,
    kSecretSpec,
    kTmpSpec,
    kWritesSpec,
    kDiscardSpec,
    kClassSpec,
    kQosSpec,
    kTeamSpec,
    kProjectSpec,
    kMailTypeSpec,
    kMailUserSpec,
    kNotifyUrlSpec,
    kRequeueSpec,
    kNoRequeueSpec,
    kSignalSpec,
    kSnapshotSpec,
    kBeginSpec,
    kDeadlineSpec,
    kDependencySpec,
    kConstraintSpec,
    kNodelistSpec,
    kExcludeSpec,
    kTolerateSpec,
    kTopologySpec,
    kSwitchesSpec,
    kSegmentSpec,
    kSpreadSpec,
    kSpreadOfSlurm,
    kCheckpointSpec,
    kRetrySpec,
    kHoldSpec,
    kTestOnlySpec,
    kViewSpec,
    {kFollow, 'f', "follow", kFlag, "",
     "show the output, and exit as the job did; stdout is the job's alone; Ctrl-C leaves the job running"},
    {kParsable, 0, "parsable", kFlag, "", "print nothing but the id"},
    {kAway, 0, "away", kFlag, "",
     "the job needs nothing of this machine once vbatch has returned: its root goes to the pool's store, its output "
     "and writes wait on the node"},
    {kNoAway, 0, "no-away", kFlag, "", "not so, whatever the configuration says"},
    {kNoWait, 0, "no-wait", kFlag, "", "with --away: return at once; `vctl job ID` says when it is safe to disconnect"},
    kQuietSpec,
    kQuietOfSlurm,
    kNodesSpec,
    kTasksSpec,
    kTasksPerNodeSpec,
    kLabelSpec,
    kNoKillSpec,
    kKillOnBadExitSpec,
    kWaitSpec,
    kNoSlurmEnvSpec,
    kLauncherSpec,
    kNoLauncherSpec,
    kVersionSpec,
    kVersionOfSlurm,
    kHelpSpec};

constexpr std::string_view kLeaveOut = "leave it out";
constexpr std::string_view kChoosePool = "choose a pool with -P";
constexpr std::string_view kNodeDecides = "the node decides, leave it out";

// The rest of sbatch's options (Slurm 24.05): accepted without effect, or refused by name. srun has most of them too.
constexpr HarmlessOption kHarmless[] = {
    {.long_name = "acctg-freq", .argument = kValue},
    {.long_name = "comment", .argument = kValue},
    {.long_name = "contiguous"},
    {.long_name = "delay-boot", .argument = kValue},
    {.short_name = 'm', .long_name = "distribution", .argument = kValue},
    {.long_name = "extra", .argument = kValue},
    {.long_name = "get-user-env", .argument = Argument::kOptional},
    {.long_name = "gpu-bind", .argument = kValue},
    {.long_name = "gres-flags", .argument = kValue},
    {.long_name = "hint", .argument = kValue},
    {.long_name = "ignore-pbs"},
    {.long_name = "kill-on-invalid-dep",
     .argument = kValue,
     .value = "yes",
     .instead = "a job whose dependency failed is cancelled, leave it out"},
    {.long_name = "mem-bind", .argument = kValue},
    {.long_name = "ntasks-per-core", .argument = kValue},
    {.long_name = "ntasks-per-gpu",
     .argument = kValue,
     .value = "1",
     .instead = "write --ntasks-per-node and --gpus-per-task"},
    {.long_name = "ntasks-per-socket", .argument = kValue},
    {.long_name = "oom-kill-step",
     .argument = Argument::kOptional,
     .value = "0",
     .instead = "only the process that takes the memory is killed, leave it out"},
    {.short_name = 'O', .long_name = "overcommit"},
    {.short_name = 's', .long_name = "oversubscribe"},
    {.long_name = "prefer", .argument = kValue},
    {.long_name = "profile", .argument = kValue, .value = "none", .instead = "no profile is taken, leave it out"},
    {.long_name = "propagate",
     .argument = Argument::kOptional,
     .value = "ALL",
     .instead = "all soft limits come along, leave it out"},
    {.long_name = "stepmgr"},
    {.long_name = "threads-per-core", .argument = kValue},
    {.long_name = "time-min", .argument = kValue},
    {.long_name = "tres-bind", .argument = kValue},
    {.long_name = "use-min-nodes"},
    {.short_name = 'v', .long_name = "verbose"},
    {.long_name = "wait-all-nodes", .argument = kValue},
    {.long_name = "wckey", .argument = kValue},
};

#define VRUN_COMMON_UNSUPPORTED                                                                                        \
  {0, "batch", kChoosePool}, {0, "bb", kLeaveOut}, {0, "bbf", kLeaveOut}, {0, "cluster-constraint", kChoosePool},      \
      {'M', "clusters", kChoosePool}, {0, "container", "the job runs in your root, see also --snapshot"},              \
      {0, "container-id", "the job runs in your root, see also --snapshot"},                                           \
      {'S', "core-spec", "write -c N for the cores that it needs"}, {0, "cores-per-socket", kChoosePool},              \
      {0, "cpu-freq", kNodeDecides}, {0, "cpus-per-gpu", "write -c N for the whole job"},                              \
      {0, "exclusive", "ask for all cores with -c"}, {0, "export-file", "write --export NAME=VALUE,..."},              \
      {'B', "extra-node-info", kChoosePool}, {0, "gid", "jobs run as you"}, {0, "gpu-freq", kNodeDecides},             \
      {0, "gpus-per-socket", "write -G [TYPE:]N"}, {'I', "immediate", kLeaveOut}, {'L', "licenses", kLeaveOut},        \
      {0, "mcs-label", kLeaveOut}, {0, "mem-per-cpu", "write --mem SIZE for the whole job"},                           \
      {0, "mem-per-gpu", "write --mem SIZE for the whole job"}, {0, "mincpus", "write -c N"},                          \
      {'F', "nodefile", "write --nodelist"}, {0, "power", kNodeDecides}, {0, "priority", "write --class CLASS"},       \
      {0, "reboot", kNodeDecides}, {0, "reservation", kChoosePool}, {0, "resv-ports", kLeaveOut},                      \
      {0, "sockets-per-node", kChoosePool}, {0, "thread-spec", "write -c N for the cores that it needs"},              \
      {0, "tres-per-task", "write -c, --mem and -G"}, {0, "uid", "jobs run as you"}, {'u', "usage", "write --help"}, { \
    0, "x11", "there is no display in a job, leave it out"                                                             \
  }

constexpr UnsupportedOption kRunUnsupported[] = {{'a', "array", "an array runs in the background, use vbatch"},
                                                 {0, "sweep", "an array runs in the background, use vbatch"},
                                                 {'o', "output", "redirect with the shell, > FILE"},
                                                 {'e', "error", "redirect with the shell, 2> FILE"},
                                                 {0, "open-mode", "redirect with the shell, >> FILE"},
                                                 {0, "wrap", "write the command itself"},
                                                 {0, "away", "somebody waits here for the command, use vbatch --away"},
                                                 {0, "pty", "a terminal is given by itself, or with -T"},
                                                 {'u', "unbuffered", "output is never held back, leave it out"},
                                                 VRUN_COMMON_UNSUPPORTED};
constexpr UnsupportedOption kBatchUnsupported[] = {{'W', "", "write vbatch -f, or use `vctl wait ID`"},
                                                   {'T', "tty", "a batch job has no terminal, use vrun"},
                                                   {'i', "input", "redirect in the script, < FILE"},
                                                   {0, "on-disconnect", "a batch job goes on by itself, leave it out"},
                                                   {0, "status-json", "use `vctl job ID -o json`"},
                                                   {0, "nice", "write --class CLASS, or nice in the script"},
                                                   VRUN_COMMON_UNSUPPORTED};
#undef VRUN_COMMON_UNSUPPORTED

constexpr OptionTable kRunTable{.options = kRunOptions, .unsupported = kRunUnsupported, .harmless = kHarmless};
constexpr OptionTable kBatchTable{.options = kBatchOptions, .unsupported = kBatchUnsupported, .harmless = kHarmless};

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

// Passes a parsed value to `set`, or returns the error.
template <typename T, typename F>
Status Store(Result<T> value, F set) {
  if (!value) return std::move(value).error();
  set(*std::move(value));
  return {};
}

Status StoreText(const std::string& value, std::string* to) {
  if (value.empty()) return Error(Code::kInvalid, "an empty value: write one or leave the option out");
  *to = value;
  return {};
}

// A string of the schema must be UTF-8.
Status StoreName(const std::string& value, std::string* to) {
  VRUN_TRY(StoreText(value, to));
  *to = Escape(*to);
  return {};
}

Status ApplyWrites(const std::string& value, v1::RunSpec* spec) {
  if (value != "home" && value != "keep" && value != "discard") {
    return Error(Code::kInvalid, Escape(value) + ": unknown value: write home, keep or discard");
  }
  spec->set_discard_writes(value == "discard");
  spec->set_keep_writes(value == "keep");
  return {};
}

Result<bool> ParseView(const std::string& value) {
  if (value != "live" && value != "frozen") {
    return Error(Code::kInvalid, Escape(value) + ": no such view: write live or frozen");
  }
  return value == "live";
}

Result<int> ParseNiceness(const std::string& value) {
  const bool negative = value.starts_with('-');
  const auto n = ParseNumber(std::string_view(value).substr(negative ? 1 : 0), negative ? 20 : 19);
  if (n) return negative ? -static_cast<int>(*n) : static_cast<int>(*n);
  return Error(Code::kInvalid,
               Escape(value) + ": not a niceness from -20 to 19: for the place in the queue write --class CLASS");
}

Result<v1::OnDisconnect> ParseOnDisconnect(const std::string& value) {
  if (value != "keep" && value != "cancel") return Error(Code::kInvalid, Escape(value) + ": write keep or cancel");
  return value == "keep" ? v1::ON_DISCONNECT_KEEP : v1::ON_DISCONNECT_CANCEL;
}

}  // namespace

// Refuses options that a view shared by all jobs of a node cannot provide for one of them.
Status CheckView(const RunOptions& options) {
  if (!options.live.empty() && !options.snapshot.empty()) {
    return Error(Code::kInvalid, "--live with --snapshot: a snapshot does not change: leave one out");
  }
  if (!options.spec.live_view()) return {};
  const auto with = [](const char* other) {
    return Error(Code::kInvalid,
                 std::string("--view=live with ") + other + ": " + other + " needs a frozen view: leave one out");
  };
  if (!options.snapshot.empty()) return with("--snapshot");
  if (!options.expose.empty()) return with("--expose");
  if (options.spec.discard_writes()) return with("--writes=discard");
  if (options.spec.keep_writes()) return with("--writes=keep");
  return {};
}

Status CheckAway(const RunOptions& options) {
  if (!options.away.value_or(false)) return {};
  const auto with = [](const std::string& other, const std::string& why) {
    return Error(Code::kInvalid, "--away with " + other + ": " + why + ": leave one out");
  };
  if (options.follow) return with("-f", "the output comes when this machine is back, see `vctl logs -f`");
  if (!options.snapshot.empty()) return with("--snapshot", "the job would run in two roots");
  if (!options.expose.empty()) return with("--expose", "private files never go to the pool's store");
  if (!options.live.empty()) return with("--live", "changes here cannot reach a job while this machine is off");
  if (options.spec.live_view()) return with("--view=live", "edits here cannot reach a job while this machine is off");
  return {};
}

Status CheckGang(const RunOptions& options) {
  VRUN_TRY(CheckGpus(options.spec.resources()));
  v1::RunSpec spec = options.spec;
  VRUN_TRY(ApplyShape(options.gang, options.command.empty() ? "" : options.command[0], &spec));
  if (spec.has_gang() && options.terminal == TerminalWish::kForce) {
    return Error(Code::kInvalid, "-T: a job of several processes has no terminal: leave it out");
  }
  const bool array = options.array.ranges_size() > 0 || options.array.sweeps_size() > 0;
  return CheckNetwork(spec, array);
}

namespace {

// Replaces the list.
Status StoreAll(Result<std::vector<std::string>> values, google::protobuf::RepeatedPtrField<std::string>* to) {
  if (!values) return std::move(values).error();
  to->Assign(values->begin(), values->end());
  return {};
}

constexpr uint64_t kMostWait = 365 * 24 * 3600;

// Options of different kinds beside each other are a contradiction; those of the command line replace those of a
// script.
Status ApplyGpus(const ParsedOption& option, GangOptions::Gpus of, RunOptions* out) {
  const GpuKind before = KindOf(out->spec.resources());
  const std::string_view name = option.spec->long_name;
  const std::string text = (option.spec->short_name != 0 ? std::string("-") + option.spec->short_name + " "
                                                         : "--" + std::string(name) + "=") +
                           Escape(option.value);
  VRUN_TRY(option.spec->id == kGres ? ParseGres(option.value, &out->spec) : ParseGpuWish(option.value, &out->spec));
  GangOptions& gang = out->gang;
  const GpuKind now = KindOf(out->spec.resources());
  const bool beside = !gang.gpus_option.empty() && gang.gpus_where.empty() == option.where.empty();
  if (beside && before != now && before != GpuKind::kNone && before != GpuKind::kByMemory && now != GpuKind::kNone) {
    return Error(Code::kInvalid, "the job also asks for " + gang.gpus_option +
                                     ", and a pod gets whole GPUs, a share of one or an instance: leave one out");
  }
  gang.gpus = of;
  gang.gpus_option = text;
  gang.gpus_where = option.where;
  return {};
}

Status ApplySignal(const std::string& value, v1::Scheduling* scheduling) {
  return Store(ParseEndSignal(value), [scheduling](const EndSignal& end) {
    scheduling->set_signal(end.signal);
    scheduling->set_grace_s(end.grace_s);
    scheduling->set_saves(true);
    scheduling->set_signal_shell_only(end.shell_only);
    scheduling->set_may_meet_maintenance(end.may_meet_maintenance);
  });
}

Status ApplyOpenMode(const std::string& value, RunOptions* out) {
  if (value.empty() ||
      (!std::string_view("append").starts_with(value) && !std::string_view("truncate").starts_with(value))) {
    return Error(Code::kInvalid, Escape(value) + ": no such mode: write append or truncate");
  }
  out->append_output = value[0] == 'a';
  return {};
}

Status ApplyLogPath(const std::string& value, std::string* to) {
  VRUN_TRY(StoreText(value, to));
  auto known = ExpandLogPath(value, {});
  return known ? Status() : std::move(known).error();
}

// A sweep of the command line replaces that of the same name in the script.
Status ApplySweep(const ParsedOption& option, RunOptions* out) {
  VRUN_ASSIGN(v1::Array::Sweep sweep, ParseSweep(option.value));
  for (int i = 0; i < out->array.sweeps_size(); ++i) {
    std::string& from = out->sweeps_from[static_cast<size_t>(i)];
    if (out->array.sweeps(i).name() != sweep.name() || from.empty() == option.where.empty()) continue;
    *out->array.mutable_sweeps(i) = std::move(sweep);
    from = option.where;
    return {};
  }
  *out->array.add_sweeps() = std::move(sweep);
  out->sweeps_from.push_back(option.where);
  return {};
}

Status Apply(const ParsedOption& option, RunOptions* out) {
  const std::string& value = option.value;
  v1::RunSpec* const spec = &out->spec;
  v1::Resources* const resources = spec->mutable_resources();
  v1::Scheduling* const scheduling = spec->mutable_scheduling();
  GangOptions& gang = out->gang;
  switch (static_cast<Id>(option.spec->id)) {
    case kPool: return StoreName(value, spec->mutable_pool());
    case kName: return StoreName(value, spec->mutable_name());
    case kCpus: return Store(ParseCpus(value), [&](uint32_t n) { resources->set_milli_cpus(n); });
    case kMemory: return Store(ParseMemory(value), [&](uint64_t n) { resources->set_memory_bytes(n); });
    case kGpus: return ApplyGpus(option, GangOptions::Gpus::kJob, out);
    case kGpusOfNode: return ApplyGpus(option, GangOptions::Gpus::kNode, out);
    case kGpusOfTask: return ApplyGpus(option, GangOptions::Gpus::kTask, out);
    case kTime: return Store(ParseTimeLimit(value), [&](uint64_t s) { scheduling->set_limit_s(s); });
    case kDirectory: return StoreText(value, &out->directory);
    case kExport: return ApplyExport(value, out);
    case kLive: out->live.emplace_back(); return StoreText(value, &out->live.back());
    case kExpose: out->expose.emplace_back(); return StoreText(value, &out->expose.back());
    case kTty: out->terminal = TerminalWish::kForce; return {};
    case kNoTty: out->terminal = TerminalWish::kNever; return {};
    case kSnapshot: return StoreText(value, &out->snapshot);
    case kBegin: return Store(ParseMoment(value, WallMicros()), [&](int64_t us) { scheduling->set_begin_us(us); });
    case kDeadline: return ParseDeadlines(value, WallMicros(), scheduling);
    case kDependency:
      return Store(ParseDependencies(value), [&](const Dependencies& other) {
        scheduling->mutable_after()->Assign(other.after_any.begin(), other.after_any.end());
        scheduling->mutable_after_ok()->Assign(other.after_ok.begin(), other.after_ok.end());
        scheduling->mutable_after_not_ok()->Assign(other.after_not_ok.begin(), other.after_not_ok.end());
        scheduling->mutable_after_start()->Assign(other.after_start.begin(), other.after_start.end());
        scheduling->mutable_after_corresponding()->Assign(other.after_corresponding.begin(),
                                                          other.after_corresponding.end());
        scheduling->set_singleton(other.singleton);
      });
    case kView: return Store(ParseView(value), [&](bool live) { spec->set_live_view(live); });
    case kQuiet: out->quiet = true; return {};
    case kExplainIo: out->explain_io = true; return {};
    case kStatusJson: return StoreText(value, &out->status_json);
    case kWrites: return ApplyWrites(value, spec);
    case kDiscard: return ApplyWrites("discard", spec);
    case kClass: return Store(ParseJobClass(value), [&](v1::JobClass klass) { scheduling->set_class_(klass); });
    case kTeam: return StoreName(value, scheduling->mutable_team());
    case kProject: return StoreName(value, scheduling->mutable_project());
    case kMailType: return ParseMailType(value, &out->notify);
    case kMailUser: return ParseMailUser(value, &out->notify);
    case kNotifyUrl: return ParseNotifyUrl(value, &out->notify);
    case kRequeue: scheduling->set_requeue(true); return {};
    case kNoRequeue: scheduling->set_requeue(false); return {};
    case kSignal: return ApplySignal(value, scheduling);
    case kArray: return ParseArray(value, &out->array);
    case kSweep: return ApplySweep(option, out);
    case kOutput: return ApplyLogPath(value, &out->output);
    case kError: return ApplyLogPath(value, &out->error);
    case kOpenMode: return ApplyOpenMode(value, out);
    case kWrap: return StoreText(value, &out->wrap);
    case kGres: return value == "none" ? Status() : ApplyGpus(option, GangOptions::Gpus::kNode, out);
    case kShare: return ParseShare(value, spec);
    case kGpuMemory: return ParseGpuMemory(value, spec);
    case kOnDisconnect:
      return Store(ParseOnDisconnect(value), [&](v1::OnDisconnect what) { scheduling->set_on_disconnect(what); });
    case kNice: return Store(ParseNiceness(value), [&](int n) { spec->mutable_command()->set_nice(n); });
    case kFollow: out->follow = true; return {};
    case kParsable: out->parsable = true; return {};
    case kNodes: return ParseNodes(value, &gang);
    case kTasks: return Store(ParseTasks(value), [&](uint32_t n) { gang.tasks = n; });
    case kTasksPerNode: return Store(ParseTasks(value), [&](uint32_t n) { gang.tasks_per_node = n; });
    case kLabel: gang.label = true; return {};
    case kInput: return Store(ParseInputRank(value), [&](int32_t rank) { gang.input_rank = rank; });
    case kNoKill: gang.no_kill = true; return {};
    case kKillOnBadExit:
      if (!value.empty() && value != "0" && value != "1")
        return Error(Code::kInvalid, Escape(value) + ": write 0 or 1");
      gang.no_kill = value == "0";
      return {};
    case kWait:
      return Store(ParseNumber(value, kMostWait), [&](uint64_t s) { gang.wait_s = static_cast<uint32_t>(s); });
    case kNoSlurmEnv: gang.no_slurm_environment = true; return {};
    case kLauncher: gang.launcher = true; return {};
    case kNoLauncher: gang.launcher = false; return {};
    case kNoStdin:
      // Slurm's -n N.
      if (!value.empty()) return Store(ParseTasks(value), [&](uint32_t n) { gang.tasks = n; });
      out->no_stdin = true;
      return {};
    case kConstraint: return StoreAll(ParseLabels(value), scheduling->mutable_labels());
    case kTolerate: return StoreAll(ParseTaints(value), scheduling->mutable_tolerations());
    // The controller, which knows the nodes, reads lists like n[1-4].
    case kNodelist: scheduling->clear_nodes(); return StoreName(value, scheduling->add_nodes());
    case kExclude: scheduling->clear_excluded_nodes(); return StoreName(value, scheduling->add_excluded_nodes());
    case kTopology: return ParseTopology(value, scheduling);
    case kSwitches: return ParseSwitches(value, scheduling);
    case kSegment: return ParseSegment(value, scheduling);
    case kSpread: return ParseSpread(value, scheduling);
    case kCheckpoint: return ParseCheckpoint(value, scheduling);
    case kRetry: return Store(ParseRetry(value), [&](const v1::RetryRule& rule) { *scheduling->add_retries() = rule; });
    case kHold: scheduling->set_hold(true); return {};
    case kTestOnly: out->test_only = true; return {};
    case kAway: out->away = true; return {};
    case kNoAway: out->away = false; return {};
    case kNoWait: out->wait_until_away = false; return {};
    case kNetwork: return ParseNetwork(value, spec);
    case kTmp: return Store(ParseMemory(value), [&](uint64_t n) { spec->set_tmp_bytes(n); });
    case kSecret: return ParseSecret(value, spec);
    case kPublish: return ParsePublish(value, spec);
    case kPortOrPool: return ParsePortOrPool(value, spec);
    case kHelp: out->help = true; return {};
    case kVersion: out->version = true; return {};
  }
  return Error(Code::kInternal, "internal error: an option is not handled");
}

Result<RunOptions> Parse(const OptionTable& table, std::span<const std::string> words) {
  VRUN_ASSIGN(ParsedWords parsed, ParseWords(table, words));
  RunOptions out;
  VRUN_TRY(ApplyOptions(parsed.options, &out));
  VRUN_TRY(CheckView(out));
  VRUN_TRY(CheckAway(out));
  out.notes = std::move(parsed.notes);
  out.command = std::move(parsed.operands);
  VRUN_TRY(CheckGang(out));
  out.after_dashes = parsed.after_dashes;
  return out;
}

}  // namespace

const OptionTable& RunTable() { return kRunTable; }
const OptionTable& BatchTable() { return kBatchTable; }

Status ApplyOptions(std::span<const ParsedOption> options, RunOptions* out) {
  for (const ParsedOption& option : options) {
    Status status = Apply(option, out);
    if (status) continue;
    const std::string_view name = option.spec->long_name;
    Error error = std::move(status).error().With(name.empty() ? std::string("-") + option.spec->short_name
                                                              : "--" + std::string(name));
    return option.where.empty() ? error : std::move(error).With(option.where);
  }
  return {};
}

Result<bool> CompleteArray(RunOptions* options) {
  v1::Array* array = &options->array;
  const bool asked = array->ranges_size() > 0 || array->sweeps_size() > 0 || array->most_running() > 0;
  if (!asked) return false;
  Complete(array);
  VRUN_TRY(CheckArray(*array));
  v1::RunSpec spec;
  spec.mutable_command()->mutable_argv()->Assign(options->command.begin(), options->command.end());
  VRUN_TRY(CheckNames(spec, *array));
  if (options->follow) {
    return Error(Code::kInvalid,
                 "-f: the elements of an array have an output each: use `vctl wait ID`, and `vctl logs "
                 "-f ID_INDEX` for one of them");
  }
  return true;
}

Result<RunOptions> ParseRun(std::span<const std::string> words) { return Parse(kRunTable, words); }
Result<RunOptions> ParseBatch(std::span<const std::string> words) { return Parse(kBatchTable, words); }

}  // namespace vrun::cli
