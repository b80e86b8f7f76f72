// SPDX-License-Identifier: Apache-2.0
// vctl completion: scripts for bash, zsh and fish, generated from the records that parsing and help use.
#include <functional>

#include "base/escape.h"
#include "cli/ctl/ctl.h"
#include "cli/request/run_options.h"

namespace vrun::cli {
namespace {

// Asks the running cluster for pools and jobs; quick, and silent when there is none.
constexpr std::string_view kPools =
    "vctl nodes -o json 2>/dev/null | sed -n 's/^ *\"pool\": \"\\(.*\\)\",$/\\1/p' | sort -u";
constexpr std::string_view kJobs = "vctl jobs -o name 2>/dev/null";
constexpr std::string_view kSnapshots = "vctl snapshot list -o name 2>/dev/null";
constexpr std::string_view kSnapshotActions = "create list show diff delete export";
constexpr std::string_view kEnvs = "vctl env list -o name 2>/dev/null";
constexpr std::string_view kEnvActions = "create list show shell clone delete";
constexpr std::string_view kSecrets = "vctl secret list -o name 2>/dev/null";
constexpr std::string_view kSecretActions = "set list delete";
constexpr std::string_view kNodes = "vctl nodes -o name 2>/dev/null";
#define VRUN_CLASSES "scavenger experiment training production inference"

struct Program {
  std::string_view name;
  std::span<const OptionSpec> options;
};

std::string ShortOption(const OptionSpec& o) { return std::string("-") + o.short_name; }

void ForEachShown(std::span<const OptionSpec> options, const std::function<void(const OptionSpec&)>& use) {
  for (const OptionSpec& o : options) {
    if (!o.help.empty()) use(o);
  }
}

std::string SingleQuoted(std::string_view text) {
  std::string out = "'";
  for (char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

// --- bash

std::string BashWords(std::span<const OptionSpec> options) {
  std::string out;
  ForEachShown(options, [&](const OptionSpec& o) {
    if (o.short_name != 0) out += ShortOption(o) + " ";
    if (!o.long_name.empty()) out += "--" + std::string(o.long_name) + " ";
  });
  return out;
}

std::string BashOffer(Completes what) {
  switch (what) {
    case Completes::kFiles: return "COMPREPLY=($(compgen -f -- \"$cur\"))";
    case Completes::kDirectories: return "COMPREPLY=($(compgen -d -- \"$cur\"))";
    case Completes::kPools: return "COMPREPLY=($(compgen -W \"$(" + std::string(kPools) + ")\" -- \"$cur\"))";
    case Completes::kJobs: return "COMPREPLY=($(compgen -W \"$(" + std::string(kJobs) + ")\" -- \"$cur\"))";
    case Completes::kFormats: return "COMPREPLY=($(compgen -W 'json wide name' -- \"$cur\"))";
    case Completes::kShells: return "COMPREPLY=($(compgen -W 'bash zsh fish' -- \"$cur\"))";
    case Completes::kNodes: return "COMPREPLY=($(compgen -W \"$(" + std::string(kNodes) + ")\" -- \"$cur\"))";
    case Completes::kCacheActions: return "COMPREPLY=($(compgen -W 'stat verify prune' -- \"$cur\"))";
    case Completes::kWrites: return "COMPREPLY=($(compgen -W 'home keep discard' -- \"$cur\"))";
    case Completes::kClasses: return "COMPREPLY=($(compgen -W '" VRUN_CLASSES "' -- \"$cur\"))";
    case Completes::kSnapshots: return "COMPREPLY=($(compgen -W \"$(" + std::string(kSnapshots) + ")\" -- \"$cur\"))";
    case Completes::kEnvActions:
      return "COMPREPLY=($(compgen -W \"" + std::string(kEnvActions) + " $(" + std::string(kEnvs) + ")\" -- \"$cur\"))";
    case Completes::kSnapshotActions:
      return "COMPREPLY=($(compgen -W \"" + std::string(kSnapshotActions) + " $(" + std::string(kSnapshots) +
             ")\" -- \"$cur\"))";
    case Completes::kLevels:
      return "COMPREPLY=($(compgen -W 'node island rack block zone rack:prefer block:prefer' -- \"$cur\"))";
    case Completes::kMemory: return "COMPREPLY=($(compgen -W '1G 4G 16G 64G' -- \"$cur\"))";
    case Completes::kViews: return "COMPREPLY=($(compgen -W 'live frozen' -- \"$cur\"))";
    case Completes::kShares: return "COMPREPLY=($(compgen -W 'mps time' -- \"$cur\"))";
    case Completes::kNetworks: return "COMPREPLY=($(compgen -W 'host private' -- \"$cur\"))";
    case Completes::kSecrets: return "COMPREPLY=($(compgen -W \"$(" + std::string(kSecrets) + ")\" -- \"$cur\"))";
    case Completes::kSecretActions:
      return "COMPREPLY=($(compgen -W \"" + std::string(kSecretActions) + " $(" + std::string(kSecrets) +
             ")\" -- \"$cur\"))";
    default: return "COMPREPLY=()";
  }
}

// "-P|--pool"
std::string BashPattern(const OptionSpec& o) {
  if (o.long_name.empty()) return ShortOption(o);
  return (o.short_name != 0 ? ShortOption(o) + "|" : "") + "--" + std::string(o.long_name);
}

// case "$prev" in ... for the options with values.
std::string BashValues(std::span<const OptionSpec> options, const std::string& indent) {
  std::string out;
  for (const OptionSpec& o : options) {
    if (o.argument != Argument::kRequired) continue;
    out += indent + BashPattern(o) + ") " + BashOffer(o.completes) + "; return;;\n";
  }
  return out;
}

std::string BashRun(const Program& p) {
  std::string with_value;
  for (const OptionSpec& o : p.options) {
    if (o.argument != Argument::kRequired) continue;
    with_value += (with_value.empty() ? "" : "|") + BashPattern(o);
  }
  std::string name(p.name);
  return "_" + name +
         "() {\n  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} i=1\n"
         "  while ((i < COMP_CWORD)); do\n    case ${COMP_WORDS[i]} in\n"
         "      --) ((i++)); break;;\n      " +
         with_value +
         ") ((i+=2));;\n      -*) ((i++));;\n      *) break;;\n"
         "    esac\n  done\n"
         "  if ((i < COMP_CWORD)) || [[ $i == \"$COMP_CWORD\" && ${COMP_WORDS[i-1]} == -- ]]; then\n"
         "    if declare -F _command_offset >/dev/null; then _command_offset $i; else COMPREPLY=($(compgen -f -- "
         "\"$cur\")); fi\n"
         "    return\n  fi\n"
         "  case $prev in\n" +
         BashValues(p.options, "    ") +
         "  esac\n"
         "  if [[ $cur == -* ]]; then COMPREPLY=($(compgen -W '" +
         BashWords(p.options) +
         "' -- \"$cur\"))\n"
         "  elif ((i <= COMP_CWORD)); then COMPREPLY=($(compgen -c -f -- \"$cur\")); fi\n}\n"
         "complete -o filenames -F _" +
         name + " " + name + "\n";
}

std::string BashCtl() {
  std::string names, cases;
  for (const CtlCommand* c : CtlCommands()) {
    names += std::string(c->name) + " ";
    cases += "    " + std::string(c->name) + ")\n      case $prev in\n" + BashValues(c->options, "        ") +
             BashValues(CtlCommonOptions(), "        ") +
             "      esac\n      if [[ $cur == -* ]]; then COMPREPLY=($(compgen -W '" + BashWords(c->options) +
             BashWords(CtlCommonOptions()) + "' -- \"$cur\"))\n      else " + BashOffer(c->operands) + "; fi;;\n";
  }
  return "_vctl() {\n  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n"
         "  if ((COMP_CWORD == 1)); then COMPREPLY=($(compgen -W '" +
         names +
         "' -- \"$cur\")); return; fi\n"
         "  case ${COMP_WORDS[1]} in\n" +
         cases + "  esac\n}\ncomplete -F _vctl vctl\n";
}

// --- zsh

std::string ZshAction(Completes what) {
  switch (what) {
    case Completes::kFiles: return "_files";
    case Completes::kDirectories: return "_files -/";
    case Completes::kPools: return "_vrun_pools";
    case Completes::kJobs: return "_vrun_jobs";
    case Completes::kFormats: return "(json wide name)";
    case Completes::kShells: return "(bash zsh fish)";
    case Completes::kNodes: return "_vrun_nodes";
    case Completes::kCacheActions: return "(stat verify prune)";
    case Completes::kWrites: return "(home keep discard)";
    case Completes::kClasses: return "(" VRUN_CLASSES ")";
    case Completes::kSnapshots: return "_vrun_snapshots";
    case Completes::kSnapshotActions: return "_vrun_snapshot_words";
    case Completes::kEnvActions: return "_vrun_env_words";
    case Completes::kLevels: return "(node island rack block zone)";
    case Completes::kMemory: return "(1G 4G 16G 64G)";
    case Completes::kViews: return "(live frozen)";
    case Completes::kShares: return "(mps time)";
    case Completes::kNetworks: return "(host private)";
    case Completes::kSecrets: return "_vrun_secrets";
    case Completes::kSecretActions: return "_vrun_secret_words";
    default: return " ";
  }
}

std::string ZshText(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') out.push_back('\\');
    out.push_back(c);
  }
  return out;
}

std::string ZshOptions(std::span<const OptionSpec> options) {
  std::string out;
  ForEachShown(options, [&](const OptionSpec& o) {
    std::string value =
        o.argument == Argument::kRequired ? ":" + ZshText(o.value_name) + ":" + ZshAction(o.completes) : "";
    if (o.short_name != 0) {
      out += " \\\n    " + SingleQuoted("*" + ShortOption(o) + "[" + ZshText(o.help) + "]" + value);
    }
    if (!o.long_name.empty()) {
      std::string equals = o.argument == Argument::kRequired ? "=" : "";
      out +=
          " \\\n    " + SingleQuoted("*--" + std::string(o.long_name) + equals + "[" + ZshText(o.help) + "]" + value);
    }
  });
  return out;
}

std::string Zsh(std::span<const Program> programs) {
  std::string out = "#compdef vrun vbatch vctl\n_vrun_pools() { local -a p; p=(${(f)\"$(" + std::string(kPools) +
                    ")\"}); compadd -a p }\n_vrun_jobs() { local -a j; j=(${(f)\"$(" + std::string(kJobs) +
                    ")\"}); compadd -a j }\n_vrun_nodes() { local -a n; n=(${(f)\"$(" + std::string(kNodes) +
                    ")\"}); compadd -a n }\n_vrun_snapshots() { local -a s; s=(${(f)\"$(" + std::string(kSnapshots) +
                    ")\"}); compadd -a s }\n_vrun_secrets() { local -a s; s=(${(f)\"$(" + std::string(kSecrets) +
                    ")\"}); compadd -a s }\n_vrun_secret_words() { compadd " + std::string(kSecretActions) +
                    "; _vrun_secrets }\n_vrun_snapshot_words() { compadd " + std::string(kSnapshotActions) +
                    "; _vrun_snapshots }\n_vrun_env_words() { local -a e; e=(${(f)\"$(" + std::string(kEnvs) +
                    ")\"}); compadd " + std::string(kEnvActions) + "; compadd -a e }\n";
  for (const Program& p : programs) {
    std::string name(p.name);
    out += "_vrun_" + name + "() {\n  _arguments -S -A '-*'" + ZshOptions(p.options) +
           " \\\n    '(-)1:command:_command_names -e' \\\n    '*::arguments:_normal'\n}\n";
  }
  out += "_vrun_vctl() {\n  local -a commands\n  commands=(\n";
  std::string cases;
  for (const CtlCommand* c : CtlCommands()) {
    out += "    " + SingleQuoted(std::string(c->name) + ":" + std::string(c->summary)) + "\n";
    cases += "    " + std::string(c->name) + ") _arguments" + ZshOptions(c->options) + ZshOptions(CtlCommonOptions()) +
             (c->operands == Completes::kNothing ? "" : " \\\n    '*:argument:" + ZshAction(c->operands) + "'") +
             ";;\n";
  }
  return out +
         "  )\n  if ((CURRENT == 2)); then _describe command commands; return; fi\n  local command=$words[2]\n"
         "  shift words; ((CURRENT--))\n  case $command in\n" +
         cases +
         "  esac\n}\n_vrun_complete() {\n  case $service in\n    vrun) _vrun_vrun;;\n    vbatch) _vrun_vbatch;;\n"
         "    vctl) _vrun_vctl;;\n  esac\n}\ncompdef _vrun_complete vrun vbatch vctl\n";
}

// --- fish

std::string FishOffer(const OptionSpec& o) {
  switch (o.completes) {
    case Completes::kFiles: return " -r -F";
    case Completes::kDirectories: return " -x -a '(__fish_complete_directories)'";
    case Completes::kPools: return " -x -a '(__vrun_pools)'";
    case Completes::kJobs: return " -x -a '(__vrun_jobs)'";
    case Completes::kFormats: return " -x -a 'json wide name'";
    case Completes::kNodes: return " -x -a '(__vrun_nodes)'";
    case Completes::kWrites: return " -x -a 'home keep discard'";
    case Completes::kClasses: return " -x -a '" VRUN_CLASSES "'";
    case Completes::kSnapshots: return " -x -a '(__vrun_snapshots)'";
    case Completes::kLevels: return " -x -a 'node island rack block zone'";
    case Completes::kMemory: return " -x -a '1G 4G 16G 64G'";
    case Completes::kViews: return " -x -a 'live frozen'";
    case Completes::kShares: return " -x -a 'mps time'";
    case Completes::kNetworks: return " -x -a 'host private'";
    case Completes::kSecrets: return " -x -a '(__vrun_secrets)'";
    default: return " -x";
  }
}

std::string FishOptions(std::string_view program, std::string_view condition, std::span<const OptionSpec> options) {
  std::string out;
  ForEachShown(options, [&](const OptionSpec& o) {
    out += "complete -c " + std::string(program);
    if (!condition.empty()) out += " -n " + SingleQuoted(condition);
    if (o.short_name != 0) out += std::string(" -s ") + o.short_name;
    if (!o.long_name.empty()) out += " -l " + std::string(o.long_name);
    if (o.argument == Argument::kRequired) out += FishOffer(o);
    std::string help;
    for (char c : o.help) help += c == '\'' || c == '\\' ? std::string("\\") + c : std::string(1, c);
    out += " -d '" + help + "'\n";
  });
  return out;
}

std::string Fish(std::span<const Program> programs) {
  std::string out = "function __vrun_pools; " + std::string(kPools) + "; end\nfunction __vrun_jobs; " +
                    std::string(kJobs) + "; end\nfunction __vrun_nodes; " + std::string(kNodes) +
                    "; end\nfunction __vrun_snapshots; " + std::string(kSnapshots) +
                    "; end\nfunction __vrun_secrets; " + std::string(kSecrets) + "; end\n";
  for (const Program& p : programs) {
    out += FishOptions(p.name, "", p.options) + "complete -c " + std::string(p.name) +
           " -x -a '(__fish_complete_subcommand)'\n";
  }
  out += "complete -c vctl -f\n";
  for (const CtlCommand* c : CtlCommands()) {
    std::string name(c->name), seen = "__fish_seen_subcommand_from " + name;
    out += "complete -c vctl -n __fish_use_subcommand -a " + name + " -d " + SingleQuoted(c->summary) + "\n";
    out += FishOptions("vctl", seen, c->options);
    if (c->operands == Completes::kJobs) out += "complete -c vctl -n '" + seen + "' -a '(__vrun_jobs)'\n";
    if (c->operands == Completes::kCacheActions) out += "complete -c vctl -n '" + seen + "' -a 'stat verify prune'\n";
    if (c->operands == Completes::kSnapshotActions) {
      out += "complete -c vctl -n '" + seen + "' -a '" + std::string(kSnapshotActions) + " (__vrun_snapshots)'\n";
    }
    if (c->operands == Completes::kEnvActions) {
      out += "complete -c vctl -n '" + seen + "' -a '" + std::string(kEnvActions) + " (" + std::string(kEnvs) + ")'\n";
    }
    if (c->operands == Completes::kSecretActions) {
      out += "complete -c vctl -n '" + seen + "' -a '" + std::string(kSecretActions) + " (__vrun_secrets)'\n";
    }
    if (c->operands == Completes::kShells) out += "complete -c vctl -n '" + seen + "' -a 'bash zsh fish'\n";
  }
  return out + FishOptions("vctl", "", CtlCommonOptions());
}

Status Validate(const CtlInvocation& invocation) {
  const auto& words = invocation.words.operands;
  if (words.size() == 1 && (words[0] == "bash" || words[0] == "zsh" || words[0] == "fish")) return {};
  return Error(Code::kInvalid,
               (words.empty() ? "no shell" : Escape(words.back())) + ": name one shell: bash, zsh or fish");
}

Result<int> Run(const CtlInvocation& invocation) {
  const Program programs[] = {{"vrun", RunTable().options}, {"vbatch", BatchTable().options}};
  const std::string& shell = invocation.words.operands[0];
  if (shell == "bash") {
    Print(BashRun(programs[0]) + BashRun(programs[1]) + BashCtl());
  } else {
    Print(shell == "zsh" ? Zsh(programs) : Fish(programs));
  }
  return 0;
}

}  // namespace

const CtlCommand kCtlCompletion{"completion", "bash|zsh|fish",    "a script that completes words in this shell",
                                {},           Completes::kShells, Validate,
                                Run};

}  // namespace vrun::cli
