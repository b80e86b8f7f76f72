// SPDX-License-Identifier: Apache-2.0
#include "cli/run/status_json.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <optional>

#include "base/escape.h"
#include "base/files.h"
#include "cli/base/exit_status.h"
#include "cli/base/json.h"
#include "cli/base/values.h"
#include "jobs/gang.h"

namespace vrun::cli {
namespace {

// N of "fd:N", nullopt for a file.
Result<std::optional<int>> Descriptor(const std::string& where) {
  if (!where.starts_with("fd:")) return std::optional<int>();
  VRUN_ASSIGN(uint64_t n, ParseNumber(std::string_view(where).substr(3), 1 << 20));
  return std::optional<int>(static_cast<int>(n));
}

int SignalOf(const RunOutcome& outcome) {
  if (outcome.finished && outcome.finished->has_record()) return outcome.finished->record().signal();
  return outcome.exit_status > kExitSignal && outcome.exit_status <= kExitSignal + 64
             ? outcome.exit_status - kExitSignal
             : 0;
}

}  // namespace

std::string FormatStatus(const RunOutcome& outcome) {
  v1::Finished none;
  const v1::Finished& f = outcome.finished ? *outcome.finished : none;
  JsonWriter json;
  json.BeginObject().Key("schema").Int(kJsonSchema).Key("job");
  outcome.job != 0 ? json.Uint(outcome.job) : json.Null();
  json.Key("attempt").Uint(f.attempt()).Key("state").String(StateName(outcome.state));
  json.Key("reason").String(outcome.reason).Key("exit").Int(outcome.exit_status).Key("signal");
  SignalOf(outcome) != 0 ? json.Int(SignalOf(outcome)) : json.Null();
  json.Key("node").String(f.node().empty() && f.has_record() ? f.record().node() : f.node());
  json.Key("queued_s").Seconds(f.queued_us()).Key("ran_s").Seconds(f.ran_us()).Key("first_output_s");
  f.first_output_us() != 0 ? json.Seconds(static_cast<int64_t>(f.first_output_us()) + outcome.sent_after_us)
                           : json.Null();
  json.Key("fetched_bytes").Uint(f.fetched_bytes()).Key("root_bytes").Uint(f.root_bytes());
  json.Key("root_entries").Uint(f.root_entries()).Key("oom_kills").Uint(f.record().oom_kills());
  if (f.ranks_size() > 0) {
    json.Key("ranks").BeginArray();
    for (const v1::RankExit& rank : f.ranks()) {
      json.BeginObject().Key("rank").Uint(rank.rank()).Key("node").String(rank.node());
      json.Key("exit").Int(RankStatus(rank)).Key("signal");
      rank.signal() != 0 ? json.Int(rank.signal()) : json.Null();
      json.Key("killed").Bool(rank.killed()).EndObject();
    }
    json.EndArray();
  }
  json.EndObject();
  return json.Take();
}

Status CheckStatusTarget(const std::string& where) {
  auto fd = Descriptor(where);
  if (!fd) return std::move(fd).error().With("--status-json " + Escape(where));
  if (*fd) {
    int flags = ::fcntl(**fd, F_GETFL);
    if (flags < 0 || (flags & O_ACCMODE) == O_RDONLY) {
      return Error(Code::kInvalid, "--status-json " + Escape(where) + ": not open for writing: open it in the shell, " +
                                       std::to_string(**fd) + ">FILE");
    }
    return {};
  }
  struct stat st;
  if (::stat(where.c_str(), &st) == 0 && S_ISDIR(st.st_mode)) {
    return Error(Code::kInvalid, "--status-json " + Escape(where) + ": a directory: name a file");
  }
  size_t slash = where.rfind('/');
  std::string parent = slash == std::string::npos ? "." : where.substr(0, slash + 1);
  if (::access(parent.c_str(), W_OK | X_OK) != 0 && ::access(where.c_str(), W_OK) != 0) {
    return ErrnoError("--status-json " + Escape(where)).With("write the status");
  }
  return {};
}

Status WriteStatus(const std::string& where, const std::string& text) {
  VRUN_ASSIGN(auto descriptor, Descriptor(where));
  if (descriptor) return WriteAll(*descriptor, text);
  struct stat st;
  bool special = ::stat(where.c_str(), &st) == 0 && !S_ISREG(st.st_mode);
  if (!special) return WriteFileAtomic(where, text, 0644);
  VRUN_ASSIGN(UniqueFd fd, OpenFile(where, O_WRONLY));
  return WriteAll(fd.get(), text);
}

}  // namespace vrun::cli
