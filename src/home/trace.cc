// SPDX-License-Identifier: Apache-2.0
#include "home/trace.h"

#include <algorithm>
#include <array>
#include <climits>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "base/blake3.h"
#include "proto/common.pb.h"
#include "proto/content.pb.h"
#include "store/object_id.h"

namespace vrun::home {
namespace {

constexpr std::array<std::string_view, 12> kInterpreters = {"python", "pypy", "perl",    "ruby",  "node", "bash",
                                                            "sh",     "dash", "Rscript", "julia", "lua",  "php"};
// What decides where programs, libraries and modules are found.
constexpr std::array<std::string_view, 12> kSearchPaths = {
    "PATH",         "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV",
    "CONDA_PREFIX", "PERL5LIB",        "RUBYLIB",    "NODE_PATH",  "R_LIBS",     "JULIA_PROJECT"};

bool IsInterpreter(std::string_view program) {
  const std::string_view name = program.substr(program.rfind('/') + 1);
  return std::any_of(kInterpreters.begin(), kInterpreters.end(), [name](std::string_view interpreter) {
    // python3, python3.11, but not nodejs-something.
    return name.starts_with(interpreter) &&
           name.find_first_not_of("0123456789.", interpreter.size()) == std::string_view::npos;
  });
}

std::string Absolute(const std::string& path, const std::string& directory) {
  return path.starts_with('/') ? path : directory + "/" + path;
}

// The index of the script, or of the text that is one; 0: none.
int ScriptOf(const v1::Command& command) {
  for (int i = 1; i < command.argv_size(); ++i) {
    const std::string& word = command.argv(i);
    if (word == "-c" || word == "-e" || word == "-m") return i + 1 < command.argv_size() ? i + 1 : 0;
    if (!word.starts_with('-')) return i;
  }
  return 0;
}

// One number for a unit of a file.
uint64_t Key(uint64_t file, uint64_t unit) { return file << 40 | unit; }

std::vector<uint64_t> UnitsOf(const Trace& trace, const std::vector<uint32_t>& files) {
  std::vector<uint64_t> units;
  for (const Trace::Range& range : trace.ranges) {
    for (uint64_t i = 0; i < range.count; ++i) units.push_back(Key(files[range.file], range.first + i));
  }
  return units;
}

// What both have is in the same places among it, give or take an eighth of it on average: several threads read.
bool HaveOneOrder(const std::vector<uint64_t>& a, const std::vector<uint64_t>& b) {
  const std::unordered_set<uint64_t> in_b(b.begin(), b.end());
  std::unordered_map<uint64_t, uint64_t> place;
  for (const uint64_t unit : a) {
    if (in_b.contains(unit)) place.emplace(unit, place.size());
  }
  uint64_t at = 0, off = 0;
  for (const uint64_t unit : b) {
    const auto it = place.find(unit);
    if (it == place.end()) continue;
    off += std::max(it->second, at) - std::min(it->second, at);
    ++at;
  }
  return off <= at * at / 8;
}

}  // namespace

uint64_t Trace::units() const {
  uint64_t units = 0;
  for (const Range& range : ranges) units += range.count;
  return units;
}

bool TraceSubject::Names(const std::string& path) const {
  return std::any_of(named.begin(), named.end(), [&](const std::string& name) {
    if (path == name) return true;
    const bool within = directory.size() > 1 && name.starts_with(directory + "/");
    return within && path.size() > name.size() && path.starts_with(name) && path[name.size()] == '/';
  });
}

TraceSubject TraceOf(const v1::Command& command, std::string_view root) {
  TraceSubject subject;
  subject.directory = command.directory();
  std::string text = "vrun trace 1";
  const auto add = [&text](std::string_view word) {
    text += '\0';
    text += word;
  };
  add(root);
  const std::string program = command.argv_size() > 0 ? command.argv(0) : "";
  add(program.find('/') == std::string::npos ? program : Absolute(program, command.directory()));
  const int script = IsInterpreter(program) ? ScriptOf(command) : 0;
  if (script > 0) {
    const std::string& before = command.argv(script - 1);
    const bool is_text = script > 1 && (before == "-c" || before == "-e" || before == "-m");
    add(is_text ? before : "");
    add(is_text ? command.argv(script) : Absolute(command.argv(script), command.directory()));
  }
  std::vector<std::string> environment;
  for (const std::string& variable : command.environment()) {
    const std::string_view name = std::string_view(variable).substr(0, variable.find('='));
    if (std::find(kSearchPaths.begin(), kSearchPaths.end(), name) != kSearchPaths.end())
      environment.push_back(variable);
  }
  std::sort(environment.begin(), environment.end());
  for (const std::string& variable : environment) add(variable);
  subject.key = Sha256(text);
  for (int i = std::max(script, 0) + 1; i < command.argv_size(); ++i) {
    std::string word = command.argv(i);
    if (word.starts_with('-')) {  // --model=FILE
      const size_t equals = word.find('=');
      if (equals == std::string::npos) continue;
      word.erase(0, equals + 1);
    }
    if (!word.empty() && word.size() < PATH_MAX) subject.named.push_back(Absolute(word, command.directory()));
  }
  return subject;
}

std::optional<Trace> ReadTrace(const v1::TraceRecord& record) {
  if (record.path_size() != record.size_size() || record.range_size() % 3 != 0) return std::nullopt;
  if (static_cast<size_t>(record.path_size()) > Trace::kMaxFiles) return std::nullopt;
  Trace trace;
  for (int i = 0; i < record.path_size(); ++i) {
    const std::string& path = record.path(i);
    if (!path.starts_with('/') || path.size() >= PATH_MAX || path.find('\0') != std::string::npos) return std::nullopt;
    if (record.size(i) > Trace::kMaxFileBytes) return std::nullopt;
    trace.files.push_back({path, record.size(i)});
  }
  uint64_t units = 0;
  for (int i = 0; i < record.range_size(); i += 3) {
    const uint64_t file = record.range(i), first = record.range(i + 1), count = record.range(i + 2);
    if (file >= trace.files.size()) return std::nullopt;
    const uint64_t all = store::UnitCount(trace.files[file].size);
    if (count == 0 || first >= all || count > all - first) return std::nullopt;
    const uint64_t kept = std::min(count, Trace::kMaxUnits - units);
    if (kept == 0) break;
    trace.ranges.push_back({static_cast<uint32_t>(file), first, kept});
    units += kept;
  }
  return trace;
}

v1::TraceRecord WriteTrace(const Trace& trace) {
  v1::TraceRecord record;
  for (const Trace::File& file : trace.files) {
    record.add_path(file.path);
    record.add_size(file.size);
  }
  for (const Trace::Range& range : trace.ranges) {
    for (const uint64_t n : {uint64_t{range.file}, range.first, range.count}) record.add_range(n);
  }
  return record;
}

Trace MergeTraces(const Trace& earlier, const Trace& later) {
  Trace merged;
  std::unordered_map<std::string, uint32_t> names;
  const auto place = [&](const Trace& trace) {
    std::vector<uint32_t> files;
    for (const Trace::File& file : trace.files) {
      const auto [it, fresh] = names.emplace(file.path, static_cast<uint32_t>(merged.files.size()));
      if (fresh) merged.files.push_back(file);
      merged.files[it->second].size = file.size;
      files.push_back(it->second);
    }
    return files;
  };
  const std::vector<uint32_t> earlier_files = place(earlier), later_files = place(later);
  std::vector<uint64_t> base = UnitsOf(earlier, earlier_files), extra = UnitsOf(later, later_files);
  if (!HaveOneOrder(base, extra)) base.swap(extra);

  std::unordered_map<uint64_t, size_t> where;  // in `base`, from 1
  for (size_t i = 0; i < base.size(); ++i) where.emplace(base[i], i + 1);
  std::map<size_t, std::vector<uint64_t>> after;
  size_t last = 0;
  for (const uint64_t unit : extra) {
    const auto [it, fresh] = where.emplace(unit, last);
    if (fresh)
      after[last].push_back(unit);
    else
      last = it->second;
  }
  uint64_t units = 0;
  const auto emit = [&](uint64_t key) {
    const auto file = static_cast<uint32_t>(key >> 40);
    const uint64_t unit = key & ((uint64_t{1} << 40) - 1);
    // A file that has become shorter, or whose units have become larger.
    if (unit >= store::UnitCount(merged.files[file].size) || units >= Trace::kMaxUnits) return;
    ++units;
    if (!merged.ranges.empty()) {
      Trace::Range& previous = merged.ranges.back();
      if (previous.file == file && previous.first + previous.count == unit) {
        ++previous.count;
        return;
      }
    }
    merged.ranges.push_back({file, unit, 1});
  };
  for (size_t i = 0; i <= base.size(); ++i) {
    if (i > 0) emit(base[i - 1]);
    if (const auto it = after.find(i); it != after.end()) {
      for (const uint64_t unit : it->second) emit(unit);
    }
  }
  return merged;
}

std::vector<std::vector<Trace::Range>> PlanFrames(const std::vector<Trace::File>& files,
                                                  const std::vector<Trace::Range>& ranges) {
  constexpr uint64_t kLeast = 512 << 10, kMore = 512 << 10, kMost = 1 << 20;  // a file has a mark each kMore
  std::vector<std::vector<Trace::Range>> frames;
  uint64_t bytes = kMost;  // of the last one
  for (const Trace::Range& range : ranges) {
    const uint64_t unit_bytes = store::UnitBytes(files[range.file].size);
    const uint64_t name = DigestHash()(Blake3(files[range.file].path));  // the same at all times: frames are kept
    for (uint64_t unit = range.first; unit < range.first + range.count; ++unit) {
      const bool mark = (name + unit) % (kMore / unit_bytes) == 0;
      if (bytes + unit_bytes > kMost || (bytes >= kLeast && mark)) {
        frames.emplace_back();
        bytes = 0;
      }
      bytes += unit_bytes;
      std::vector<Trace::Range>& frame = frames.back();
      if (unit > range.first && !frame.empty())
        ++frame.back().count;
      else
        frame.push_back({range.file, unit, 1});
    }
  }
  return frames;
}

}  // namespace vrun::home
