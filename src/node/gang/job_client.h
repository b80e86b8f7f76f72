// SPDX-License-Identifier: Apache-2.0
// The programs inside a sandbox that speak with its supervisor on the job's socket (node/gang/job_socket.h):
//
//   /run/vrun/notify KEY=VALUE...             sends lines, and prints the answers
//   /run/vrun/rsh [OPTION...] POD COMMAND...  runs a shell command in another pod of the job, as `ssh HOST COMMAND`
//                                             does: the agent of mpirun. Its output is that pod's.
#pragma once

namespace vrun::node {

// Whether the program was called by one of these names.
bool IsJobClient(const char* argv0);
int JobClientMain(int argc, char** argv);

}  // namespace vrun::node
