// SPDX-License-Identifier: Apache-2.0
#include "gpu/testing/fake_driver.h"

#include <unistd.h>

#include <filesystem>

#include "base/files.h"
#include "gpu/testing/execute.h"

namespace vrun::gpu {
namespace {

Status Compile(std::vector<std::string> command) {
  const Result<std::string> output = RunHere(command);
  return output ? Status() : Status(output.error());
}

Status Copy(const std::string& from, const std::string& to) {
  VRUN_TRY(MakeDirs(to.substr(0, to.rfind('/')), 0755));
  std::error_code error;
  std::filesystem::copy_file(from, to, std::filesystem::copy_options::overwrite_existing, error);
  return error ? Status(Error(Code::kInternal, "copy " + from + ": " + error.message())) : Status();
}

Status Link(const std::string& target, const std::string& path) {
  VRUN_TRY(MakeDirs(path.substr(0, path.rfind('/')), 0755));
  return ::symlink(target.c_str(), path.c_str()) == 0 ? Status() : Status(ErrnoError("symlink " + path));
}

}  // namespace

Status MakeFakeLibrary(const TestDirectory& scratch, const std::string& path, const std::string& soname,
                       const std::string& version) {
  const std::string source =
      scratch.Write("library.c", "const char *driver_version(void) { return \"" + version + "\"; }\n");
  VRUN_TRY(MakeDirs(path.substr(0, path.rfind('/')), 0755));
  return Compile({"cc", "-shared", "-fPIC", "-nostdlib", "-Wl,-soname," + soname, "-o", path, source});
}

Status MakeFakeDriver(const TestDirectory& scratch, const std::string& directory, const std::string& version) {
  struct Library {
    const char* name;
    const char* number;
  };
  constexpr Library kLibraries[] = {
      {"libcuda", "1"}, {"libnvidia-ml", "1"}, {"libnvidia-opencl", "1"}, {"libEGL_nvidia", "0"}};
  for (const Library& library : kLibraries) {
    const std::string file = std::string(library.name) + ".so." + version;
    const std::string soname = std::string(library.name) + ".so." + library.number;
    VRUN_TRY(MakeFakeLibrary(scratch, directory + "/" + file, soname, version));
    VRUN_TRY(Link(file, directory + "/" + soname));
  }
  return {};
}

Status MakeProbe(const TestDirectory& scratch, const std::string& path, const std::string& compiler,
                 const std::vector<std::string>& options) {
  const std::string source = scratch.Write("probe.c", R"(
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv) {
  for (int i = 1; i < argc; ++i) {
    void *library = dlopen(argv[i], RTLD_NOW);
    const char *(*version)(void) = library ? (const char *(*)(void))dlsym(library, "driver_version") : 0;
    printf("%s\n", version ? version() : dlerror());
  }
  return 0;
}
)");
  VRUN_TRY(MakeDirs(path.substr(0, path.rfind('/')), 0755));
  std::vector<std::string> command = {compiler, "-o", path, source};
  command.insert(command.end(), options.begin(), options.end());
  return Compile(command);
}

Status MakeEmptyRoot(const std::string& root) {
  for (const char* directory : {"/run", "/dev", "/proc", "/etc", "/bin"}) VRUN_TRY(MakeDirs(root + directory, 0755));
  return {};
}

Status MakeGlibcRoot(const TestDirectory& scratch, const std::string& root) {
  VRUN_TRY(MakeEmptyRoot(root));
  VRUN_TRY(MakeDirs(root + "/proc/driver/nvidia/gpus/0000:99:00.0", 0755));
  VRUN_TRY(WriteFileAtomic(root + "/proc/driver/nvidia/params", "ModifyDeviceFiles: 1\n", 0444));
  VRUN_TRY(MakeProbe(scratch, root + "/bin/probe"));
#if defined(__x86_64__)
  VRUN_TRY(Copy("/lib64/ld-linux-x86-64.so.2", root + "/lib64/ld-linux-x86-64.so.2"));
  const std::string libraries = "/usr/lib/x86_64-linux-gnu";
#else
  VRUN_TRY(Copy("/lib/ld-linux-aarch64.so.1", root + "/lib/ld-linux-aarch64.so.1"));
  const std::string libraries = "/usr/lib/aarch64-linux-gnu";
#endif
  return Copy(libraries + "/libc.so.6", root + libraries + "/libc.so.6");
}

}  // namespace vrun::gpu
