// SPDX-License-Identifier: Apache-2.0
// For tests: a static program that prints its ids. (busybox drops the rights of a setuid file by itself.)
#include <unistd.h>

#include <cstdio>

int main() {
  std::printf("uid %u euid %u\n", ::getuid(), ::geteuid());
  return 0;
}
