// SPDX-License-Identifier: Apache-2.0
// Who may use the cluster of this machine's controller.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/result.h"
#include "people/members.h"
#include "people/state_place.h"
#include "proto/people.pb.h"

namespace vrun::cli {

// The controller of this machine whose files this user may write, started by `vctl up` or as a service of the system.
// kNotFound: there is none.
struct ControllerHere {
  std::string state_directory, pki_directory;
  people::StatePlace place;
  std::string people_directory() const { return place.shared_directory + "/people"; }
  people::Members members() const { return people::Members(people_directory()); }
};
Result<ControllerHere> FindController(const Places& places);

// For whom a token of the HTTP API is: `given`, or else the home of this user.
Result<std::string> TokenUser(const std::optional<std::string>& given, const Places& places);

struct Invited {
  people::Token token;
  bool here_only = false;  // the controller listens on the loopback only
};
// `controller`: the HOST:PORT that others dial; "": as it listens, with the first address of this machine if that is
// all of them.
// Also the address that people log in at (people/address.h).
Result<std::string> AddressOf(const Places& places, const std::string& controller);
Result<Invited> Invite(const Places& places, v1::Invitation invitation, const std::string& controller);

}  // namespace vrun::cli
