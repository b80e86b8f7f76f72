// SPDX-License-Identifier: Apache-2.0
// `vrund home` without the rest of vrund, for tests that start and kill it. Arguments: READY_FD.
#include <sys/prctl.h>

#include <csignal>
#include <cstdlib>

#include "home/home.h"

int main(int argc, char** argv) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // a test that crashes leaves no daemon behind
  vrun::home::HomeOptions options;
  if (argc > 1) options.ready_fd = std::atoi(argv[1]);
  return vrun::home::HomeMain(options);
}
