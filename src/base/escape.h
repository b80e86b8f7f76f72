// SPDX-License-Identifier: Apache-2.0
// Makes bytes from outside safe to show: control characters and invalid UTF-8 become \xNN, so that a file name or a
// job's output can neither move the cursor nor forge a second line.
#pragma once

#include <string>
#include <string_view>

namespace vrun {

std::string Escape(std::string_view bytes);
// As a word of a POSIX shell: quoted only when it needs to be. For showing commands, never for running them.
std::string ShellQuote(std::string_view word);

}  // namespace vrun
