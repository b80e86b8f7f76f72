// SPDX-License-Identifier: Apache-2.0
// Roots and drivers for tests, of real shared libraries that the compiler makes. A library of such a driver needs no
// libc, so that every loader can load it, and has one function: driver_version.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "gpu/testing/test_directory.h"

namespace vrun::gpu {

// A driver of `version` at `directory`, an absolute path: libcuda, libnvidia-ml, libnvidia-opencl, libEGL_nvidia, with
// SONAME links as a package has them.
Status MakeFakeDriver(const TestDirectory& scratch, const std::string& directory, const std::string& version);
// A library with this SONAME that answers with `version`.
Status MakeFakeLibrary(const TestDirectory& scratch, const std::string& path, const std::string& soname,
                       const std::string& version);
// A program that opens argv[1] and prints its driver_version, or why it cannot. `options`: of the compiler.
Status MakeProbe(const TestDirectory& scratch, const std::string& path, const std::string& compiler = "cc",
                 const std::vector<std::string>& options = {});
// A root with the host's glibc and /bin/probe, /run, /dev, /etc, and /proc/driver/nvidia as the kernel would show it.
Status MakeGlibcRoot(const TestDirectory& scratch, const std::string& root);
// Only the directories that every sandbox needs.
Status MakeEmptyRoot(const std::string& root);

}  // namespace vrun::gpu
