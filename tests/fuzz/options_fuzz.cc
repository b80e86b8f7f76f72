// SPDX-License-Identifier: Apache-2.0
// Any batch script, command line or configuration is parsed, or refused with one line.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "cli/base/daemon_process.h"
#include "cli/base/values.h"
#include "cli/host/local_cluster.h"
#include "cli/request/job_command.h"
#include "cli/request/run_options.h"
#include "cli/request/script_options.h"

namespace {

void OneLine(const std::string& message) {
  if (message.empty() || message.find('\n') != std::string::npos || message.find('\x1b') != std::string::npos)
    std::abort();
}

template <typename T>
void Check(const vrun::Result<T>& result) {
  if (!result) OneLine(result.error().message());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  auto script = vrun::cli::ParseScript(text, "job.sh");
  Check(script);
  if (script) {
    vrun::cli::RunOptions options;
    Check(vrun::cli::ApplyOptions(script->options, &options));
  }
  // The same bytes as words, separated by zero bytes as for execve.
  std::vector<std::string> words;
  for (size_t from = 0; from <= text.size();) {
    size_t end = std::min(text.find('\0', from), text.size());
    words.emplace_back(text.substr(from, end - from));
    from = end + 1;
  }
  auto run = vrun::cli::ParseRun(words);
  Check(run);
  if (run) (void)vrun::cli::FilterEnvironment(words, *run, "/");
  Check(vrun::cli::ParseBatch(words));
  for (const std::string& word : words) {
    Check(vrun::cli::ParseMemory(word));
    Check(vrun::cli::ParseTimeLimit(word));
    Check(vrun::cli::ParseGpus(word));
    Check(vrun::ParseHostPort(word));
    std::string absolute = vrun::cli::Absolute(word, "/d");
    if (absolute.empty() || absolute[0] != '/') std::abort();
  }
  Check(vrun::ParseConfig(text, "config.toml"));
  (void)vrun::cli::FindUser(1000, text, [](const char*) -> const char* { return nullptr; });
  (void)vrun::cli::MountsBelow(text, "/a");
  (void)vrun::cli::ParseStartTime(text);
  return 0;
}
