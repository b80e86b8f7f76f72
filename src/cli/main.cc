// SPDX-License-Identifier: Apache-2.0
// One program, three names: vrun, vbatch, vctl.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <string>
#include <string_view>
#include <vector>

#include "cli/ctl/ctl.h"
#include "cli/run/command_run.h"

namespace {

// If 0, 1 or 2 is closed, the first file that we open would get that number. Then it would receive our messages, or be
// read as our input.
bool OpenStandardDescriptors() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0 && ::open("/dev/null", fd == 0 ? O_RDONLY : O_WRONLY) != fd)
      return false;  // NOLINT: inherited on purpose
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (!OpenStandardDescriptors()) return 125;
  // If our parent ignores SIGCHLD, every wait for a child of ours would fail.
  ::signal(SIGCHLD, SIG_DFL);
  std::string_view name = argc > 0 ? argv[0] : "vrun";
  name = name.substr(name.rfind('/') + 1);
  std::vector<std::string> words(argv + (argc > 0 ? 1 : 0), argv + argc);
  if (name == "vbatch") return vrun::cli::BatchMain(words);
  if (name == "vctl") return vrun::cli::CtlMain(words);
  return vrun::cli::RunMain(words);
}
