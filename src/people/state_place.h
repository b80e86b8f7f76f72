// SPDX-License-Identifier: Apache-2.0
// What a controller keeps outside of its state directory, noted there in the file `place`: so whoever works on this
// machine for it (`vctl user`, `vctl token`, `vctl admin`) finds the same people and the same database. Any thread.
#pragma once

#include <string>

#include "base/result.h"

namespace vrun::people {

struct StatePlace {
  std::string shared_directory;  // `people` and keys are here
  std::string database;          // as libpq names it; "": vrun.db in the state directory
};

// Writes the note, mode 0600; removes it when all is in the state directory. A path that is relative is made absolute.
[[nodiscard]] Status SaveStatePlace(const std::string& state_directory, StatePlace place);

// Without a note all is in the state directory. An error: there is a note that this process may not read.
[[nodiscard]] Result<StatePlace> ReadStatePlace(const std::string& state_directory);

}  // namespace vrun::people
