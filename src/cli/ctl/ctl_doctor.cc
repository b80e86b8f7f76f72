// SPDX-License-Identifier: Apache-2.0
// vctl doctor
#include <algorithm>

#include "cli/base/json.h"
#include "cli/ctl/ctl.h"
#include "cli/host/host_facts.h"

namespace vrun::cli {
namespace {

std::string_view LevelName(Level level) {
  switch (level) {
    case Level::kOk: return "ok";
    case Level::kWarn: return "warn";
    case Level::kFail: return "FAIL";
  }
  return "?";
}

std::string AsText(const std::vector<Finding>& findings) {
  std::string out;
  for (const Finding& f : findings) {
    std::string left = std::string(LevelName(f.level));
    left.resize(6, ' ');
    left += f.name;
    left.resize(std::max<size_t>(24, left.size() + 2), ' ');
    out += left + f.text + "\n";
    if (!f.what_to_do.empty()) out += std::string(24, ' ') + "→ " + f.what_to_do + "\n";
  }
  return out;
}

std::string AsJson(const std::vector<Finding>& findings, bool fit) {
  JsonWriter json;
  json.BeginObject().Key("schema").Int(kJsonSchema).Key("fit").Bool(fit).Key("checks").BeginArray();
  for (const Finding& f : findings) {
    json.BeginObject().Key("name").String(f.name).Key("level").String(f.level == Level::kFail ? "fail"
                                                                                              : LevelName(f.level));
    json.Key("text").String(f.text).Key("what_to_do").String(f.what_to_do).EndObject();
  }
  json.EndArray().EndObject();
  return json.Take();
}

Result<int> Run(const CtlInvocation& invocation) {
  VRUN_ASSIGN(Places places, FindPlaces());
  std::vector<Finding> findings = CheckAll(GatherFacts(places));
  bool fit = std::none_of(findings.begin(), findings.end(), [](const Finding& f) { return f.level == Level::kFail; });
  if (invocation.json()) {
    Print(AsJson(findings, fit));
  } else {
    Print(AsText(findings) + (fit ? "\nvrun can run here\n" : "\nvrun cannot run here: see the lines with FAIL\n"));
  }
  return fit ? 0 : 1;
}

}  // namespace

const CtlCommand kCtlDoctor{"doctor",   "", "what is missing on this machine, and what to do", {}, Completes::kNothing,
                            NoOperands, Run};

}  // namespace vrun::cli
