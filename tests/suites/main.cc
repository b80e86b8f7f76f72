// SPDX-License-Identifier: Apache-2.0
// Usage:
// fs_suites posix DIRECTORY [ONLY]                         prints each case's line; ONLY: cases whose name contains it
// fs_suites fsx DIRECTORY SEED OPERATIONS [-v]             random work on one file, compared with memory
// fs_suites churn DIRECTORY SEED OPERATIONS PROCESSES [-v]  random work on a tree; prints a checksum per process
// DIRECTORY must be empty; the files left in it are part of the result. Static, so that it runs in any root.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "suite.h"

int main(int argc, char** argv) {
  using namespace vrun::suites;
  const bool verbose = argc > 1 && strcmp(argv[argc - 1], "-v") == 0;
  if (verbose) argc--;
  const std::string_view command = argc > 2 ? argv[1] : "";
  if (argc == 2 && strcmp(argv[1], "wait") == 0)
    return getchar() == EOF ? 0 : 1;  // a program that runs until its input ends
  if (command == "posix" && argc <= 4) return RunPosix(argv[2], argc == 4 ? argv[3] : "");
  if (command == "fsx" && argc == 5) return RunFsx(argv[2], strtoull(argv[3], nullptr, 10), atoi(argv[4]), verbose);
  if (command == "churn" && argc == 6) {
    return RunChurn(argv[2], strtoull(argv[3], nullptr, 10), atoi(argv[4]), atoi(argv[5]), verbose);
  }
  fprintf(stderr, "usage: fs_suites posix|fsx|churn DIRECTORY ...\n");
  return 2;
}
