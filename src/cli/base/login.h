// SPDX-License-Identifier: Apache-2.0
// This user's runs go to a cluster from now on: by a token, or through the door of a cluster of this machine.
#pragma once

#include <optional>
#include <string>

#include "base/config.h"
#include "base/result.h"

namespace vrun::cli {

struct LoggedIn {
  std::string controller;
  std::string name;  // USER@HOST
};
// `machine`: its name in the cluster; "": its host name. kExists: this user's runs go to another cluster.
Result<LoggedIn> LogIn(const Places& places, const std::string& token, const std::string& machine);
// The same by the identity provider of the cluster at this address (people/address.h). Shows on stderr what the person
// has to do, and waits for it.
Result<LoggedIn> LogInByProvider(const Places& places, const std::string& address, const std::string& machine);

// The socket at which the controller of this machine gives tokens (control/door.h): $VRUN_DOOR, else that of the system
// unless VRUN_DIR chooses a place apart. "": none.
std::string DoorPath();
// For a user without a cluster. nullopt: this machine has no door that can be trusted, which is one that root opened.
Result<std::optional<LoggedIn>> LogInHere(const Places& places);

}  // namespace vrun::cli
