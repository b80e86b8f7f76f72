// SPDX-License-Identifier: Apache-2.0
// Signatures of webhooks as of Standard Webhooks 1.0 (standardwebhooks.com): HMAC-SHA256 over id, time and body. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace vrun::control::notify {

std::string ToBase64(std::string_view bytes);

// "whsec_BASE64", with or without the beginning and white space around it: the key. kInvalid: it is none, or has less
// than 16 bytes. The error never has the text.
Result<std::string> ParseSecret(std::string_view text);
// The value of the header webhook-signature: "v1,BASE64". `at_s`: of the header webhook-timestamp.
std::string Sign(const std::string& key, const std::string& id, int64_t at_s, std::string_view body);

}  // namespace vrun::control::notify
