// SPDX-License-Identifier: Apache-2.0
// vctl nodes
#include "cli/base/home_connection.h"
#include "cli/ctl/ctl.h"
#include "cli/ctl/job_view.h"

namespace vrun::cli {
namespace {

Result<int> Run(const CtlInvocation& invocation) {
  VRUN_ASSIGN(HomeConnection home, HomeConnection::Make());
  v1::Query query;
  query.mutable_list_nodes();
  VRUN_ASSIGN(v1::HomeMessage answer, Ask(home, query, true));
  if (!answer.has_nodes()) return Error(Code::kInternal, "home: unexpected answer instead of a list of nodes");
  Print(FormatNodes(answer.nodes(), invocation.format, invocation.headers));
  return 0;
}

}  // namespace

const CtlCommand kCtlNodes{"nodes", "", "the nodes of the cluster", {}, Completes::kNothing, NoOperands, Run};

}  // namespace vrun::cli
