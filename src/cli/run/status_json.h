// SPDX-License-Identifier: Apache-2.0
// --status-json: the result of a run, for programs.
#pragma once

#include <string>

#include "base/result.h"
#include "cli/run/run_session.h"

namespace vrun::cli {

// The text: {schema, job, attempt, state, reason, exit, signal, node, queued_s, ran_s, first_output_s, fetched_bytes,
// root_bytes, root_entries, oom_kills}. first_output_s counts from the start of the program.
std::string FormatStatus(const RunOutcome& outcome);

// `where`: a file, or fd:N. CheckStatusTarget finds errors before anything runs that would otherwise show only at the
// end.
Status CheckStatusTarget(const std::string& where);
Status WriteStatus(const std::string& where, const std::string& text);

}  // namespace vrun::cli
