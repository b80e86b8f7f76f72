// SPDX-License-Identifier: Apache-2.0
#include "control/places/topology_file.h"

#include <strings.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <vector>

#include "base/escape.h"
#include "control/places/host_list.h"

namespace vrun::control {
namespace {

struct Entry {
  std::string name;
  std::string nodes, children;  // lists of names
  size_t line = 0;
};
// What both forms come to.
struct Raw {
  std::vector<Entry> switches, blocks;
  std::vector<uint64_t> block_sizes;
};

bool Same(std::string_view a, std::string_view b) {
  return a.size() == b.size() && ::strncasecmp(a.data(), b.data(), a.size()) == 0;
}

std::string_view Trim(std::string_view s) {
  constexpr std::string_view kBlanks = " \t\r";
  const size_t first = s.find_first_not_of(kBlanks);
  if (first == s.npos) return {};
  return s.substr(first, s.find_last_not_of(kBlanks) - first + 1);
}

std::string_view WithoutQuotes(std::string_view s) {
  if (s.size() >= 2 && (s.front() == '"' || s.front() == '\'') && s.back() == s.front()) {
    return s.substr(1, s.size() - 2);
  }
  return s;
}

class TopologyReader {
 public:
  TopologyReader(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  Result<NodePlaces> Read() {
    VRUN_TRY(IsYaml() ? ReadYaml() : ReadConf());
    if (raw_.switches.empty() && raw_.blocks.empty()) {
      return Error(Code::kInvalid, Escape(name_) +
                                       ": no switch and no block: write lines as in "
                                       "SwitchName=leaf1 Nodes=n[1-16]");
    }
    VRUN_TRY(PlaceInTree());
    VRUN_TRY(PlaceInBlocks());
    return std::move(places_);
  }

 private:
  Error At(size_t line, const std::string& what) const {
    return Error(Code::kInvalid, Escape(name_) + ":" + std::to_string(line) + ": " + what);
  }

  // Calls `read` with each line that is neither empty nor a comment, without comment.
  template <typename F>
  Status EachLine(F read) {
    size_t number = 0;
    for (std::string_view rest = text_; !rest.empty();) {
      const size_t end = std::min(rest.find('\n'), rest.size());
      std::string_view line = rest.substr(0, end);
      rest.remove_prefix(std::min(end + 1, rest.size()));
      ++number;
      line = line.substr(0, line.find('#'));
      if (!Trim(line).empty()) VRUN_TRY(read(line, number));
    }
    return {};
  }

  bool IsYaml() {
    std::optional<bool> yaml;
    (void)EachLine([&](std::string_view line, size_t) -> Status {
      line = Trim(line);
      if (!yaml) yaml = line[0] == '-' || line[0] == '%' || line.find('=') == line.npos;
      return {};
    });
    return yaml.value_or(false);
  }

  Status ReadSizes(std::string_view list, size_t line) {
    while (!list.empty()) {
      const size_t comma = std::min(list.find(','), list.size());
      VRUN_TRY(AddSize(Trim(list.substr(0, comma)), line));
      list.remove_prefix(std::min(comma + 1, list.size()));
    }
    return {};
  }

  Status AddSize(std::string_view number, size_t line) {
    uint64_t n = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), n);
    if (error != std::errc() || end != number.data() + number.size() || n == 0 ||
        (!raw_.block_sizes.empty() && n % raw_.block_sizes.back() != 0)) {
      return At(line, Escape(number) + ": not a size of blocks: write ascending multiples as in 18,72");
    }
    raw_.block_sizes.push_back(n);
    return {};
  }

  // --- topology.conf ---

  Status ReadConf() {
    return EachLine([this](std::string_view line, size_t number) { return ReadConfLine(line, number); });
  }

