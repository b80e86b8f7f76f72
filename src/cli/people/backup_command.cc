// SPDX-License-Identifier: Apache-2.0
#include "cli/people/backup_command.h"

#include <unistd.h>

#include <string>
#include <vector>

#include "base/escape.h"
#include "base/files.h"
#include "cli/base/daemon_process.h"
#include "cli/base/home_connection.h"
#include "cli/people/membership.h"

namespace vrun::cli {
namespace {

// As the units of the package start it.
constexpr char kServiceState[] = "/var/lib/vrun/controller";
constexpr char kServicePki[] = "/etc/vrun/pki";

// Where the controller of this machine is, or was before its state was lost.
ControllerHere StateToRestore(const Places& places) {
  if (Result<ControllerHere> here = FindController(places)) return *std::move(here);
  const bool service = PathExists(kServicePki) && ::access(kServicePki, W_OK) == 0 && !PathExists(places.pki_dir);
  return service ? ControllerHere{kServiceState, kServicePki, {}}
                 : ControllerHere{places.state_dir + "/controller", places.pki_dir, {}};
}

}  // namespace

bool IsBackupAction(std::string_view word) { return word == "backup" || word == "restore"; }

Status CheckBackup(const CtlInvocation& invocation) {
  const std::vector<std::string>& words = invocation.words.operands;
  if (words.size() < 2) return Error(Code::kInvalid, "no file: write " + words[0] + " FILE");
  if (words.size() > 2) return Error(Code::kInvalid, Escape(words[2]) + ": unexpected");
  for (const BackupOption option : {kBackupReplace, kBackupExact}) {
    if (words[0] == "backup" && invocation.Has(option)) {
      return Error(Code::kInvalid, option == kBackupReplace ? "--replace is for restore" : "--exact is for restore");
    }
  }
  return {};
}

Result<int> RunBackup(const CtlInvocation& invocation) {
  const std::string& action = invocation.words.operands[0];
  VRUN_ASSIGN(const HomeConnection home, HomeConnection::Make());
  VRUN_ASSIGN(const std::string program, FindProgram("vrund"));
  std::string state = invocation.Value(kBackupState).value_or("");
  std::string authority = home.places().pki_dir;
  if (state.empty() && action == "backup") {
    VRUN_ASSIGN(const ControllerHere here, FindController(home.places()));
    state = here.state_directory;
    authority = here.pki_directory;
  } else if (state.empty()) {
    const ControllerHere here = StateToRestore(home.places());
    state = here.state_directory;
    authority = here.pki_directory;
  }
  VRUN_ASSIGN(const people::StatePlace place, people::ReadStatePlace(state));
  std::vector<std::string> words{program, action, "--state-dir", state};
  const auto given = [&](const char* option, const std::string& value) {
    if (!value.empty()) words.insert(words.end(), {option, value});
  };
  const std::string database = invocation.Value(kBackupDatabase).value_or(action == "backup" ? place.database : "");
  given("--database", database);
  // A backup is of what the controller uses. A restore goes where its words say, and into PostgreSQL with the people of
  // the controllers that use that database.
  const bool shared = action == "backup" || (!database.empty() && database == place.database);
  given("--shared-dir", invocation.Value(kBackupShared).value_or(shared ? place.shared_directory : ""));
  if (invocation.Has(kBackupAuthority)) given("--authority", authority);
  if (invocation.Has(kBackupReplace)) words.emplace_back("--replace");
  if (invocation.Has(kBackupExact)) words.emplace_back("--exact");
  if (invocation.json()) words.emplace_back("--json");
  words.insert(words.end(), {"--", invocation.words.operands[1]});
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::execv(program.c_str(), argv.data());
  return ErrnoError("start " + Escape(program));
}

}  // namespace vrun::cli
