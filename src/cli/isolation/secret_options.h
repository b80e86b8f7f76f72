// SPDX-License-Identifier: Apache-2.0
// What a job gets of the user's secrets (base/secrets/secret_store.h).
#pragma once

#include <string>

#include "base/result.h"
#include "proto/common.pb.h"

namespace vrun::cli {

// Adds "NAME" (a file /run/secrets/NAME), "NAME=VARIABLE" or "NAME=/run/FILE".
Status ParseSecret(const std::string& value, v1::RunSpec* out);

// The secrets are stored here, and can be what the job wants of them.
Status CheckSecretsAreHere(const v1::RunSpec& spec);

// "token (/run/secrets/token)", for people.
std::string SecretText(const v1::SecretUse& use);

}  // namespace vrun::cli
