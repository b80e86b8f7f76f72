// SPDX-License-Identifier: Apache-2.0
#include "cli/request/script_options.h"

#include <algorithm>

#include "base/escape.h"

namespace vrun::cli {
namespace {

Result<std::vector<std::string>> SplitWords(std::string_view line) {
  std::vector<std::string> words;
  std::string word;
  bool in_word = false;
  char quote = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    char c = line[i];
    if (c == '\0') return Error(Code::kInvalid, "a zero byte: remove it");
    if (quote != 0) {
      if (c == quote) {
        quote = 0;
      } else if (c == '\\' && quote == '"' && i + 1 < line.size() && (line[i + 1] == '"' || line[i + 1] == '\\')) {
        word.push_back(line[++i]);
      } else {
        word.push_back(c);
      }
    } else if (c == '\'' || c == '"') {
      quote = c;
      in_word = true;
    } else if (c == '\\' && i + 1 < line.size()) {
      word.push_back(line[++i]);
      in_word = true;
    } else if (c == ' ' || c == '\t' || c == '\r') {
      if (in_word) words.push_back(std::move(word));
      word.clear();
      in_word = false;
    } else if (c == '#' && !in_word) {
      break;
    } else {
      word.push_back(c);
      in_word = true;
    }
  }
  if (quote != 0) return Error(Code::kInvalid, std::string("a quote that is never closed: add ") + quote);
  if (in_word) words.push_back(std::move(word));
  return words;
}

std::string_view Trim(std::string_view s) {
  while (!s.empty() && (s.back() == ' ' || s.back() == '\t' || s.back() == '\r')) s.remove_suffix(1);
  while (!s.empty() && (s.front() == ' ' || s.front() == '\t')) s.remove_prefix(1);
  return s;
}

std::vector<std::string> InterpreterWords(std::string_view line) {
  std::vector<std::string> words;
  line = Trim(line);
  size_t blank = line.find_first_of(" \t");
  if (line.empty()) return words;
  words.emplace_back(line.substr(0, blank));
  if (blank != std::string_view::npos) words.emplace_back(Trim(line.substr(blank)));
  return words;
}

// In a Slurm script, -q is the quality of service.
constexpr UnsupportedOption kSlurmQos{'q', "qos", "write --class CLASS"};

Status ParseLine(std::string_view line, bool slurm, const std::string& where, Script* out) {
  VRUN_ASSIGN(std::vector<std::string> words, SplitWords(line));
  for (const std::string& word : words) {
    bool quiet = word.size() > 1 && word[0] == '-' && word[1] == 'q';
    if (slurm && quiet) {
      return Error(Code::kInvalid, "-q: not supported yet: " + std::string(kSlurmQos.instead));
    }
  }
  VRUN_ASSIGN(ParsedWords parsed, ParseWords(BatchTable(), words));
  if (!parsed.operands.empty() || parsed.after_dashes) {
    return Error(Code::kInvalid, Escape(parsed.operands.empty() ? "--" : parsed.operands[0]) +
                                     ": not an option: only options may stand here");
  }
  for (ParsedOption& o : parsed.options) {
    o.where = where;
    out->options.push_back(std::move(o));
  }
  for (const std::string& note : parsed.notes) out->notes.push_back(where + ": " + note);
  return {};
}

// sbatch refuses such a script too. A script with a NUL byte has binary data, in which any bytes are allowed.
Status CheckLineEnds(std::string_view text, const std::string& name) {
  const size_t found = text.find("\r\n");
  if (found == std::string_view::npos || text.find('\0') != std::string_view::npos) return {};
  const auto number = std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(found), '\n') + 1;
  return Error(Code::kInvalid, name + ":" + std::to_string(number) +
                                   ": DOS line ends: its interpreter takes the carriage return for a part of the line: "
                                   "remove them, as with `sed -i 's/\\r$//' FILE`");
}

}  // namespace

Result<Script> ParseScript(std::string_view text, std::string_view name) {
  VRUN_TRY(CheckLineEnds(text, Escape(name)));
  Script out;
  size_t number = 0;
  while (!text.empty()) {
    size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    ++number;
    if (number == 1 && line.starts_with("#!")) {
      out.interpreter = InterpreterWords(line.substr(2));
      continue;
    }
    if (Trim(line).empty()) continue;
    if (line[0] != '#') break;
    bool slurm = line.starts_with("#SBATCH");
    size_t prefix = slurm ? 7 : line.starts_with("#VRUN") ? 5 : 0;
    if (prefix == 0 || (line.size() > prefix && line[prefix] != ' ' && line[prefix] != '\t')) continue;
    const std::string where = Escape(name) + ":" + std::to_string(number);
    Status status = ParseLine(line.substr(prefix), slurm, where, &out);
    if (!status) return std::move(status).error().With(where);
  }
  return out;
}

}  // namespace vrun::cli
