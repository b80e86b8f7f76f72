// SPDX-License-Identifier: Apache-2.0
#include "home/runs/command/job_environment.h"

#include <algorithm>
#include <string_view>

namespace vrun::home {
namespace {

enum class Value {
  kCpus,   // the number of processors that the job sees
  kCache,  // a directory of that name in the user's cache directory
};

struct Default {
  std::string_view name;
  Value value;
  std::string_view directory;
  std::string_view unless;  // not set either if this variable is set
};

// Threads: MKL, OpenBLAS, BLIS and numexpr read OMP_NUM_THREADS if their own variable is not set. Theirs are not set
// here, because they would override an OMP_NUM_THREADS that a program sets itself. Python before 3.13 does not know
// PYTHON_CPU_COUNT. Programs that use the affinity (nproc, GNU OpenMP, Go, Rust) need no variable.
//
// Caches: for programs that by default store expensive results or downloads below /tmp, which is private to a job and
// removed with it. Programs whose default is in the home directory or beside the program (Triton, Numba, CuPy,
// matplotlib, torch extensions, Hugging Face), or that store nothing by default (JAX), are not listed: they behave as
// at home.
constexpr Default kDefaults[] = {
    {"OMP_NUM_THREADS", Value::kCpus, "", ""},
    {"PYTHON_CPU_COUNT", Value::kCpus, "", ""},
    {"TORCHINDUCTOR_CACHE_DIR", Value::kCache, "torchinductor", ""},
    {"CUTE_DSL_CACHE_DIR", Value::kCache, "cutlass_python_cache", ""},
    {"TFHUB_CACHE_DIR", Value::kCache, "tfhub_modules", ""},
    {"TIKTOKEN_CACHE_DIR", Value::kCache, "data-gym-cache", "DATA_GYM_CACHE_DIR"},
};

bool IsSet(const v1::Command& command, std::string_view name) {
  if (name.empty()) return false;
  return std::any_of(command.environment().begin(), command.environment().end(), [&](const std::string& entry) {
    return entry.size() > name.size() && entry.starts_with(name) && entry[name.size()] == '=';
  });
}

// As the node assigns them: a fraction is rounded up, and a job that requests none gets one (control/ops/submit.cc).
uint32_t CpusOf(const v1::Resources& resources) {
  return std::max<uint32_t>(resources.milli_cpus() / 1000 + (resources.milli_cpus() % 1000 != 0 ? 1 : 0), 1);
}

}  // namespace

void AddDefaultVariables(const v1::Resources& resources, const std::string& cache, v1::Command* command) {
  for (const Default& d : kDefaults) {
    if (IsSet(*command, d.name) || IsSet(*command, d.unless)) continue;
    if (d.value == Value::kCache && cache.empty()) continue;
    const std::string value = d.value == Value::kCpus ? std::to_string(CpusOf(resources))
                                                      : (cache == "/" ? "" : cache) + "/" + std::string(d.directory);
    command->add_environment(std::string(d.name) + "=" + value);
  }
}

}  // namespace vrun::home
