// SPDX-License-Identifier: Apache-2.0
// What is read of a job's root and of the node for the injection of a GPU driver. The first byte selects the parser.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/files.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "gpu/inject/cdi.h"
#include "gpu/inject/elf_soname.h"
#include "gpu/inject/injection.h"
#include "gpu/inject/ld_cache.h"

namespace vrun::gpu {
namespace {

void Cache(std::string_view bytes) {
  Result<LdCache> cache = ParseLdCache(bytes);
  if (!cache) return;
  SetLdCacheEntry(&*cache, "libcuda.so.1", "/run/vrun/nvidia/lib64/libcuda.so.1");
  const std::string ours = FormatLdCache(*cache);
  // What we write is read back, and stays as it is when written again.
  const Result<LdCache> again = ParseLdCache(ours);
  VRUN_CHECK(ours.size() > kMostLdCacheBytes || again.has_value());
  if (!again) return;
  VRUN_CHECK(again->entries.size() == cache->entries.size());
  VRUN_CHECK(FormatLdCache(*again) == ours);
}

void Elf(std::string_view bytes) {
  const UniqueFd file(::memfd_create("elf", MFD_CLOEXEC));
  VRUN_CHECK(file && WriteAll(file.get(), bytes).has_value());
  const auto name = ElfSoname(file.get());
  VRUN_CHECK(!name || name->size() <= 255);
}

void Cdi(std::string_view bytes) {
  const Result<CdiSpec> spec = ParseCdi(bytes);
  if (!spec) return;
  std::vector<std::string> skipped;
  for (const CdiDevice& device : spec->devices) {
    const auto injection = CdiInjection({*spec}, spec->kind + "=" + device.name, &skipped);
    if (!injection) continue;
    for (const auto& link : injection->links()) VRUN_CHECK(link.path().starts_with("/run/"));
  }
  (void)CdiDriverDirectories({*spec});
}

void Texts(std::string_view bytes) {
  (void)ParseDeviceMajors(bytes);
  (void)KernelDriverVersion(bytes);
  const std::string text(bytes);
  VRUN_CHECK(MuslDirectories(MuslPathWith(text, "/ours")).front() == "/ours");
}

}  // namespace
}  // namespace vrun::gpu

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 4) {
    case 0: vrun::gpu::Cache(rest); break;
    case 1: vrun::gpu::Elf(rest); break;
    case 2: vrun::gpu::Cdi(rest); break;
    default: vrun::gpu::Texts(rest);
  }
  return 0;
}
