// SPDX-License-Identifier: Apache-2.0
#include "cli/ctl/kept_writes.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/escape.h"
#include "cli/array/job_ids.h"
#include "cli/base/home_connection.h"
#include "cli/base/json.h"
#include "cli/base/table.h"
#include "cli/base/terminal.h"
#include "cli/ctl/job_view.h"
#include "cli/request/job_command.h"
#include "cli/run/command_run.h"
#include "cli/run/job_log.h"

namespace vrun::cli {
namespace {

std::string KindOf(const v1::WriteBack& write) {
  switch (write.op_case()) {
    case v1::WriteBack::kPutFile: return "file";
    case v1::WriteBack::kMakeDirectory: return "directory";
    case v1::WriteBack::kMakeSymlink: return "symlink";
    case v1::WriteBack::kMakeSpecial: return "special";
    case v1::WriteBack::kMakeHardLink: return "link";
    case v1::WriteBack::kRemove: return "removed";
    case v1::WriteBack::kRename: return "renamed";
    default: return "attributes";
  }
}

std::string OriginOf(const v1::WriteBack& write) {
  if (write.has_make_symlink()) return write.make_symlink().target();
  if (write.has_make_hard_link()) return write.make_hard_link().existing();
  return write.has_rename() ? write.rename().from() : "";
}

class Answers {
 public:
  Answers(const CtlInvocation& invocation, bool pull, bool list)
      : invocation_(invocation), pull_(pull), list_(list), terminal_(::isatty(2) == 1) {
    json_.BeginObject().Key("schema").Int(kJsonSchema).Key(list ? "entries" : "results").BeginArray();
  }
  ~Answers() { Erase(); }

  void Take(const v1::KeptAnswer& answer) {
    Erase();
    if (answer.has_entry()) Entry(answer.entry());
    if (answer.has_progress()) Progress(answer.progress());
    if (!answer.notice().empty()) std::fprintf(stderr, "vctl: %s\n", SafeLine(answer.notice()).c_str());
    if (answer.has_result()) Told(answer.result());
  }

  int Finish() {
    json_.EndArray().EndObject();
    if (invocation_.json()) {
      Print(json_.Take());
    } else if (list_ && invocation_.format != OutputFormat::kName) {
      Print(table_.Format(invocation_.headers));
    }
    return failed_ ? 1 : 0;
  }

 private:
  void Entry(const v1::WriteBack& write) {
    // Metadata of a directory at the end of its writes repeats what the directory's own entry says.
    if (write.has_set_meta() && S_ISDIR(write.set_meta().meta().mode())) return;
    const std::string kind = KindOf(write), from = OriginOf(write);
    if (invocation_.json()) {
      json_.BeginObject().Key("path").String(write.path()).Key("kind").String(kind);
      json_.Key("bytes").Uint(write.put_file().size()).Key("from").String(from).EndObject();
    } else if (invocation_.format == OutputFormat::kName) {
      Print(Escape(write.path()) + "\n");
    } else {
      const std::string path =
          Escape(write.path()) + (from.empty() ? "" : (write.has_rename() ? " <- " : " -> ") + Escape(from));
      table_.Add({kind, write.has_put_file() ? FormatBytes(write.put_file().size()) : "", path});
    }
  }

  void Told(const v1::KeptResult& result) {
    const v1::Kept& kept = result.kept();
    failed_ |= result.failed() > 0;
    if (invocation_.json()) {
      json_.BeginObject().Key("attempt").Uint(kept.attempt()).Key("node").String(kept.node());
      json_.Key("files").Uint(result.files()).Key("bytes").Uint(result.bytes()).Key("failed").Uint(result.failed());
      json_.Key("still_kept").Bool(kept.state() == v1::KEPT_THERE).EndObject();
      return;
    }
    const std::string node = Escape(kept.node());
    if (!pull_)
      return Print("dropped " + std::to_string(kept.files()) + " files, " + FormatBytes(kept.bytes()) + ", on " + node +
                   "\n");
    std::string text = std::to_string(result.files()) + (result.files() == 1 ? " file, " : " files, ") +
                       FormatBytes(result.bytes()) + " from " + node;
    if (result.failed() > 0) text += ", " + std::to_string(result.failed()) + " writes could not be put in place";
    if (kept.state() == v1::KEPT_THERE) text += "; it stays there, until " + FormatRfc3339(kept.until_us());
    Print(text + "\n");
  }

  void Progress(const v1::KeptProgress& p) {
    if (!terminal_) return;
    std::string line =
        "from " + Escape(p.node()) + ": " + FormatBytes(p.bytes()) + " of " + FormatBytes(p.total_bytes());
    line.resize(std::min(line.size(), TerminalColumns(2) - 1));
    std::fprintf(stderr, "%s", line.c_str());
    drawn_ = true;
  }
  void Erase() {
    if (std::exchange(drawn_, false)) std::fprintf(stderr, "\r\x1b[K");
  }

  const CtlInvocation& invocation_;
  const bool pull_, list_, terminal_;
  bool drawn_ = false, failed_ = false;
  Table table_{{"KIND", "SIZE", "PATH"}};
  JsonWriter json_;
};

}  // namespace

Result<int> RunKept(const CtlInvocation& invocation, bool pull, bool list, const std::optional<std::string>& to) {
  const auto& words = invocation.words.operands;
  VRUN_ASSIGN(HomeConnection home, HomeConnection::Make());
  v1::ClientMessage message;
  auto* query = message.mutable_query()->mutable_kept();
  VRUN_ASSIGN(const v1::JobSelection one, ParseOneJob(words[0]));
  query->set_job(one.job());
  if (ElementOf(one)) {
    VRUN_ASSIGN(const v1::JobInfo element, AskForJob(home, one));
    query->set_job(element.job());
  }
  if (pull) {
    VRUN_ASSIGN(std::string directory, CurrentDirectory());
    VRUN_ASSIGN(std::string root, ConfiguredRoot());
    query->mutable_pull()->set_list(list);
    if (to) query->mutable_pull()->set_to(Absolute(*to, directory));
    for (size_t i = 2; i < words.size(); ++i)
      query->mutable_pull()->add_paths(InRoot(Absolute(words[i], directory), root));
  } else {
    query->mutable_drop();
  }
  Answers answers(invocation, pull, list);
  VRUN_ASSIGN(UniqueFd socket, home.ConnectOrStart());
  VRUN_TRY(SendMessage(socket.get(), message));
  for (;;) {
    VRUN_ASSIGN(v1::HomeMessage answer, ReceiveMessage(socket.get(), pull && !list));
    if (answer.has_error()) return FromWire(answer.error());
    if (answer.has_done()) return answers.Finish();
    if (!answer.has_kept()) return Error(Code::kInternal, "home: unexpected answer instead of kept writes");
    answers.Take(answer.kept());
  }
}

}  // namespace vrun::cli
