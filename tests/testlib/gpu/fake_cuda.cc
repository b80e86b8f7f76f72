// SPDX-License-Identifier: Apache-2.0
// A libcuda.so.1 that only finds out which devices may be opened, and answers as the real one does then (decision 32).
// The fakes have no driver behind them: a node that the pod's filter allows gives ENXIO, another EPERM, a missing one
// ENOENT.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>

#define FAKE_EXPORT extern "C" __attribute__((visibility("default")))

static int usable(const char* path) {
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd >= 0) close(fd);
  return fd >= 0 || errno == ENXIO || errno == ENODEV;
}

static int count() {
  int n = 0;
  for (int i = 0; i < 32; ++i) {
    char path[32];
    snprintf(path, sizeof path, "/dev/nvidia%d", i);
    n += usable(path);
  }
  return n;
}

FAKE_EXPORT int cuInit(unsigned) {
  if (!usable("/dev/nvidiactl") || count() == 0) return 100;  // CUDA_ERROR_NO_DEVICE
  if (!usable("/dev/nvidia-uvm")) return 999;                 // CUDA_ERROR_UNKNOWN
  if (const char* pipe = getenv("CUDA_MPS_PIPE_DIRECTORY")) {
    char path[4096];
    snprintf(path, sizeof path, "%s/control", pipe);
    if (access(path, F_OK) != 0) return 805;  // CUDA_ERROR_MPS_CONNECTION_FAILED
  }
  return 0;
}
FAKE_EXPORT int cuDeviceGetCount(int* to) {
  *to = count();
  return 0;
}
FAKE_EXPORT int cuDriverGetVersion(int* to) {
  *to = 13000;
  return 0;
}
