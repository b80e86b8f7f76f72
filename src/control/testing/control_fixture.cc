// SPDX-License-Identifier: Apache-2.0
// A controller in its own process, for tests that kill it: control_fixture STATE_DIR PKI_DIR READY_FD.
#include <cstdlib>

#include "control/controller.h"

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  vrun::control::ControllerOptions options;
  options.state_directory = argv[1];
  options.pki_directory = argv[2];
  options.ready_fd = std::atoi(argv[3]);
  return vrun::control::ControllerMain(options);
}
