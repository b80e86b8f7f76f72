// SPDX-License-Identifier: Apache-2.0
// vctl snapshot create, list, show, diff, delete, export
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <functional>
#include <vector>

#include "base/escape.h"
#include "base/files.h"
#include "cli/base/home_connection.h"
#include "cli/base/json.h"
#include "cli/base/table.h"
#include "cli/base/values.h"
#include "cli/ctl/ctl.h"
#include "cli/request/job_command.h"

namespace vrun::cli {
namespace {

enum Id { kOci };
constexpr OptionSpec kOptions[] = {
    {kOci, 0, "oci", Argument::kRequired, "DIR", "export: an OCI image layout in this new directory",
     Completes::kDirectories},
};

struct Action {
  std::string_view name;
  size_t least, most;  // operands behind it
  std::string_view usage;
};
constexpr Action kActions[] = {
    {"create", 1, SIZE_MAX, "create NAME [PATH...]"},
    {"list", 0, 0, "list"},
    {"show", 1, 1, "show NAME"},
    {"diff", 2, 2, "diff FROM TO"},
    {"delete", 1, SIZE_MAX, "delete NAME..."},
    {"export", 1, 1, "export NAME --oci DIR"},
};

Status Validate(const CtlInvocation& invocation) {
  const auto& words = invocation.words.operands;
  if (words.empty()) return Error(Code::kInvalid, "no action: write create, list, show, diff, delete or export");
  const auto* action =
      std::find_if(std::begin(kActions), std::end(kActions), [&](const Action& a) { return a.name == words[0]; });
  if (action == std::end(kActions)) {
    return Error(Code::kInvalid, Escape(words[0]) + ": not one of create, list, show, diff, delete and export");
  }
  const size_t n = words.size() - 1;
  const bool to = invocation.Has(kOci);
  if (n < action->least || n > action->most || to != (words[0] == "export")) {
    return Error(Code::kInvalid, "the wrong arguments: write `vctl snapshot " + std::string(action->usage) + "`");
  }
  return {};
}

using OnEvent = std::function<Status(const v1::SnapshotEvent&)>;

// Sends one request; `heard` gets every part of the answer.
Status AskHome(const v1::SnapshotRequest& request, const OnEvent& heard) {
  VRUN_ASSIGN(HomeConnection home, HomeConnection::Make());
  v1::ClientMessage message;
  *message.mutable_query()->mutable_snapshot() = request;
  VRUN_ASSIGN(UniqueFd socket, home.ConnectOrStart());
  VRUN_TRY(SendMessage(socket.get(), message));
  for (;;) {
    VRUN_ASSIGN(v1::HomeMessage answer, ReceiveMessage(socket.get(), request.has_create()));
    if (answer.has_error()) return FromWire(answer.error());
    if (answer.has_done()) return {};
    if (!answer.has_snapshot()) return Error(Code::kInternal, "home: unexpected answer instead of a snapshot");
    VRUN_TRY(heard(answer.snapshot()));
  }
}

std::string HexOf(const std::string& bytes) {
  std::string out;
  for (unsigned char b : bytes) {
    out.push_back("0123456789abcdef"[b >> 4]);
    out.push_back("0123456789abcdef"[b & 15]);
  }
  return out;
}

void WriteJson(const v1::SnapshotInfo& s, JsonWriter* json) {
  json->BeginObject().Key("name").String(s.reference().name()).Key("id").String(HexOf(s.reference().id()));
  json->Key("created").Time(s.created_us()).Key("entries").Uint(s.entries()).Key("bytes").Uint(s.bytes());
  json->Key("sent_bytes").Uint(s.sent_bytes()).Key("home").String(s.home_id());
  json->Key("paths").BeginArray();
  for (const std::string& path : s.path()) json->String(path);
  json->EndArray()
      .Key("bucket")
      .String(s.bucket())
      .Key("unreadable_files")
      .Uint(s.unreadable_files())
      .Key("unreadable")
      .BeginArray();
  for (const std::string& path : s.unreadable()) json->String(path);
  json->EndArray().EndObject();
}

std::string LocalTime(int64_t wall_us) {
  const time_t seconds = wall_us / 1'000'000;
  tm parts{};
  ::localtime_r(&seconds, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts);
  return text;
}

// --- create, show

void WarnOfUnreadable(const v1::SnapshotInfo& s) {
  if (s.unreadable_files() == 0) return;
  std::fprintf(stderr, "vctl: %llu files are not in it, your user may not read them: %s%s\n",
               static_cast<unsigned long long>(s.unreadable_files()), Escape(s.unreadable(0)).c_str(),
               s.unreadable_files() > 1 ? ", ...: `vctl snapshot show` names them" : "");
}

void PrintOne(const CtlInvocation& invocation, const v1::SnapshotInfo& s, bool created) {
  if (invocation.json()) {
    JsonWriter json;
    json.BeginObject().Key("schema").Int(kJsonSchema).Key("snapshot");
    WriteJson(s, &json);
    json.EndObject();
    return Print(json.Take());
  }
  const std::string name = Escape(s.reference().name());
  if (invocation.format == OutputFormat::kName) return Print(name + "\n");
  std::string text = "snapshot " + name + ": " + std::to_string(s.entries()) + " names, " + FormatBytes(s.bytes());
  if (created) {
    text += "; " + FormatBytes(s.sent_bytes()) + " were sent to the store";
    Print(text + (s.bucket().empty() ? "\n" : ", the S3 bucket " + Escape(s.bucket()) + " has it\n"));
    return WarnOfUnreadable(s);
  }
  text += "\nid       " + HexOf(s.reference().id()) + "\ncreated  " + LocalTime(s.created_us()) + "\n";
  text += "kept     " +
          (s.bucket().empty() ? "on the snapshot store's disk" : "in the S3 bucket " + Escape(s.bucket())) + "\n";
  for (const std::string& path : s.path()) text += "path     " + Escape(path) + "\n";
  for (const std::string& path : s.unreadable()) text += "without  " + Escape(path) + " (it could not be read)\n";
  Print(text);
}

// A line that is redrawn on a terminal about five times a second.
void Draw(const v1::SnapshotProgress& p) {
  if (p.total_saved_bytes() > 0) {
    std::fprintf(stderr, "\r\x1b[K%s of %s to the S3 store", FormatBytes(p.saved_bytes()).c_str(),
                 FormatBytes(p.total_saved_bytes()).c_str());
    return;
  }
  std::fprintf(stderr, "\r\x1b[K%llu of %llu files, %s of %s", static_cast<unsigned long long>(p.files()),
               static_cast<unsigned long long>(p.total_files()), FormatBytes(p.bytes()).c_str(),
               FormatBytes(p.total_bytes()).c_str());
}

Result<int> CreateOrShow(const CtlInvocation& invocation) {
  const auto& words = invocation.words.operands;
  const bool create = words[0] == "create";
  v1::SnapshotRequest request;
  if (create) {
    request.mutable_create()->set_name(words[1]);
    VRUN_ASSIGN(const std::string here, CurrentDirectory());
    VRUN_ASSIGN(const HomeConnection home, HomeConnection::Make());
    auto config = ReadConfig(home.places().config_file);
    const std::string root = config ? config->root : "/";
    for (size_t i = 2; i < words.size(); ++i) {
      request.mutable_create()->add_path(InRoot(Absolute(words[i], here), root));
    }
  } else {
    request.mutable_show()->set_name(words[1]);
  }
  v1::SnapshotInfo info;
  bool drawn = false;
  const Status asked = AskHome(request, [&](const v1::SnapshotEvent& event) -> Status {
    if (event.has_snapshot()) info = event.snapshot();
    if (event.has_progress() && ::isatty(2) == 1) {
      Draw(event.progress());
      drawn = true;
    }
    return {};
  });
  if (drawn) std::fprintf(stderr, "\r\x1b[K");
  VRUN_TRY(asked);
  PrintOne(invocation, info, create);
  return 0;
}

// --- list

Result<int> List(const CtlInvocation& invocation) {
  v1::SnapshotRequest request;
  request.mutable_list();
  std::vector<v1::SnapshotInfo> all;
  VRUN_TRY(AskHome(request, [&](const v1::SnapshotEvent& event) -> Status {
    if (event.has_snapshot()) all.push_back(event.snapshot());
    return {};
  }));
  if (invocation.json()) {
    JsonWriter json;
    json.BeginObject().Key("schema").Int(kJsonSchema).Key("snapshots").BeginArray();
    for (const v1::SnapshotInfo& s : all) WriteJson(s, &json);
    json.EndArray().EndObject();
    Print(json.Take());
    return 0;
  }
  const bool wide = invocation.format == OutputFormat::kWide;
  std::vector<std::string> columns{"NAME", "CREATED", "NAMES", "SIZE", "OF"};
  if (wide) columns.insert(columns.end(), {"SENT", "UNREADABLE", "ID"});
  Table table(columns);
  std::string names;
  for (const v1::SnapshotInfo& s : all) {
    std::string of = s.path_size() == 0 ? "/" : s.path(0);
    if (s.path_size() > 1) of += " and " + std::to_string(s.path_size() - 1) + " more";
    std::vector<std::string> cells{s.reference().name(), LocalTime(s.created_us()), std::to_string(s.entries()),
                                   FormatBytes(s.bytes()), of};
    if (wide) {
      cells.insert(cells.end(), {FormatBytes(s.sent_bytes()), std::to_string(s.unreadable_files()),
                                 HexOf(s.reference().id()).substr(0, 16)});
    }
    table.Add(std::move(cells));
    names += Escape(s.reference().name()) + "\n";
  }
  Print(invocation.format == OutputFormat::kName ? names : table.Format(invocation.headers));
  return 0;
}

// --- diff

std::string_view ChangeName(v1::SnapshotChange change) {
  return change == v1::SNAPSHOT_ADDED ? "added" : change == v1::SNAPSHOT_REMOVED ? "removed" : "changed";
}

std::string_view TypeName(uint32_t mode) {
  switch (mode & S_IFMT) {
    case S_IFREG: return "file";
    case S_IFDIR: return "directory";
    case S_IFLNK: return "symlink";
    case S_IFIFO: return "fifo";
    case S_IFSOCK: return "socket";
    default: return "device";
  }
}

Result<int> Diff(const CtlInvocation& invocation) {
  v1::SnapshotRequest request;
  request.mutable_diff()->set_from(invocation.words.operands[1]);
  request.mutable_diff()->set_to(invocation.words.operands[2]);
  std::vector<v1::SnapshotDifference> all;
  VRUN_TRY(AskHome(request, [&](const v1::SnapshotEvent& event) -> Status {
    all.insert(all.end(), event.differences().difference().begin(), event.differences().difference().end());
    return {};
  }));
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.path() < b.path(); });
  if (invocation.json()) {
    JsonWriter json;
    json.BeginObject().Key("schema").Int(kJsonSchema).Key("differences").BeginArray();
    for (const v1::SnapshotDifference& d : all) {
      json.BeginObject().Key("change").String(ChangeName(d.change())).Key("path").String(d.path());
      json.Key("type").String(TypeName(d.mode())).Key("size").Uint(d.size()).Key("kinds").BeginArray();
      for (const std::string& kind : d.kind()) json.String(kind);
      json.EndArray().EndObject();
    }
    json.EndArray().EndObject();
    Print(json.Take());
    return 0;
  }
  std::string text;
  for (const v1::SnapshotDifference& d : all) {
    const char sign = d.change() == v1::SNAPSHOT_ADDED ? '+' : d.change() == v1::SNAPSHOT_REMOVED ? '-' : '~';
    std::string line = Escape(d.path());
    if (invocation.format != OutputFormat::kName) {
      std::string kinds;
      for (const std::string& kind : d.kind()) kinds += (kinds.empty() ? "  (" : ", ") + Escape(kind);
      line = std::string(1, sign) + " " + line + (kinds.empty() ? "" : kinds + ")");
    }
    text += line + "\n";
  }
  Print(text);
  return 0;
}

