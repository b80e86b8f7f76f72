// SPDX-License-Identifier: Apache-2.0
#include "cli/ctl.h"

#include <cstdio>

#include "base/escape.h"
#include "base/files.h"
#include "cli/exit_status.h"
#include "cli/json.h"
#include "cli/values.h"

namespace vrun::cli {
namespace {

enum CommonId { kFormat = 1000, kNoHeaders, kHelp, kVersion };

constexpr OptionSpec kCommon[] = {
    {kFormat, 'o', "output", Argument::kRequired, "json|wide|name|table", "form of the output", Completes::kFormats},
    {kNoHeaders, 0, "no-headers", Argument::kNone, "", "tables without their first line"},
    {kVersion, 0, "version", Argument::kNone, "", "the version"},
    {kHelp, 'h', "help", Argument::kNone, "", "this text"},
};

constexpr const CtlCommand* kCommands[] = {&kCtlUp,    &kCtlDown,       &kCtlStatus, &kCtlDoctor,    &kCtlNodes,
                                           &kCtlCache, &kCtlSnapshot,   &kCtlEnv,    &kCtlJobs,      &kCtlJob,
                                           &kCtlLogs,  &kCtlCancel,     &kCtlWait,   &kCtlQueue,     &kCtlWhy,
                                           &kCtlQuota, &kCtlAccounting, &kCtlSim,    &kCtlCompletion};

std::string GeneralHelp() {
  std::string out = "usage: vctl COMMAND [options] [arguments]\n\n";
  for (const CtlCommand* c : kCommands) {
    std::string left = "  " + std::string(c->name) + (c->arguments.empty() ? "" : " ") + std::string(c->arguments);
    left.resize(std::max<size_t>(left.size() + 2, 34), ' ');
    out += left + std::string(c->summary) + "\n";
  }
  return out + "\n" + FormatOptions(kCommon);
}

std::string CommandHelp(const CtlCommand& c) {
  std::string arguments = c.arguments.empty() ? "" : " " + std::string(c.arguments);
  return "usage: vctl " + std::string(c.name) + " [options]" + arguments + "\n" + std::string(c.summary) + "\n\n" +
         FormatOptions(c.options) + FormatOptions(kCommon) + (c.has_html ? "\nIts --output may also be html.\n" : "");
}

int UsageError(const std::string& text) {
  std::fprintf(stderr, "vctl: %s\n", text.c_str());
  return kExitUsage;
}

const CtlCommand* FindCommand(std::string_view name) {
  for (const CtlCommand* c : kCommands) {
    if (c->name == name) return c;
  }
  return nullptr;
}

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
    } else {
      return Error(Code::kInvalid, "--output " + Escape(*format) + ": unknown form: write json, wide, name or table" +
                                       (command.has_html ? ", or html" : ""));
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

int RunCommand(const CtlCommand& command, std::span<const std::string> words) {
  OptionTable table{command.options, {}, kCommon, false};
  auto parsed = ParseWords(table, words);
  if (!parsed) return UsageError(std::string(command.name) + ": " + parsed.error().message());
  CtlInvocation invocation;
  invocation.words = *std::move(parsed);
  if (invocation.Has(kHelp)) {
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

}  // namespace

bool CtlInvocation::Has(int option) const { return Value(option).has_value(); }

std::optional<std::string> CtlInvocation::Value(int option) const {
  std::optional<std::string> out;
  for (const ParsedOption& o : words.options) {
    if (o.spec->id == option) out = o.value;
  }
  return out;
}

std::span<const CtlCommand* const> CtlCommands() { return kCommands; }
std::span<const OptionSpec> CtlCommonOptions() { return kCommon; }

void Print(std::string_view text) { (void)WriteAll(1, text); }

Status NoOperands(const CtlInvocation& invocation) {
  if (invocation.words.operands.empty()) return {};
  return Error(Code::kInvalid, Escape(invocation.words.operands[0]) + ": unexpected: this command takes no arguments");
}

Status SomeJobs(const CtlInvocation& invocation) {
  if (invocation.words.operands.empty()) {
    return Error(Code::kInvalid, "no job id: name one: `vctl jobs` lists them");
  }
  for (const std::string& word : invocation.words.operands) {
    auto id = ParseJobId(word);
    if (!id) return std::move(id).error();
  }
  return {};
}

Status OneJob(const CtlInvocation& invocation) {
  VRUN_TRY(SomeJobs(invocation));
  if (invocation.words.operands.size() == 1) return {};
  return Error(Code::kInvalid, Escape(invocation.words.operands[1]) + ": unexpected: name one job");
}

int CtlMain(std::span<const std::string> words) {
  if (words.empty()) return UsageError("no command: name one: `vctl --help` lists them");
  const std::string& first = words[0];
  if (first == "-h" || first == "--help" || first == "help") {
    const CtlCommand* c = words.size() > 1 ? FindCommand(words[1]) : nullptr;
    Print(c == nullptr ? GeneralHelp() : CommandHelp(*c));
    return 0;
  }
  if (first == "--version") {
    Print("vctl " VRUN_VERSION "\n");
    return 0;
  }
  // Options of all commands may stand in front: `vctl -o json jobs`.
  OptionTable table{{}, {}, kCommon, true};
  auto parsed = ParseWords(table, words);
  if (!parsed) return UsageError(parsed.error().message());
  if (parsed->operands.empty()) return UsageError("no command: name one: `vctl --help` lists them");
  const CtlCommand* command = FindCommand(parsed->operands[0]);
  if (command == nullptr) {
    std::vector<std::string_view> names;
    for (const CtlCommand* c : kCommands) names.push_back(c->name);
    std::string_view nearest = Nearest(parsed->operands[0], names);
    std::string hint = nearest.empty() ? "`vctl --help` lists them" : "did you mean " + std::string(nearest) + "?";
    return UsageError(Escape(parsed->operands[0]) + ": unknown command: " + hint);
  }
  size_t before = words.size() - parsed->operands.size();
  std::vector<std::string> rest(words.begin(), words.begin() + static_cast<ptrdiff_t>(before));
  rest.insert(rest.end(), parsed->operands.begin() + 1, parsed->operands.end());
  return RunCommand(*command, rest);
}

}  // namespace vrun::cli
