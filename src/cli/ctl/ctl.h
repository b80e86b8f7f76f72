// SPDX-License-Identifier: Apache-2.0
// The commands of `vctl`.
#pragma once

#include <span>
#include <string>

#include "base/result.h"
#include "cli/base/command.h"

namespace vrun::cli {

// All of them, in the order of the help text.
std::span<const CtlCommand* const> CtlCommands();

// `vctl` as a whole. `words`: without the program's name.
int CtlMain(std::span<const std::string> words);

// Validators.
Status NoOperands(const CtlInvocation& invocation);
Status OneJob(const CtlInvocation& invocation);
Status SomeJobs(const CtlInvocation& invocation);

// The records, each in a file of its own.
extern const CtlCommand kCtlUp, kCtlDown, kCtlStatus, kCtlDoctor, kCtlNodes, kCtlCache, kCtlSnapshot, kCtlEnv, kCtlJobs,
    kCtlJob, kCtlLogs, kCtlCancel, kCtlWait, kCtlQueue, kCtlWhy, kCtlQuota, kCtlAccounting, kCtlSim, kCtlCompletion,
    kCtlHold, kCtlRelease, kCtlRequeue, kCtlDrain, kCtlResume, kCtlMaintenance, kCtlGpus, kCtlTop, kCtlUser, kCtlNode,
    kCtlLogin, kCtlAdmin, kCtlWhoAmI, kCtlToken, kCtlDashboard;

}  // namespace vrun::cli