// --- delete

Result<int> Delete(const CtlInvocation& invocation) {
  v1::SnapshotRequest request;
  const auto& words = invocation.words.operands;
  for (size_t i = 1; i < words.size(); ++i) request.mutable_delete_()->add_name(words[i]);
  uint64_t freed = 0;
  VRUN_TRY(AskHome(request, [&](const v1::SnapshotEvent& event) -> Status {
    freed = event.freed().bytes();
    return {};
  }));
  if (invocation.json()) {
    JsonWriter json;
    json.BeginObject().Key("schema").Int(kJsonSchema).Key("freed_bytes").Uint(freed).EndObject();
    Print(json.Take());
  } else if (invocation.format != OutputFormat::kName) {
    Print("deleted; " + FormatBytes(freed) + " are free\n");
  }
  return 0;
}

// --- export

// Writes the files of a layout as they arrive. Removes what it wrote unless it was finished.
class LayoutWriter {
 public:
  explicit LayoutWriter(std::string directory) : directory_(std::move(directory)) {}
  ~LayoutWriter() {
    if (made_ && !finished_) (void)RemoveTree(directory_);
  }

  Status Start() {
    if (::mkdir(directory_.c_str(), 0777) != 0) {
      return errno == EEXIST ? Error(Code::kExists, Escape(directory_) + ": already exists: name a new directory")
                             : ErrnoError("make " + Escape(directory_));
    }
    made_ = true;
    return MakeDirs(directory_ + "/blobs/sha256", 0777);
  }
  Status Take(const v1::ExportPart& part) {
    const std::string unfinished = directory_ + "/.unfinished";
    if (!file_) {
      VRUN_ASSIGN(file_, OpenFile(unfinished, O_WRONLY | O_CREAT | O_TRUNC, 0666));
    }
    const Status written = WriteAll(file_.get(), part.data());
    if (!written) return written.error().With("write " + Escape(directory_));
    bytes_ += part.data().size();
    if (part.path().empty()) return {};
    if (!IsOurs(part.path()))
      return Error(Code::kCorrupt, "export: the snapshot store sent a file that does not belong to an OCI layout");
    file_.Reset();
    if (::rename(unfinished.c_str(), (directory_ + "/" + part.path()).c_str()) != 0) {
      return ErrnoError("write " + Escape(directory_));
    }
    finished_ = part.path() == "oci-layout";
    return {};
  }
  bool finished() const { return finished_; }
  uint64_t bytes() const { return bytes_; }

