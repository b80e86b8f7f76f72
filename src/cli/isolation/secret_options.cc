// SPDX-License-Identifier: Apache-2.0
#include "cli/isolation/secret_options.h"

#include <algorithm>
#include <cctype>
#include <string_view>

#include "base/config.h"
#include "base/escape.h"
#include "base/secrets/secret_store.h"

namespace vrun::cli {
namespace {

constexpr int kMostSecrets = 64;
constexpr std::string_view kRun = "/run/";
constexpr size_t kMostPath = 200;

bool IsVariable(std::string_view text) {
  const auto letter = [](char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_'; };
  return !text.empty() && letter(text[0]) && std::all_of(text.begin(), text.end(), [&](char c) {
    return letter(c) || std::isdigit(static_cast<unsigned char>(c)) != 0;
  });
}

// Absolute and below /run, without ".", ".." and empty parts.
bool IsCleanRunPath(std::string_view path) {
  if (!path.starts_with(kRun) || path.size() > kMostPath) return false;
  for (std::string_view rest = path.substr(kRun.size() - 1); !rest.empty();) {
    rest.remove_prefix(1);
    const std::string_view part = rest.substr(0, rest.find('/'));
    if (part.empty() || part == "." || part == "..") return false;
    rest.remove_prefix(part.size());
  }
  return std::all_of(path.begin(), path.end(), [](char c) { return c > ' ' && c < 0x7f; });
}

}  // namespace

Status ParseSecret(const std::string& value, v1::RunSpec* out) {
  const size_t equal = value.find('=');
  const std::string name = value.substr(0, equal);
  VRUN_TRY(CheckSecretName(name));
  v1::SecretUse use;
  use.set_name(name);
  const std::string where = equal == std::string::npos ? "/run/secrets/" + name : value.substr(equal + 1);
  if (IsVariable(where)) {
    use.set_variable(where);
  } else if (!where.starts_with('/')) {
    return Error(Code::kInvalid,
                 Escape(value) + ": neither a variable nor a path: write NAME, NAME=VARIABLE or NAME=/run/FILE");
  } else if (!IsCleanRunPath(where) || where.starts_with("/run/vrun/")) {
    return Error(Code::kInvalid,
                 Escape(where) + ": a secret's file is below /run, which no disk has: write /run/secrets/" + name);
  } else {
    use.set_path(where);
  }
  for (const v1::SecretUse& other : out->secrets()) {
    const bool same = (!use.path().empty() && use.path() == other.path()) ||
                      (!use.variable().empty() && use.variable() == other.variable());
    if (same && other.name() == use.name()) return {};
    if (same) return Error(Code::kInvalid, Escape(where) + ": two secrets cannot be in one place");
  }
  if (out->secrets_size() >= kMostSecrets) return Error(Code::kInvalid, "more than 64 secrets");
  *out->add_secrets() = std::move(use);
  return {};
}

Status CheckSecretsAreHere(const v1::RunSpec& spec) {
  if (spec.secrets().empty()) return {};
  if (spec.away()) {
    return Error(Code::kInvalid,
                 "--away with --secret: a secret comes from this machine when the job starts: leave one out");
  }
  VRUN_ASSIGN(const Places places, FindPlaces());
  const SecretStore store(places.state_dir);
  for (const v1::SecretUse& use : spec.secrets()) {
    VRUN_ASSIGN(const std::string value, store.Get(use.name()));
    if (!use.variable().empty()) VRUN_TRY(CheckSecretVariable(use.name(), value));
  }
  return {};
}

std::string SecretText(const v1::SecretUse& use) {
  return Escape(use.name()) + " (" + Escape(use.variable().empty() ? use.path() : use.variable()) + ")";
}

}  // namespace vrun::cli
