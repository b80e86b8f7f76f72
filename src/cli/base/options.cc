// SPDX-License-Identifier: Apache-2.0
#include "cli/base/options.h"

#include <algorithm>
#include <optional>

#include "base/escape.h"

namespace vrun::cli {
namespace {

// Counts letters added, removed or changed, and swapped neighbours.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

bool IsNumber(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

class Parser {
 public:
  Parser(const OptionTable& table, std::span<const std::string> words) : table_(table), words_(words) {}

  Result<ParsedWords> Parse() {
    while (at_ < words_.size()) {
      const std::string& word = words_[at_++];
      if (word == "--") {
        out_.after_dashes = out_.operands.empty();
        break;
      }
      if (word.size() > 2 && word.starts_with("--")) {
        VRUN_TRY(Long(word));
      } else if (word.size() > 1 && word[0] == '-') {
        VRUN_TRY(Shorts(word));
      } else {
        out_.operands.push_back(word);
        if (table_.stop_at_operand) break;
      }
    }
    out_.operands.insert(out_.operands.end(), words_.begin() + static_cast<ptrdiff_t>(at_), words_.end());
    return std::move(out_);
  }

 private:
  Status Long(const std::string& word) {
    const std::string_view text = word;
    const size_t equals = text.find('=');
    const std::string_view name = text.substr(2, equals == std::string_view::npos ? equals : equals - 2);
    const std::string shown = "--" + std::string(name);
    std::optional<std::string> value;
    if (equals != std::string_view::npos) value = text.substr(equals + 1);
    const OptionSpec* found = name.empty() ? nullptr : Find([&](const OptionSpec& o) { return o.long_name == name; });
    if (found != nullptr) {
      VRUN_ASSIGN(std::string text, LongValue(found->argument, shown, std::move(value), found->value_name));
      return Take(*found, std::move(text));
    }
    for (const HarmlessOption& h : table_.harmless) {
      if (h.long_name != name || name.empty()) continue;
      VRUN_ASSIGN(std::string text, LongValue(h.argument, shown, std::move(value), "VALUE"));
      return Ignore(h, shown, text);
    }
    for (const UnsupportedOption& u : table_.unsupported) {
      if (u.long_name == name && !name.empty()) return Bad(shown, "not supported yet", u.instead);
    }
    return Unknown(shown);
  }

  Result<std::string> LongValue(Argument argument, const std::string& shown, std::optional<std::string> value,
                                std::string_view value_name) {
    if ((argument == Argument::kNone || argument == Argument::kShortNumber) && value)
      return Bad(shown, "takes no value", "leave =... away");
    if (value) return *std::move(value);
    if (argument != Argument::kRequired) return std::string();
    return NextWord(shown, value_name);
  }

  // "-qc4": flags may be joined, and the value may follow directly.
  Status Shorts(const std::string& word) {
    for (size_t i = 1; i < word.size(); ++i) {
      std::string shown = std::string("-") + word[i];
      const OptionSpec* found = Find([&](const OptionSpec& o) { return o.short_name != 0 && o.short_name == word[i]; });
      // The value follows directly, or is the next word.
      auto value = [&](std::string_view value_name) -> Result<std::string> {
        if (i + 1 < word.size()) return word.substr(word[i + 1] == '=' ? i + 2 : i + 1);
        return NextWord(shown, value_name);
      };
      if (found != nullptr && found->argument == Argument::kRequired) {
        VRUN_ASSIGN(std::string text, value(found->value_name));
        return Take(*found, std::move(text));
      }
      if (found != nullptr && found->argument == Argument::kShortNumber) {
        const std::string_view rest = std::string_view(word).substr(i + 1);
        if (IsNumber(rest)) return Take(*found, std::string(rest));
        const bool next = rest.empty() && at_ < words_.size() && IsNumber(words_[at_]);
        VRUN_TRY(Take(*found, next ? words_[at_++] : ""));
        continue;
      }
      if (found != nullptr) {
        VRUN_TRY(Take(*found, ""));
        continue;
      }
      const HarmlessOption* harmless = nullptr;
      for (const HarmlessOption& h : table_.harmless) {
        if (h.short_name != 0 && h.short_name == word[i]) harmless = &h;
      }
      if (harmless != nullptr) {
        if (harmless->argument != Argument::kRequired) continue;
        VRUN_ASSIGN(std::string text, value("VALUE"));
        return Ignore(*harmless, shown, text);
      }
      for (const UnsupportedOption& u : table_.unsupported) {
        if (u.short_name != 0 && u.short_name == word[i]) return Bad(shown, "not supported yet", u.instead);
      }
      return Unknown(i == 1 ? word : shown);
    }
    return {};
  }

  template <typename Predicate>
  const OptionSpec* Find(Predicate wanted) const {
    for (std::span<const OptionSpec> specs : {table_.options, table_.common}) {
      for (const OptionSpec& o : specs) {
        if (wanted(o)) return &o;
      }
    }
    return nullptr;
  }

  Result<std::string> NextWord(const std::string& shown, std::string_view value_name) {
    if (at_ >= words_.size()) return Bad(shown, "needs a value", "write " + shown + " " + std::string(value_name));
    return words_[at_++];
  }

  Status Ignore(const HarmlessOption& h, const std::string& shown, const std::string& value) {
    if (h.value.empty() || value.empty() || value == h.value) return {};
    if (h.note.empty()) return Bad(shown + "=" + value, "not supported yet", h.instead);
    out_.notes.push_back(shown + ": " + std::string(h.note));
    return {};
  }

  Status Take(const OptionSpec& o, std::string value) {
    out_.options.push_back({&o, std::move(value)});
    return {};
  }

  static Error Bad(const std::string& word, std::string_view why, std::string_view what_to_do) {
    return Error(Code::kInvalid, Escape(word) + ": " + std::string(why) + ": " + std::string(what_to_do));
  }

  Error Unknown(const std::string& word) {
    std::vector<std::string_view> names;
    for (std::span<const OptionSpec> specs : {table_.options, table_.common}) {
      for (const OptionSpec& o : specs) names.push_back(o.long_name);
    }
    std::string_view bare = word;
    while (bare.starts_with('-')) bare.remove_prefix(1);
    std::string_view nearest = Nearest(bare, names);
    return Bad(
        word, "unknown option",
        nearest.empty() ? "--help lists all" : "did you mean --" + std::string(nearest) + "? (--help lists all)");
  }

  const OptionTable& table_;
  std::span<const std::string> words_;
  size_t at_ = 0;
  ParsedWords out_;
};

}  // namespace

Result<ParsedWords> ParseWords(const OptionTable& table, std::span<const std::string> words) {
  return Parser(table, words).Parse();
}

std::string FormatOptions(std::span<const OptionSpec> options) {
  std::string out;
  for (const OptionSpec& o : options) {
    if (o.help.empty()) continue;
    std::string left = "  ";
    left += o.short_name != 0 ? std::string("-") + o.short_name : "  ";
    left += o.short_name != 0 && !o.long_name.empty() ? ", " : "  ";
    if (!o.long_name.empty()) left += "--" + std::string(o.long_name);
    if (o.argument == Argument::kRequired) left += (o.long_name.empty() ? "" : " ") + std::string(o.value_name);
    if (o.argument == Argument::kOptional) left += "[=" + std::string(o.value_name) + "]";
    left.resize(std::max<size_t>(left.size() + 2, 30), ' ');
    out += left + std::string(o.help) + "\n";
  }
  return out;
}

std::string_view Nearest(std::string_view word, std::span<const std::string_view> candidates) {
  if (word.empty() || word.size() > 64) return {};
  std::string_view best;
  size_t best_distance = std::max<size_t>(1, word.size() / 3) + 1;
  for (std::string_view c : candidates) {
    size_t distance = c.starts_with(word) && word.size() >= 3 ? 1 : EditDistance(word, c);
    if (distance < best_distance) {
      best = c;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace vrun::cli
