// SPDX-License-Identifier: Apache-2.0
// The commands of `vctl` as records: name, options, validator, handler. Help and completion derive from them.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "cli/options.h"

namespace vrun::cli {

enum class OutputFormat { kTable, kWide, kName, kJson, kHtml };

struct CtlInvocation {
  ParsedWords words;
  OutputFormat format = OutputFormat::kTable;
  bool headers = true;

  bool Has(int option) const;
  // The last one given.
  std::optional<std::string> Value(int option) const;
  bool json() const { return format == OutputFormat::kJson; }
};

struct CtlCommand {
  std::string_view name;
  std::string_view arguments;  // "[-f] ID"
  std::string_view summary;
  std::span<const OptionSpec> options;
  Completes operands;
  // What is wrong with the words, before anything happens (exit 2).
  Status (*validate)(const CtlInvocation&);
  // The process's exit status, everything printed; an error is printed by the caller and exits 1.
  Result<int> (*run)(const CtlInvocation&);
  bool has_html = false;  // understands -o html
};

// All of them, in the order of the help text.
std::span<const CtlCommand* const> CtlCommands();

// Options that every command of vctl has.
std::span<const OptionSpec> CtlCommonOptions();

// `vctl` as a whole. `words`: without the program's name.
int CtlMain(std::span<const std::string> words);

// To stdout. A closed pipe ends quietly.
void Print(std::string_view text);

// Validators.
Status NoOperands(const CtlInvocation& invocation);
Status OneJob(const CtlInvocation& invocation);
Status SomeJobs(const CtlInvocation& invocation);

// The records, each in a file of its own.
extern const CtlCommand kCtlUp, kCtlDown, kCtlStatus, kCtlDoctor, kCtlNodes, kCtlCache, kCtlSnapshot, kCtlEnv, kCtlJobs,
    kCtlJob, kCtlLogs, kCtlCancel, kCtlWait, kCtlQueue, kCtlWhy, kCtlQuota, kCtlAccounting, kCtlSim, kCtlCompletion;

}  // namespace vrun::cli
