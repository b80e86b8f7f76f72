// SPDX-License-Identifier: Apache-2.0
// Makes untrusted bytes safe to print: control characters and invalid UTF-8 become \xNN, so a file name or a job's
// output cannot move the cursor or forge a second line.
#pragma once

#include <string>
#include <string_view>

namespace vrun {

std::string Escape(std::string_view bytes);
// As a word of a POSIX shell, quoted only if needed. For showing commands, never for running them.
std::string ShellQuote(std::string_view word);

}  // namespace vrun