  Status ReadConfLine(std::string_view line, size_t number) {
    Entry entry;
    entry.line = number;
    bool is_switch = false, is_block = false;
    for (std::string_view rest = Trim(line); !rest.empty(); rest = Trim(rest)) {
      const size_t end = std::min(rest.find_first_of(" \t"), rest.size());
      const std::string_view word = rest.substr(0, end);
      rest.remove_prefix(end);
      const size_t equals = word.find('=');
      if (equals == word.npos) return At(number, Escape(word) + ": not a setting: write KEY=VALUE");
      const std::string_view key = word.substr(0, equals), value = word.substr(equals + 1);
      if (Same(key, "SwitchName") || Same(key, "BlockName")) {
        (key[0] == 's' || key[0] == 'S' ? is_switch : is_block) = true;
        entry.name = value;
      } else if (Same(key, "Nodes")) {
        entry.nodes = value;
      } else if (Same(key, "Switches")) {
        entry.children = value;
      } else if (Same(key, "BlockSizes")) {
        VRUN_TRY(ReadSizes(value, number));
      } else if (!Same(key, "LinkSpeed")) {
        return At(number, Escape(key) +
                              ": unknown setting: known are SwitchName, Switches, BlockName, BlockSizes and "
                              "Nodes");
      }
    }
    if (is_switch) raw_.switches.push_back(std::move(entry));
    if (is_block) raw_.blocks.push_back(std::move(entry));
    return {};
  }

  // --- topology.yaml ---

  // Only what topology.yaml has: sequences of mappings whose values are plain. Indentation does not matter, because
  // each key occurs in one place only.
  Status ReadYaml() {
    std::vector<std::pair<Raw, bool>> topologies;  // and whether it is the default
    bool sizes = false;
    const auto key_value = [&](std::string_view key, std::string_view value, size_t line) -> Status {
      if (key == "topology") {
        topologies.emplace_back();
        raw_ = {};
        return {};
      }
      if (topologies.empty()) return At(line, Escape(key) + ": stands before the first `- topology: NAME`");
      if (key == "cluster_default") {
        topologies.back().second = value == "true";
      } else if (key == "switch" || key == "block") {
        if (value.empty()) return {};  // "block:", the kind of this topology
        (key == "switch" ? raw_.switches : raw_.blocks).push_back({std::string(value), "", "", line});
        last_is_switch_ = key == "switch";
      } else if (key == "nodes" || key == "children") {
        std::vector<Entry>& entries = last_is_switch_ ? raw_.switches : raw_.blocks;
        if (entries.empty()) return At(line, Escape(key) + ": of no switch and no block: write it below its name");
        (key == "nodes" ? entries.back().nodes : entries.back().children) = value;
      } else if (key == "block_sizes") {
        sizes = value.empty();
        if (value.starts_with('[') && value.ends_with(']')) value = value.substr(1, value.size() - 2);
        VRUN_TRY(ReadSizes(value, line));
      } else if (key != "tree" && key != "switches" && key != "blocks" && key != "flat") {
        return At(line, Escape(key) + ": unknown key: known are topology, cluster_default, tree, block and flat");
      }
      topologies.back().first = raw_;
      return {};
    };
    VRUN_TRY(EachLine([&](std::string_view line, size_t number) -> Status {
      line = Trim(line);
      if (line.starts_with("---") || line.starts_with('%') || line.starts_with("...")) return {};
      const bool item = line[0] == '-';
      if (item) line = Trim(line.substr(1));
      if (item && sizes && line.find(':') == line.npos) {
        VRUN_TRY(AddSize(WithoutQuotes(line), number));
        topologies.back().first = raw_;
        return {};
      }
      if (!line.empty()) sizes = false;
      if (line.starts_with('{') && line.ends_with('}')) line = line.substr(1, line.size() - 2);
      for (std::string_view part : Parts(line)) {
        part = Trim(part);
        if (part.empty()) continue;
        const size_t colon = part.find(':');
        if (colon == part.npos) return At(number, Escape(part) + ": not a key with a value: write KEY: VALUE");
        VRUN_TRY(
            key_value(WithoutQuotes(Trim(part.substr(0, colon))), WithoutQuotes(Trim(part.substr(colon + 1))), number));
      }
      return {};
    }));
    if (topologies.empty()) return {};
    auto chosen = std::find_if(topologies.begin(), topologies.end(), [](const auto& t) { return t.second; });
    if (chosen == topologies.end()) chosen = topologies.begin();
    raw_ = std::move(chosen->first);
    return {};
  }

