// SPDX-License-Identifier: Apache-2.0
#include "home/runs/command/job_environment.h"

#include <algorithm>
#include <string_view>

namespace vrun::home {
namespace {

enum class Value {
  kCpus,   // how many processors the job sees
  kCache,  // a directory of that name in the user's cache directory
};

struct Default {
  std::string_view name;
  Value value;
  std::string_view directory;
  std::string_view unless;  // also left alone where this one is set
};

// Threads: MKL, OpenBLAS, BLIS and numexpr read OMP_NUM_THREADS where their own variable is not set. Theirs are not set
// here, because they would win over an OMP_NUM_THREADS that a program sets for itself. Python before 3.13 knows no
// PYTHON_CPU_COUNT; whoever asks for the affinity (nproc, GNU OpenMP, Go, Rust) needs no variable.
//
// Caches: programs that keep what took long to make, or to fetch, below /tmp, which a job has for itself and which is
// gone with it. Not here are those whose default is in the home directory or beside the program (Triton, Numba, CuPy,
// matplotlib, torch extensions, Hugging Face), and those that keep nothing unless told to (JAX): they do as they do at
// home.
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

// As the node gives them: a fraction is one more, and who asks for none is given one (control/ops/submit.cc).
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
