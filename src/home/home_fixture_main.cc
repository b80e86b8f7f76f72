// SPDX-License-Identifier: Apache-2.0
// `vrund home` without the rest of vrund, for tests that start and kill it. Arguments: READY_FD.
#include <cstdlib>

#include "home/home.h"

int main(int argc, char** argv) {
  vrun::home::HomeOptions options;
  if (argc > 1) options.ready_fd = std::atoi(argv[1]);
  return vrun::home::HomeMain(options);
}