  // Splits "switch: a, nodes: n[1,2]" at the commas outside of brackets and quotes that begin another key.
  static std::vector<std::string_view> Parts(std::string_view line) {
    std::vector<std::string_view> parts;
    int depth = 0;
    char quote = 0;
    size_t from = 0;
    for (size_t i = 0; i < line.size(); ++i) {
      const char c = line[i];
      if (quote != 0) {
        if (c == quote) quote = 0;
      } else if (c == '"' || c == '\'') {
        quote = c;
      } else if (c == '[' || c == ']') {
        depth += c == '[' ? 1 : -1;
      } else if (c == ',' && depth == 0 && line.find(": ", i) != line.npos) {
        parts.push_back(line.substr(from, i - from));
        from = i + 1;
      }
    }
    parts.push_back(line.substr(from));
    return parts;
  }

  // --- places ---

  Status PlaceInTree() {
    std::map<std::string, const Entry*> above;
    for (const Entry& entry : raw_.switches) {
      if (entry.children.empty()) continue;
      auto children = ExpandHosts(entry.children);
      if (!children) return At(entry.line, children.error().message());
      for (const std::string& child : *children) {
        const bool known =
            std::any_of(raw_.switches.begin(), raw_.switches.end(), [&](const Entry& e) { return e.name == child; });
        if (!known) return At(entry.line, "switch " + Escape(child) + ": there is no line for it: add one");
        if (!above.emplace(child, &entry).second) {
          return At(entry.line, "switch " + Escape(child) + ": it is below two switches: name it once");
        }
      }
    }
    for (const Entry& entry : raw_.switches) {
      if (entry.nodes.empty()) continue;
      NodePlace place;
      const Entry* at = &entry;
      for (std::string* level : {&place.rack, &place.block, &place.zone}) {
        *level = at->name;
        const auto up = above.find(at->name);
        if (up == above.end()) break;
        at = up->second;
      }
      VRUN_TRY(AddNodes(entry, place));
    }
    return {};
  }

  Status PlaceInBlocks() {
    const auto factor = [this](size_t i) { return raw_.block_sizes[i] / raw_.block_sizes[0]; };
    for (size_t i = 0; i < raw_.blocks.size(); ++i) {
      const Entry& entry = raw_.blocks[i];
      NodePlace place;
      place.island = entry.name;
      if (raw_.block_sizes.size() > 1) place.rack = "blocks-" + std::to_string(i / factor(1));
      if (raw_.block_sizes.size() > 2) place.block = "blocks-" + std::to_string(i / factor(2));
      VRUN_TRY(AddNodes(entry, place));
    }
    return {};
  }

  Status AddNodes(const Entry& entry, const NodePlace& place) {
    auto nodes = ExpandHosts(entry.nodes);
    if (!nodes) return At(entry.line, nodes.error().message());
    for (const std::string& node : *nodes) {
      if (places_.emplace(node, place).second) continue;
      return At(entry.line, "node " + Escape(node) + ": it is in two places: name it once");
    }
    return {};
  }

  const std::string_view text_;
  const std::string& name_;
  Raw raw_;
  bool last_is_switch_ = true;
  NodePlaces places_;
};

}  // namespace

Result<NodePlaces> ParseTopology(std::string_view text, const std::string& name) {
  return TopologyReader(text, name).Read();
}

}  // namespace vrun::control