 private:
  static bool IsOurs(const std::string& path) {
    constexpr std::string_view kBlobs = "blobs/sha256/";
    if (path == "oci-layout" || path == "index.json") return true;
    return path.starts_with(kBlobs) && path.size() == kBlobs.size() + 64 &&
           path.find_first_not_of("0123456789abcdef", kBlobs.size()) == std::string::npos;
  }

  const std::string directory_;
  UniqueFd file_;
  uint64_t bytes_ = 0;
  bool made_ = false;
  bool finished_ = false;
};

Result<int> Export(const CtlInvocation& invocation) {
  v1::SnapshotRequest request;
  request.mutable_export_oci()->set_name(invocation.words.operands[1]);
  const std::string directory = *invocation.Value(kOci);
  LayoutWriter layout(directory);
  VRUN_TRY(layout.Start());
  VRUN_TRY(AskHome(request, [&](const v1::SnapshotEvent& event) -> Status {
    return event.has_part() ? layout.Take(event.part()) : Status();
  }));
  if (!layout.finished())
    return Error(Code::kInternal, "export: the snapshot store ended its answer too early: try again");
  if (invocation.json()) {
    JsonWriter json;
    json.BeginObject().Key("schema").Int(kJsonSchema).Key("directory").String(directory);
    json.Key("bytes").Uint(layout.bytes()).EndObject();
    Print(json.Take());
  } else if (invocation.format != OutputFormat::kName) {
    Print(Escape(directory) + ": an OCI image layout of " + FormatBytes(layout.bytes()) + "\n");
  }
  return 0;
}

Result<int> Run(const CtlInvocation& invocation) {
  const std::string& action = invocation.words.operands[0];
  if (action == "create" || action == "show") return CreateOrShow(invocation);
  if (action == "list") return List(invocation);
  if (action == "diff") return Diff(invocation);
  if (action == "delete") return Delete(invocation);
  return Export(invocation);
}

}  // namespace

const CtlCommand kCtlSnapshot{
    "snapshot", "create|list|show|diff|delete|export", "the root by name, kept for ever, independent of this machine",
    kOptions,   Completes::kSnapshotActions,           Validate,
    Run};

}  // namespace vrun::cli
