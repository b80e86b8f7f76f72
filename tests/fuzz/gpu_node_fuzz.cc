// SPDX-License-Identifier: Apache-2.0
// What the agent reads of the kernel and the driver about GPUs. The first byte selects the parser.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "gpu/amd.h"
#include "gpu/gpu_names.h"
#include "gpu/health.h"
#include "gpu/mig.h"

namespace vrun::gpu {
namespace {

void Log(std::string_view bytes) {
  const auto line = ParseXidLine(bytes);
  if (!line) return;
  VRUN_CHECK(line->pci.size() <= 32);
  (void)SamePci(line->pci, std::string(bytes));
  (void)XidText(line->number);
}

void Names(std::string_view bytes) {
  const std::string type = GpuType(bytes);
  VRUN_CHECK(!type.empty() && type.size() <= 40);
  for (const char c : type) VRUN_CHECK((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-');
  VRUN_CHECK(MigModel(bytes).size() < 40);
}

}  // namespace
}  // namespace vrun::gpu

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace vrun::gpu;  // NOLINT
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0]) {
    case 'x': Log(bytes); break;
    case 'n': Names(bytes); break;
    case 'm': (void)MigMinor(bytes, "gpu0/gi1/access"); break;
    default: (void)KfdProperty(bytes, "simd_count"); break;
  }
  return 0;
}
