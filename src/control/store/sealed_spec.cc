// SPDX-License-Identifier: Apache-2.0
#include "control/store/sealed_spec.h"

#include "proto/control.pb.h"

namespace vrun::control {

Result<SealedSpecs> SealedSpecs::Open(const std::string& key_file, bool needed) {
  Result<SealKey> key = SealKey::Read(key_file);
  if (!key && key.error().code() == Code::kNotFound) {
    if (needed) {
      return std::move(key).error().With(
          "the requests of jobs are sealed with a key that is lost: restore it from a "
          "backup, or remove the database");
    }
    key = SealKey::Create(key_file);
  }
  if (!key) return std::move(key).error();
  return SealedSpecs(*std::move(key));
}

std::string SealedSpecs::Seal(std::string_view spec, std::string_view owner) const {
  if (spec.empty()) return "";
  return std::string(kMagic) + key_.Seal(spec, owner);
}

Result<std::string> SealedSpecs::Open(std::string_view stored, std::string_view owner) const {
  if (!stored.starts_with(kMagic)) return std::string(stored);
  return key_.Open(stored.substr(kMagic.size()), owner);
}

std::optional<std::string> WithoutEnvironment(const std::string& spec) {
  v1::SubmitRequest request;
  if (spec.empty() || !request.ParseFromString(spec)) return std::nullopt;
  const v1::Command& command = request.spec().command();
  if (command.environment_size() == 0 && command.script().empty()) return std::nullopt;
  request.mutable_spec()->mutable_command()->clear_environment();
  request.mutable_spec()->mutable_command()->clear_script();
  return request.SerializeAsString();
}

}  // namespace vrun::control
