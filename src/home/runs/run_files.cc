// SPDX-License-Identifier: Apache-2.0
#include "home/runs/run_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "base/escape.h"
#include "base/files.h"
#include "base/log.h"
#include "home/ahead/trace.h"
#include "proto/local.pb.h"
#include "tree/rules.h"

namespace vrun::home {
namespace {

constexpr std::string_view kTraced = ".traced";
constexpr std::string_view kAway = ".away";
constexpr std::string_view kMerge = ".merge";
constexpr std::string_view kEnds = ".ends";
constexpr std::string_view kBegun = ".begun";

struct Offsets {
  uint64_t out = 0;
  uint64_t err = 0;
};

// One pattern in a path: %, a width of at most two digits, a letter. Anything else stays as it is.
struct Pattern {
  size_t size = 1;
  size_t width = 0;
  char letter = '\0';
};

Pattern PatternAt(std::string_view path, size_t at) {
  Pattern out;
  size_t end = at + 1;
  while (end < path.size() && end < at + 3 && path[end] >= '0' && path[end] <= '9') {
    out.width = out.width * 10 + static_cast<size_t>(path[end++] - '0');
  }
  if (end == path.size()) return {};
  out.letter = path[end];
  out.size = end + 1 - at;
  return out;
}

// Replaces each pattern by the result of `replace(pattern, text)`.
template <typename Replace>
std::string ReplacePatterns(std::string_view path, Replace replace) {
  std::string out;
  for (size_t at = 0; at < path.size();) {
    if (path[at] != '%') {
      out.push_back(path[at++]);
      continue;
    }
    const Pattern pattern = PatternAt(path, at);
    out += replace(pattern, path.substr(at, pattern.size));
    at += pattern.size;
  }
  return out;
}

std::string Padded(uint64_t number, size_t width) {
  std::string out = std::to_string(number);
  if (out.size() < width) out.insert(0, width - out.size(), '0');
  return out;
}

bool Contains(const DetachedFiles& files, std::string_view letters) {
  bool found = false;
  for (const std::string* path : {&files.stdout_path, &files.stderr_path}) {
    (void)ReplacePatterns(*path, [&](const Pattern& p, std::string_view) {
      found = found || (p.letter != '\0' && letters.find(p.letter) != letters.npos);
      return "";
    });
  }
  return found;
}

// As part of a path that is expanded once more.
std::string NodeInPath(std::string_view node) {
  std::string name;
  for (char c : node) name += c == '/' ? "_" : c == '%' ? "%%" : std::string(1, c);
  return name;
}

std::string Absolute(const DetachedFiles& files, const std::string& path) {
  return path.empty() ? tree::JoinPath(files.directory, "vrun-%j.out") : path;
}

}  // namespace

std::string ForJob(std::string_view pattern, uint64_t job) {
  return ReplacePatterns(pattern, [&](const Pattern& p, std::string_view text) {
    if (p.letter == '%') return std::string("%");
    return p.letter == 'j' ? Padded(job, p.width) : std::string(text);
  });
}

DetachedFiles ForElement(const DetachedFiles& files, uint64_t array, uint32_t index) {
  DetachedFiles out = files;
  for (std::string* path : {&out.stdout_path, &out.stderr_path}) {
    *path = ReplacePatterns(*path, [&](const Pattern& p, std::string_view text) {
      if (p.letter == 'A') return Padded(array, p.width);
      return p.letter == 'a' ? Padded(index, p.width) : std::string(text);
    });
  }
  return out;
}

bool NamesNode(const DetachedFiles& files) { return Contains(files, "N"); }
bool NamesRank(const DetachedFiles& files) { return Contains(files, "tnN"); }

std::string ForRank(std::string_view pattern, const RankNames& names) {
  return ReplacePatterns(pattern, [&](const Pattern& p, std::string_view text) {
    switch (p.letter) {
      case 't': return Padded(names.rank, p.width);
      case 'n': return Padded(names.pod, p.width);
      case 'N': return NodeInPath(names.node);
      default: return std::string(text);
    }
  });
}

void SetNode(std::string_view node, DetachedFiles* files) {
  const std::string name = NodeInPath(node);
  for (std::string* path : {&files->stdout_path, &files->stderr_path}) {
    *path = ReplacePatterns(
        *path, [&](const Pattern& p, std::string_view text) { return p.letter == 'N' ? name : std::string(text); });
  }
}

Result<UniqueFd> RunFiles::OpenOutput(const std::string& path, bool fresh) const {
  if (path.empty() || path[0] != '/')
    return Error(Code::kInvalid, Escape(path) + ": the path of an output file is not absolute");
  return OpenFile(OnHost(path), O_WRONLY | O_CREAT | O_APPEND | O_NOCTTY | (fresh ? O_TRUNC : 0), 0666);
}

std::string RunFiles::RankPath(uint64_t job, const DetachedFiles& files, const RankNames& names, bool err) const {
  const std::string& path = err && !files.stderr_path.empty() ? files.stderr_path : files.stdout_path;
  return ForJob(ForRank(Absolute(files, path), names), job);
}

std::string RunFiles::MergeJournal(uint64_t job) const {
  return MakeDirs(Directory(), 0700) ? Path(job) + std::string(kMerge) : "";
}

// Not synced: after a crash of the machine nobody waits for the job here.
void RunFiles::RememberPodEnd(uint64_t job, const v1::ExitRecord& record) const {
  auto fd = OpenFile(Path(job) + std::string(kEnds), O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (!fd) return;
  const std::string bytes = record.SerializeAsString();
  const uint32_t size = static_cast<uint32_t>(bytes.size());
  (void)WriteAll(fd->get(), std::string(reinterpret_cast<const char*>(&size), sizeof size) + bytes);
}

std::vector<v1::ExitRecord> RunFiles::RecallPodEnds(uint64_t job, uint32_t attempt) const {
  std::vector<v1::ExitRecord> out;
  const std::string bytes = ReadFile(Path(job) + std::string(kEnds)).value_or("");
  uint32_t size = 0;
  for (size_t at = 0; at + sizeof size <= bytes.size(); at += size) {
    bytes.copy(reinterpret_cast<char*>(&size), sizeof size, at);
    at += sizeof size;
    v1::ExitRecord record;
    if (size > bytes.size() - at || !record.ParseFromArray(bytes.data() + at, static_cast<int>(size))) break;
    if (record.attempt() == attempt) out.push_back(std::move(record));
  }
  return out;
}

void RunFiles::ForgetGang(uint64_t job) const {
  ::unlink((Path(job) + std::string(kMerge)).c_str());
  ::unlink((Path(job) + std::string(kEnds)).c_str());
}

Status RunFiles::CheckDetached(const DetachedFiles& files) const {
  for (const std::string& path : {Absolute(files, files.stdout_path), files.stderr_path}) {
    const std::string directory = path.substr(0, path.rfind('/') + 1);
    if (directory.empty() || directory.find('%') != std::string::npos) continue;
    if (::access(OnHost(directory).c_str(), W_OK | X_OK) != 0) {
      return ErrnoError(Escape(directory)).With("the directory of the output file");
    }
  }
  return {};
}

Status RunFiles::RememberDetached(uint64_t job, const DetachedFiles& files, bool loose) const {
  v1::Run run;
  run.set_detached(true);
  run.set_stdout_path(files.stdout_path);
  run.set_stderr_path(files.stderr_path);
  run.mutable_spec()->mutable_command()->set_directory(files.directory);
  run.set_append_output(files.append);
  for (const std::string& e : files.exposed) run.add_expose(e);
  const std::string name = std::to_string(job), content = run.SerializeAsString();
  return loose ? records_->PutLoose(name, content) : records_->Put(name, content);
}

Result<DetachedFiles> RunFiles::RecallDetached(uint64_t job) const {
  VRUN_ASSIGN(std::string bytes, ReadFile(Path(job)));
  v1::Run run;
  if (!run.ParseFromString(bytes) || !run.detached()) return Error(Code::kCorrupt, Path(job) + ": does not parse");
  return DetachedFiles{run.stdout_path(),
                       run.stderr_path(),
                       run.spec().command().directory(),
                       run.append_output(),
                       {run.expose().begin(), run.expose().end()}};
}

std::vector<uint64_t> RunFiles::RememberedDetached() const {
  std::vector<uint64_t> out;
  std::error_code error;
  for (const auto& file : std::filesystem::directory_iterator(Directory(), error)) {
    const std::string name = file.path().filename();
    if (name.find_first_not_of("0123456789") == std::string::npos)
      out.push_back(std::strtoull(name.c_str(), nullptr, 10));
  }
  return out;
}

void RunFiles::RememberOffsets(uint64_t job, uint64_t stdout_offset, uint64_t stderr_offset) const {
  auto fd = OpenFile(Path(job) + ".offsets", O_WRONLY | O_CREAT, 0600);
  if (!fd) return;
  Offsets offsets{stdout_offset, stderr_offset};
  (void)PwriteAll(fd->get(), {reinterpret_cast<const char*>(&offsets), sizeof offsets}, 0);
}

void RunFiles::RememberBases(uint64_t job, const StreamBases& bases) const {
  if (!MakeDirs(Directory(), 0700)) return;
  const std::string text = std::to_string(bases.attempt) + " " + std::to_string(bases.out[0]) + " " +
                           std::to_string(bases.out[1]) + " " + std::to_string(bases.in) + "\n";
  (void)WriteFileAtomic(Path(job) + ".attempt", text, 0600);
}

void RunFiles::ForgetBases(uint64_t job) const { ::unlink((Path(job) + ".attempt").c_str()); }

StreamBases RunFiles::RecallBases(uint64_t job) const {
  StreamBases bases;
  const std::string text = ReadFile(Path(job) + ".attempt", 256).value_or("");
  char* at = const_cast<char*>(text.c_str());
  bases.attempt = static_cast<uint32_t>(std::strtoul(at, &at, 10));
  for (uint64_t* base : {&bases.out[0], &bases.out[1], &bases.in}) *base = std::strtoull(at, &at, 10);
  return bases;
}

void RunFiles::RememberTraced(uint64_t job, const v1::Run& run) const {
  v1::Run kept;
  *kept.mutable_spec()->mutable_command() = TracedPart(run.spec().command());
  kept.set_explain_io(run.explain_io());
  (void)traced_->PutLoose(std::to_string(job) + std::string(kTraced), kept.SerializeAsString(), true);
}

std::optional<v1::Run> RunFiles::RecallTraced(uint64_t job) const {
  const auto bytes = ReadFile(Path(job) + std::string(kTraced));
  v1::Run run;
  if (!bytes || !run.ParseFromString(*bytes) || !run.has_spec()) return std::nullopt;
  return run;
}

void RunFiles::ForgetTraced(uint64_t job) const { ::unlink((Path(job) + std::string(kTraced)).c_str()); }

void RunFiles::ForgetTracedBut(const std::set<uint64_t>& jobs) const {
  std::error_code error;
  for (const auto& file : std::filesystem::directory_iterator(Directory(), error)) {
    const std::string name = file.path().filename();
    const uint64_t job = std::strtoull(name.c_str(), nullptr, 10);
    if (jobs.contains(job)) continue;
    if (name.ends_with(kTraced)) ForgetTraced(job);
    if (name.ends_with(kMerge) || name.ends_with(kEnds)) ForgetGang(job);
  }
}

void RunFiles::ForgetDetached(uint64_t job) const {
  ::unlink(Path(job).c_str());
  ::unlink((Path(job) + ".offsets").c_str());
  ForgetBases(job);
}

Result<DetachedStreams> RunFiles::OpenDetached(uint64_t job, const DetachedFiles& files) const {
  Offsets offsets;
  if (auto bytes = ReadFile(Path(job) + ".offsets", sizeof offsets); bytes && bytes->size() == sizeof offsets) {
    bytes->copy(reinterpret_cast<char*>(&offsets), sizeof offsets);
  }
  VRUN_ASSIGN(UniqueFd memory, CreateStreamProgress());
  VRUN_ASSIGN(StreamProgressMap progress, StreamProgressMap::Map(memory.get()));
  progress->stdout_written.store(offsets.out);
  progress->stderr_written.store(offsets.err);
  bool fresh = offsets.out == 0 && offsets.err == 0 && !files.append;
  std::string out_path = ForJob(Absolute(files, files.stdout_path), job);
  std::string err_path = files.stderr_path.empty() ? out_path : ForJob(files.stderr_path, job);
  VRUN_ASSIGN(UniqueFd in, OpenFile("/dev/null", O_RDONLY));
  VRUN_ASSIGN(UniqueFd out, OpenOutput(out_path, fresh));
  UniqueFd err;
  if (err_path == out_path) {
    // The same description, so that the pump keeps the order of the two streams.
    err.Reset(::fcntl(out.get(), F_DUPFD_CLOEXEC, 3));
    if (!err) return ErrnoError("dup");
  } else {
    VRUN_ASSIGN(err, OpenOutput(err_path, fresh));
  }
  return DetachedStreams{std::move(in), std::move(out), std::move(err), std::move(progress)};
}

void RunFiles::RememberBegun(uint64_t array, uint64_t job) const {
  auto fd = OpenFile(Path(array) + std::string(kBegun), O_WRONLY | O_CREAT, 0600);
  if (fd) (void)PwriteAll(fd->get(), {reinterpret_cast<const char*>(&job), sizeof job}, 0);
}

uint64_t RunFiles::RecallBegun(uint64_t array) const {
  uint64_t job = 0;
  const std::string bytes = ReadFile(Path(array) + std::string(kBegun), sizeof job).value_or("");
  if (bytes.size() == sizeof job) bytes.copy(reinterpret_cast<char*>(&job), sizeof job);
  return job;
}

void RunFiles::ForgetArray(uint64_t array) const {
  ForgetDetached(array);
  ForgetTraced(array);
  ::unlink((Path(array) + std::string(kBegun)).c_str());
}

void RunFiles::RememberWithheld(uint64_t job, uint64_t writes) const {
  if (!MakeDirs(Directory(), 0700)) return;
  (void)WriteFileAtomic(Path(job) + ".withheld", std::to_string(writes) + "\n", 0600);
}

bool RunFiles::IsWithheld(uint64_t job) const { return PathExists(Path(job) + ".withheld"); }

void RunFiles::ForgetWithheld(uint64_t job) const { (void)RemoveTree(Path(job) + ".withheld"); }

void RunFiles::RememberAway(uint64_t job, const Away& away) const {
  Status written = MakeDirs(Directory(), 0700);
  const std::string text = away.snapshot + (away.complete ? " complete\n" : " sending\n");
  if (written) written = WriteFileAtomic(Path(job) + std::string(kAway), text, 0600);
  if (!written) LogWarning("job {}: {}", job, written.error().message());
}

std::optional<RunFiles::Away> RunFiles::RecallAway(uint64_t job) const {
  const auto text = ReadFile(Path(job) + std::string(kAway), 4096);
  const size_t space = text ? text->find(' ') : std::string::npos;
  if (space == std::string::npos) return std::nullopt;
  return Away{text->substr(0, space), text->substr(space) == " complete\n"};
}

std::vector<uint64_t> RunFiles::RememberedAway() const {
  std::vector<uint64_t> out;
  std::error_code error;
  for (const auto& file : std::filesystem::directory_iterator(Directory(), error)) {
    const std::string name = file.path().filename();
    if (name.ends_with(kAway)) out.push_back(std::strtoull(name.c_str(), nullptr, 10));
  }
  return out;
}

void RunFiles::ForgetAway(uint64_t job) const { ::unlink((Path(job) + std::string(kAway)).c_str()); }

bool RunFiles::HasApplyJournal(const std::string& name) const { return PathExists(ApplyJournal(name)); }

std::string RunFiles::MakeApplyJournal(const std::string& name) const {
  return MakeDirs(state_directory_ + "/apply", 0700) ? ApplyJournal(name) : "";
}

void RunFiles::ForgetApplyJournal(const std::string& name) const { ::unlink(ApplyJournal(name).c_str()); }

Result<DetachedStreams> OpenNowhere() {
  VRUN_ASSIGN(UniqueFd memory, CreateStreamProgress());
  VRUN_ASSIGN(StreamProgressMap progress, StreamProgressMap::Map(memory.get()));
  VRUN_ASSIGN(UniqueFd in, OpenFile("/dev/null", O_RDONLY));
  VRUN_ASSIGN(UniqueFd out, OpenFile("/dev/null", O_WRONLY));
  VRUN_ASSIGN(UniqueFd err, OpenFile("/dev/null", O_WRONLY));
  return DetachedStreams{std::move(in), std::move(out), std::move(err), std::move(progress)};
}

}  // namespace vrun::home
