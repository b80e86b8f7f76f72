// SPDX-License-Identifier: Apache-2.0
// Secrets of a user at home: a file (0600) for each, in a directory (0700) that no job sees. Only their names leave
// this machine before a job starts; values go to its node on the stream of the attempt, and are stored nowhere else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace vrun {

inline constexpr size_t kMostSecretBytes = 512u << 10;
inline constexpr size_t kMostSecretVariableBytes = 96u << 10;  // the kernel allows 128 KiB for one, with its name

// kInvalid: not 1 to 64 letters, digits, "_", "-" and "." with a letter, a digit or "_" in front.
Status CheckSecretName(std::string_view name);
// kInvalid: it cannot be the value of an environment variable.
Status CheckSecretVariable(const std::string& name, std::string_view value);

class SecretStore {
 public:
  // `state_directory`: Places::state_dir. Created by the first Set.
  explicit SecretStore(const std::string& state_directory) : directory_(state_directory + "/secrets") {}

  // Replaces an earlier value at once: a reader has one or the other.
  Status Set(const std::string& name, std::string_view value) const;
  // kNotFound: there is none; the text says how to make it.
  Result<std::string> Get(const std::string& name) const;
  Status Delete(const std::string& name) const;

  struct Entry {
    std::string name;
    uint64_t bytes = 0;
    int64_t changed_us = 0;  // wall clock
  };
  Result<std::vector<Entry>> List() const;  // by name

 private:
  std::string Path(const std::string& name) const { return directory_ + "/" + name; }

  const std::string directory_;
};

}  // namespace vrun
