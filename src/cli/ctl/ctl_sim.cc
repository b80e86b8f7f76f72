// SPDX-License-Identifier: Apache-2.0
// vctl sim: executes vrun-sim. The simulator is a separate program, so that the CLI stays small.
#include <unistd.h>

#include <vector>

#include "base/escape.h"
#include "cli/base/daemon_process.h"
#include "cli/ctl/ctl.h"
#include "cli/ctl/sim_command.h"

namespace vrun::cli {
namespace {

Status Validate(const CtlInvocation&) { return {}; }  // vrun-sim validates

Result<int> Run(const CtlInvocation& invocation) {
  VRUN_ASSIGN(const std::string program, FindProgram("vrun-sim"));
  std::vector<std::string> words{program};
  for (const ParsedOption& option : invocation.words.options) {
    words.push_back("--" + std::string(option.spec->long_name));
    if (option.spec->argument == Argument::kRequired) words.back() += "=" + option.value;
  }
  words.emplace_back("--");
  words.insert(words.end(), invocation.words.operands.begin(), invocation.words.operands.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::execv(program.c_str(), argv.data());
  return ErrnoError("start " + Escape(program));
}

}  // namespace

const CtlCommand kCtlSim = SimCommand(Validate, Run);

}  // namespace vrun::cli
