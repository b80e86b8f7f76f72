// SPDX-License-Identifier: Apache-2.0
// A command of `vctl` as a record: name, options, validator, handler. Help and completion are derived from it.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "cli/base/options.h"
#include "cli/base/output.h"

namespace vrun::cli {

struct CtlInvocation {
  ParsedWords words;
  OutputFormat format = OutputFormat::kTable;
  bool headers = true;

  bool Has(int option) const;
  // The last one of repeated options.
  std::optional<std::string> Value(int option) const;
  bool json() const { return format == OutputFormat::kJson; }
};

struct CtlCommand {
  std::string_view name;
  std::string_view arguments;  // "[-f] ID"
  std::string_view summary;
  std::span<const OptionSpec> options;
  Completes operands;
  // Checks the words before anything happens; an error exits 2.
  Status (*validate)(const CtlInvocation&);
  // Prints everything and returns the process's exit status. On an error the caller prints it and exits 1.
  Result<int> (*run)(const CtlInvocation&);
  bool has_html = false;  // understands -o html
  bool has_csv = false;   // understands -o csv
};

// Options of every command.
std::span<const OptionSpec> CtlCommonOptions();

std::string CommandHelp(const CtlCommand& command);
// Prints the text and returns the exit status.
int UsageError(const std::string& text);
// Parses the words behind the command's name, validates and runs. Returns the exit status.
int RunCommand(const CtlCommand& command, std::span<const std::string> words);

}  // namespace vrun::cli
