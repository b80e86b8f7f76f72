// SPDX-License-Identifier: Apache-2.0
// vctl env create, list, show, shell, clone, delete
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "base/clock.h"
#include "base/escape.h"
#include "base/files.h"
#include "cli/base/daemon_process.h"
#include "cli/base/json.h"
#include "cli/base/table.h"
#include "cli/ctl/ctl.h"
#include "cli/host/env_shell.h"
#include "cli/host/environments.h"
#include "cli/request/job_command.h"

namespace vrun::cli {
namespace {

enum Id { kSnapshot, kTar, kDebootstrap, kEnv, kForce };
constexpr OptionSpec kOptions[] = {
    {kSnapshot, 0, "from-snapshot", Argument::kRequired, "SNAP", "create: of this snapshot", Completes::kSnapshots},
    {kTar, 0, "from-tar", Argument::kRequired, "FILE", "create: of this archive of a root", Completes::kFiles},
    {kDebootstrap, 0, "from-debootstrap", Argument::kRequired, "SUITE",
     "create: a fresh Debian or Ubuntu, as bookworm"},
    {kEnv, 0, "from-env", Argument::kRequired, "OTHER", "create: a clone"},
    {kForce, 0, "force", Argument::kNone, "", "delete: also one in which something runs: it is killed"},
};

struct Action {
  std::string_view name;
  size_t least, most;  // operands behind it
  std::string_view usage;
};
constexpr Action kActions[] = {
    {"create", 1, 1,
     "create NAME --from-snapshot SNAP | --from-tar FILE | --from-debootstrap SUITE | --from-env OTHER"},
    {"list", 0, 0, "list"},
    {"show", 1, 1, "show NAME"},
    {"shell", 1, SIZE_MAX, "shell NAME [-- COMMAND...]"},
    {"clone", 2, 2, "clone FROM NAME"},
    {"delete", 1, 1, "delete NAME [--force]"},
};

Status Validate(const CtlInvocation& invocation) {
  const auto& words = invocation.words.operands;
  if (words.empty()) return Error(Code::kInvalid, "no action: write create, list, show, shell, clone or delete");
  const auto* action =
      std::find_if(std::begin(kActions), std::end(kActions), [&](const Action& a) { return a.name == words[0]; });
  if (action == std::end(kActions)) {
    return Error(Code::kInvalid, Escape(words[0]) + ": not one of create, list, show, shell, clone and delete");
  }
  const size_t n = words.size() - 1;
  size_t origins = 0;
  for (int id : {kSnapshot, kTar, kDebootstrap, kEnv}) origins += invocation.Has(id);
  if (n < action->least || n > action->most || origins != (words[0] == "create" ? 1u : 0u) ||
      (invocation.Has(kForce) && words[0] != "delete")) {
    return Error(Code::kInvalid, "the wrong arguments: write `vctl env " + std::string(action->usage) + "`");
  }
  return {};
}

// --- create

volatile sig_atomic_t interrupted = 0;
volatile pid_t working = 0;

void Interrupt(int signal) {
  interrupted = signal;
  if (working > 0) ::kill(-working, SIGKILL);
}

// Runs a tool to its end; a signal to us ends it. An error has the tool's message.
Status RunTool(const std::vector<std::string>& words, const std::string& where) {
  if (interrupted != 0) return Error(Code::kAborted, "interrupted");
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return ErrnoError("pipe");
  UniqueFd read(ends[0]), write(ends[1]);
  std::vector<std::string> copy = words;
  std::vector<char*> argv;
  for (std::string& word : copy) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) return ErrnoError("fork");
  if (child == 0) {
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(127);  // killed before that line
    const int null = ::open("/dev/null", O_RDWR);
    if (::dup2(null, 0) < 0 || ::dup2(null, 1) < 0 || ::dup2(write.get(), 2) < 0) ::_exit(127);
    ::execvp(argv[0], argv.data());
    ::_exit(127);
  }
  ::setpgid(child, child);
  working = child;
  if (interrupted != 0) ::kill(-child, SIGKILL);  // the signal came before the child existed
  write.Reset();
  // Reads everything, so that the tool never blocks on the pipe. Reports the first line that names the cause.
  std::string text, piece(4096, 0);
  for (ssize_t n; (n = ::read(read.get(), piece.data(), piece.size())) > 0 || (n < 0 && errno == EINTR);) {
    if (n > 0 && text.size() < 65536) text.append(piece, 0, static_cast<size_t>(n));
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  working = 0;
  if (interrupted != 0) return Error(Code::kAborted, "interrupted: the unfinished environment was removed");
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  if (WIFEXITED(status) && WEXITSTATUS(status) == 127 && text.empty()) {
    return Error(Code::kNotFound, Escape(words[0]) + ": it is not installed on this machine: install it");
  }
  struct statvfs disk;
  const bool full = text.find("No space left") != std::string::npos ||
                    (::statvfs(where.c_str(), &disk) == 0 && (disk.f_bavail == 0 || disk.f_favail == 0));
  if (full) return Error(Code::kExhausted, "the disk of " + Escape(where) + " is full: free space on it");
  const std::string line = text.substr(0, text.find('\n'));
  return Error(Code::kInternal, line.empty() ? Escape(words[0]) + " failed" : SafeLine(line));
}

Status Unpack(const std::string& archive, const std::string& tree) {
  std::vector<std::string> words{
      "tar", "-x", "-p", "--numeric-owner", "--xattrs", "--xattrs-include=*", "--acls", "-C", tree, "-f", archive};
  VRUN_TRY(RunTool(words, tree));
  if (PathExists(tree + "/bin") || PathExists(tree + "/usr")) return {};
  return Error(Code::kInvalid, Escape(archive) + ": it has neither /bin nor /usr: give an archive of a whole root");
}

// Gets the snapshot's only layer from the command that exports it.
Status FillFromSnapshot(const std::string& snapshot, const std::string& tree) {
  VRUN_ASSIGN(std::string vctl, FindProgram("vctl"));
  const std::string oci = tree + "/.vrun-oci";
  Status done = RunTool({vctl, "snapshot", "export", snapshot, "--oci", oci}, tree);
  std::string layer;
  if (done) {
    // The layer is by far the largest blob; the others are lists of a few hundred bytes.
    done = RunTool(
        {"sh", "-c", "ln \"$(ls -S -d \"$1\"/blobs/sha256/* | head -n 1)\" \"$2\"", "sh", oci, tree + "/.vrun-layer"},
        tree);
  }
  if (done) done = RemoveTree(oci);
  if (done) {
    done = RunTool({"tar", "-x", "-p", "--zstd", "--numeric-owner", "--xattrs", "--xattrs-include=*", "-C", tree, "-f",
                    tree + "/.vrun-layer"},
                   tree);
  }
  ::unlink((tree + "/.vrun-layer").c_str());
  return done;
}

Status Create(Environments* environments, const CtlInvocation& invocation) {
  const std::string& name = invocation.words.operands[1];
  if (auto other = invocation.Value(kEnv)) return environments->Clone(*other, name);
  struct sigaction action {};
  action.sa_handler = Interrupt;
  for (int s : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) ::sigaction(s, &action, nullptr);
  if (auto tar = invocation.Value(kTar)) {
    VRUN_ASSIGN(std::string directory, CurrentDirectory());
    const std::string archive = Absolute(*tar, directory);
    VRUN_ASSIGN(UniqueFd readable, OpenFile(archive, O_RDONLY));
    return environments->Create(name, "tar " + *tar, [&](const std::string& tree) { return Unpack(archive, tree); });
  }
  if (auto snapshot = invocation.Value(kSnapshot)) {
    return environments->Create(name, "snapshot " + *snapshot,
                                [&](const std::string& tree) { return FillFromSnapshot(*snapshot, tree); });
  }
  const std::string suite = *invocation.Value(kDebootstrap);
  if (suite.empty() || suite[0] == '-')
    return Error(Code::kInvalid, Escape(suite) + ": not a suite: write a name such as bookworm");
  return environments->Create(name, "debootstrap " + suite, [&](const std::string& tree) {
    return RunTool({"debootstrap", suite, tree}, tree);
  });
}

// --- list, show

void WriteJson(const Environment& e, JsonWriter* json) {
  json->BeginObject().Key("name").String(e.name).Key("from").String(e.from).Key("created").Time(e.created_us);
  json->Key("layers").Uint(e.layers.size()).Key("in_use").Bool(e.in_use).EndObject();
}

Result<int> List(const Environments& environments, const CtlInvocation& invocation) {
  VRUN_ASSIGN(std::vector<Environment> all, environments.List());
  if (invocation.json()) {
    JsonWriter json;
    json.BeginObject().Key("schema").Int(kJsonSchema).Key("environments").BeginArray();
    for (const Environment& e : all) WriteJson(e, &json);
    json.EndArray().EndObject();
    Print(json.Take());
    return 0;
  }
  Table table({"NAME", "FROM", "CREATED", "IN USE"});
  std::string names;
  for (const Environment& e : all) {
    table.Add({e.name, e.from, FormatRfc3339(e.created_us), e.in_use ? "yes" : "no"});
    names += e.name + "\n";
  }
  Print(invocation.format == OutputFormat::kName ? names : table.Format(invocation.headers));
  return 0;
}

Result<int> Show(const Environments& environments, const CtlInvocation& invocation) {
  VRUN_ASSIGN(Environment e, environments.Find(invocation.words.operands[1]));
  const uint64_t bytes = environments.OwnBytes(e);
  if (invocation.json()) {
    JsonWriter json;
    json.BeginObject().Key("schema").Int(kJsonSchema).Key("own_bytes").Uint(bytes).Key("environment");
    WriteJson(e, &json);
    json.EndObject();
    Print(json.Take());
    return 0;
  }
  Print("environment " + e.name + ": from " + SafeLine(e.from) + ", " + FormatRfc3339(e.created_us) + "; " +
        FormatBytes(bytes) + " of its own above " + std::to_string(e.layers.size()) +
        (e.layers.size() == 1 ? " layer" : " layers") + (e.in_use ? "; in use\n" : "\n"));
  return 0;
}

Result<int> Run(const CtlInvocation& invocation) {
  VRUN_ASSIGN(Places places, FindPlaces());
  // Below VRUN_DIR if it is set, else the machine's own directory.
  const char* own = std::getenv("VRUN_DIR");
  VRUN_ASSIGN(Environments environments,
              Environments::Open(own != nullptr && *own == '/' ? std::string(own) + "/env" : "/var/lib/vrun/env"));
  const auto& words = invocation.words.operands;
  if (words[0] == "list") return List(environments, invocation);
  if (words[0] == "show") return Show(environments, invocation);
  if (words[0] == "shell") return RunInEnvironment(environments, words[1], {words.begin() + 2, words.end()}, places);
  if (words[0] == "create") VRUN_TRY(Create(&environments, invocation));
  if (words[0] == "clone") VRUN_TRY(environments.Clone(words[1], words[2]));
  if (words[0] == "delete") VRUN_TRY(environments.Delete(words[1], invocation.Has(kForce)));
  return 0;
}

}  // namespace

const CtlCommand kCtlEnv{"env",
                         "create|list|show|shell|clone|delete",
                         "root file systems for people without a machine",
                         kOptions,
                         Completes::kEnvActions,
                         Validate,
                         Run};

}  // namespace vrun::cli
