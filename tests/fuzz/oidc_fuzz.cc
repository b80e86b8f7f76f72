// SPDX-License-Identifier: Apache-2.0
// What an identity provider, and strangers in its name, send: the first byte says as what it is read.
#include <cstddef>
#include <cstdint>
#include <string>

#include "oidc/id_token.h"
#include "oidc/provider.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace vrun::oidc;
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data + 1), size - 1);
  const auto line = [](const vrun::Error& error) {
    if (error.message().find('\n') != std::string::npos) __builtin_trap();
  };
  const auto see = [&](const auto& result) {
    if (!result) line(result.error());
  };
  Settings settings;
  settings.issuer = "https://id.example.org";
  settings.client_id = "vrun";
  switch (data[0] % 5) {
    case 0: see(ParseProvider(text, settings.issuer)); break;
    case 1: see(ParseDeviceCode(data[0] & 64 ? 200 : 400, text)); break;
    case 2: see(ParseTokenAnswer(data[0] & 64 ? 200 : 400, text)); break;
    case 3: see(Keys::Parse(text)); break;
    default: {
      static const Keys keys = *Keys::Parse(R"({"keys":[]})");
      const auto who = VerifyIdToken(text, keys, settings, 1'800'000'000);
      if (who) __builtin_trap();  // nobody has signed it
      line(who.error());
    }
  }
  return 0;
}
