// SPDX-License-Identifier: Apache-2.0
#include "cli/base/command.h"

#include <cstdio>

#include "base/escape.h"
#include "cli/base/exit_status.h"
#include "cli/base/json.h"

namespace vrun::cli {
namespace {

enum CommonId { kFormat = 1000, kNoHeaders, kHelpFlag, kVersion };

constexpr OptionSpec kCommon[] = {
    {kFormat, 'o', "output", Argument::kRequired, "json|wide|name|table", "form of the output", Completes::kFormats},
    {kNoHeaders, 0, "no-headers", Argument::kNone, "", "tables without their first line"},
    {kVersion, 0, "version", Argument::kNone, "", "the version"},
    {kHelpFlag, 'h', "help", Argument::kNone, "", "this text"},
};

Status ApplyFormat(const CtlCommand& command, CtlInvocation* invocation) {
  if (auto format = invocation->Value(kFormat)) {
    if (*format == "json") {
      invocation->format = OutputFormat::kJson;
    } else if (*format == "wide") {
      invocation->format = OutputFormat::kWide;
    } else if (*format == "name") {
      invocation->format = OutputFormat::kName;
    } else if (*format == "table") {
      invocation->format = OutputFormat::kTable;
    } else if (*format == "html" && command.has_html) {
      invocation->format = OutputFormat::kHtml;
    } else if (*format == "csv" && command.has_csv) {
      invocation->format = OutputFormat::kCsv;
    } else {
      return Error(Code::kInvalid, "--output " + Escape(*format) + ": unknown form: write json, wide, name or table" +
                                       (command.has_html  ? ", or html"
                                        : command.has_csv ? ", or csv"
                                                          : ""));
    }
  }
  invocation->headers = !invocation->Has(kNoHeaders);
  return {};
}

int ReportError(const CtlInvocation& invocation, const Error& error) {
  if (invocation.json()) {
    JsonWriter json;
    json.BeginObject().Key("schema").Int(kJsonSchema).Key("error").BeginObject();
    json.Key("code").String(CodeName(error.code())).Key("message").String(error.message()).EndObject().EndObject();
    Print(json.Take());
  } else {
    std::fprintf(stderr, "vctl: %s\n", error.message().c_str());
  }
  return 1;
}

}  // namespace

bool CtlInvocation::Has(int option) const { return Value(option).has_value(); }

std::optional<std::string> CtlInvocation::Value(int option) const {
  std::optional<std::string> out;
  for (const ParsedOption& o : words.options) {
    if (o.spec->id == option) out = o.value;
  }
  return out;
}

std::span<const OptionSpec> CtlCommonOptions() { return kCommon; }

std::string CommandHelp(const CtlCommand& c) {
  std::string arguments = c.arguments.empty() ? "" : " " + std::string(c.arguments);
  return "usage: vctl " + std::string(c.name) + " [options]" + arguments + "\n" + std::string(c.summary) + "\n\n" +
         FormatOptions(c.options) + FormatOptions(kCommon) + (c.has_html ? "\nIts --output may also be html.\n" : "") +
         (c.has_csv ? "\nIts --output may also be csv.\n" : "");
}

int UsageError(const std::string& text) {
  std::fprintf(stderr, "vctl: %s\n", text.c_str());
  return kExitUsage;
}

int RunCommand(const CtlCommand& command, std::span<const std::string> words) {
  OptionTable table{command.options, {}, kCommon, false};
  auto parsed = ParseWords(table, words);
  if (!parsed) return UsageError(std::string(command.name) + ": " + parsed.error().message());
  CtlInvocation invocation;
  invocation.words = *std::move(parsed);
  if (invocation.Has(kHelpFlag)) {
    Print(CommandHelp(command));
    return 0;
  }
  if (invocation.Has(kVersion)) {
    Print("vctl " VRUN_VERSION "\n");
    return 0;
  }
  Status fine = ApplyFormat(command, &invocation);
  if (fine) fine = command.validate(invocation);
  if (!fine) return UsageError(std::string(command.name) + ": " + fine.error().message());
  auto result = command.run(invocation);
  return result ? *result : ReportError(invocation, result.error());
}

}  // namespace vrun::cli
