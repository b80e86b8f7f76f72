// SPDX-License-Identifier: Apache-2.0
// Requests of jobs as they lie in a database: sealed (base/secrets/seal.h), because environments and commands have
// passwords and tokens. When a job has ended, nothing of its environment is left.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/secrets/seal.h"

namespace vrun::control {

class SealedSpecs {
 public:
  // The key is in a file. `needed`: there are sealed requests, so a missing key is an error.
  static Result<SealedSpecs> Open(const std::string& key_file, bool needed);

  // The beginning of all sealed ones. No serialized message begins with it.
  static constexpr std::string_view kMagic{"\0vs1", 4};

  // `owner`: whose it is, so that nobody gets another's by moving rows. "" stays "".
  std::string Seal(std::string_view spec, std::string_view owner) const;
  // One that an earlier version has stored is returned as it is.
  Result<std::string> Open(std::string_view stored, std::string_view owner) const;

 private:
  explicit SealedSpecs(SealKey key) : key_(std::move(key)) {}
  SealKey key_;
};

// A serialized SubmitRequest without what only a running job needs: environment and script. nullopt: it has neither.
std::optional<std::string> WithoutEnvironment(const std::string& spec);

}  // namespace vrun::control
