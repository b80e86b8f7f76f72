// SPDX-License-Identifier: Apache-2.0
#include "people/address.h"

namespace vrun::people {

std::optional<ClusterAddress> ParseClusterAddress(const std::string& text) {
  const size_t slash = text.find('/');
  ClusterAddress address{text.substr(0, slash), slash == std::string::npos ? "" : text.substr(slash + 1)};
  const size_t colon = address.controller.rfind(':');
  if (colon == std::string::npos || colon == 0) return std::nullopt;
  const std::string port = address.controller.substr(colon + 1);
  if (port.empty() || port.size() > 5 || port.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
  const bool digest =
      address.authority.size() == 64 && address.authority.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (slash != std::string::npos && !digest) return std::nullopt;
  return address;
}

}  // namespace vrun::people
