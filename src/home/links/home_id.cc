// SPDX-License-Identifier: Apache-2.0
#include "home/links/home_id.h"

#include <sys/random.h>
#include <unistd.h>

#include "base/files.h"
#include "base/hash/digest.h"
#include "base/log.h"

namespace vrun::home {

std::string LoadHomeId(const std::string& state_directory) {
  std::string machine;
  if (auto id = ReadFile("/etc/machine-id", 256)) machine = *id;
  std::string path = state_directory + "/home_id";
  auto seed = ReadFile(path, 256);
  if (!seed || seed->size() != 64) {
    Digest random;
    bool got = ::getrandom(random.bytes.data(), random.bytes.size(), 0) == static_cast<ssize_t>(random.bytes.size());
    seed = random.Hex();
    Status written = got ? WriteFileAtomic(path, *seed, 0600) : Status(Error(Code::kInternal, "no random bytes"));
    if (!written) {
      LogWarning("{}: the home's id is derived from this machine and user", written.error().message());
      seed = "uid " + std::to_string(::geteuid()) + " " + state_directory;
    }
  }
  return Sha256(machine + "\n" + *seed).Hex().substr(0, 32);
}

}  // namespace vrun::home
