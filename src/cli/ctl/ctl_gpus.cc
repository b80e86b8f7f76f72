// SPDX-License-Identifier: Apache-2.0
// vctl gpus, vctl top
#include <algorithm>

#include "base/escape.h"
#include "cli/base/home_connection.h"
#include "cli/ctl/ctl.h"
#include "cli/gpus/gpu_view.h"

namespace vrun::cli {
namespace {

enum Id { kPool };
constexpr OptionSpec kGpusOptions[] = {
    {kPool, 'P', "pool", Argument::kRequired, "POOL", "only those of this pool", Completes::kPools}};

Status AnyNodes(const CtlInvocation&) { return {}; }

Result<int> RunGpus(const CtlInvocation& invocation) {
  VRUN_ASSIGN(HomeConnection home, HomeConnection::Make());
  v1::Query query;
  query.mutable_list_nodes();
  VRUN_ASSIGN(v1::HomeMessage answer, Ask(home, query, true));
  if (!answer.has_nodes()) return Error(Code::kInternal, "home: unexpected answer instead of a list of nodes");
  for (const std::string& name : invocation.words.operands) {
    const auto& nodes = answer.nodes().nodes();
    const bool known =
        std::any_of(nodes.begin(), nodes.end(), [&name](const auto& node) { return node.name() == name; });
    if (!known) return Error(Code::kNotFound, "node " + Escape(name) + ": no such node: `vctl nodes` lists them");
  }
  const GpuFilter filter{invocation.Value(kPool).value_or(""), invocation.words.operands};
  Print(FormatGpus(answer.nodes(), filter, invocation.format, invocation.headers));
  return 0;
}

Result<int> RunTop(const CtlInvocation& invocation) {
  VRUN_ASSIGN(HomeConnection home, HomeConnection::Make());
  v1::Query query;
  query.mutable_list_jobs();
  VRUN_ASSIGN(v1::HomeMessage answer, Ask(home, query, true));
  if (!answer.has_jobs()) return Error(Code::kInternal, "home: unexpected answer instead of a list of jobs");
  Print(FormatTop(answer.jobs(), invocation.format, invocation.headers));
  return 0;
}

}  // namespace

const CtlCommand kCtlGpus{"gpus",       "[-P POOL] [NODE...]", "the GPUs of the cluster and who has them",
                          kGpusOptions, Completes::kNodes,     AnyNodes,
                          RunGpus};
const CtlCommand kCtlTop{"top",      "",    "running jobs and how busy their GPUs are", {}, Completes::kNothing,
                         NoOperands, RunTop};

}  // namespace vrun::cli
