// SPDX-License-Identifier: Apache-2.0
// vctl cancel
#include <strings.h>

#include <csignal>

#include "base/escape.h"
#include "cli/base/home_connection.h"
#include "cli/base/values.h"
#include "cli/ctl/ctl.h"
#include "cli/request/scheduling.h"

namespace vrun::cli {
namespace {

enum Id { kSignal };
constexpr OptionSpec kOptions[] = {
    {kSignal, 's', "signal", Argument::kRequired, "SIGNAL", "send only this signal, by name or number"}};

Status Validate(const CtlInvocation& invocation) {
  auto signal = invocation.Value(kSignal);
  if (signal && ParseSignal(*signal) == 0) {
    return Error(Code::kInvalid, Escape(*signal) + ": not a signal: write a name as in USR1, or a number");
  }
  return SomeJobs(invocation);
}

Result<int> Run(const CtlInvocation& invocation) {
  VRUN_ASSIGN(HomeConnection home, HomeConnection::Make());
  v1::Query query;
  for (const std::string& word : invocation.words.operands) {
    VRUN_ASSIGN(uint64_t id, ParseJobId(word));
    query.mutable_cancel_jobs()->add_jobs(id);
  }
  if (auto signal = invocation.Value(kSignal)) query.mutable_cancel_jobs()->set_signal(ParseSignal(*signal));
  VRUN_ASSIGN(v1::HomeMessage answer, Ask(home, query, true));
  if (invocation.json()) Print("{\n  \"schema\": 1,\n  \"ok\": true\n}\n");
  return 0;
}

}  // namespace

const CtlCommand kCtlCancel{"cancel", "ID...", "end jobs, or send them a signal", kOptions, Completes::kJobs,
                            Validate, Run};

}  // namespace vrun::cli
