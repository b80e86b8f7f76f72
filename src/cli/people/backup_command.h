// SPDX-License-Identifier: Apache-2.0
// `vctl admin backup` and `restore`: execute `vrund`, which has the databases, on this machine's controller.
#pragma once

#include <string_view>

#include "base/result.h"
#include "cli/base/command.h"

namespace vrun::cli {

enum BackupOption { kBackupState, kBackupDatabase, kBackupShared, kBackupAuthority, kBackupReplace, kBackupExact };
inline constexpr OptionSpec kBackupOptions[] = {
    {kBackupAuthority, 0, "with-authority", Argument::kNone, "",
     "backup, restore: also the key of the cluster's authority, which makes certificates. The rest of a backup is "
     "secret too: it has the key of jobs' environments, and who may do what"},
    {kBackupReplace, 0, "replace", Argument::kNone, "", "restore: move the state that is there aside"},
    {kBackupExact, 0, "exact", Argument::kNone, "",
     "restore: nothing has run since the backup, so job numbers go on where they were"},
    {kBackupDatabase, 0, "database", Argument::kRequired, "URL",
     "backup, restore: PostgreSQL, as in `vrund controller --database`; default: the file of --state-dir"},
    {kBackupState, 0, "state-dir", Argument::kRequired, "DIR",
     "backup, restore: as in `vrund controller --state-dir`; default: of this machine's controller",
     Completes::kDirectories},
    {kBackupShared, 0, "shared-dir", Argument::kRequired, "DIR",
     "backup, restore: as in `vrund controller --shared-dir`", Completes::kDirectories},
};

bool IsBackupAction(std::string_view word);  // "backup" or "restore"
Status CheckBackup(const CtlInvocation& invocation);
Result<int> RunBackup(const CtlInvocation& invocation);  // does not return if vrund could be started

}  // namespace vrun::cli
