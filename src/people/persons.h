// SPDX-License-Identifier: Apache-2.0
// Whoever has logged in by an identity provider, and his groups there. Each is a file of the controller, persons/USER,
// beside those of people/members.h.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/thread/mutex.h"
#include "proto/sign_in.pb.h"

namespace vrun::people {

// Any thread; one process.
class Persons {
 public:
  // Reads what is there. `directory`: as of Members.
  explicit Persons(const std::string& directory);

  // `user`: the part of a certificate's name before the @.
  std::optional<v1::Person> Find(const std::string& user) const;
  // `name`: in a certificate. True only on a machine on which this person has logged in.
  bool InGroup(const std::string& name, const std::string& group) const;
  // Notes that he has logged in on this machine. kDenied: the name belongs to another account.
  Status LogIn(const v1::Person& person, const std::string& machine);

 private:
  const std::string directory_;
  mutable Mutex mutex_;
  std::map<std::string, v1::Person> persons_ VRUN_GUARDED_BY(mutex_);
};

}  // namespace vrun::people
