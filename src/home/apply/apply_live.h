// SPDX-License-Identifier: Apache-2.0
// Applies the series of a live view (src/vfs/live/data/live_stream.h): what its jobs do to the root, in the order in
// which they did it, a moment later.
//
// As Applier says, but for these:
//   * The last writer wins, as on any file system that several machines share: what is there under the name is replaced
//     or removed, whoever wrote it. Only what is of another kind, where a directory meets a file, is put aside under
//     NAME.vrun-JOB, which `notice` tells.
//   * A file may come as what was changed in it (v1::Over) over what this series or the given version put there. Where
//     home has anything else, the whole is asked for (TakeWantWhole).
//   * What the job wrote to a file that home has goes into that file itself, as on any file system that several
//   machines
//     share: whoever has it open goes on with it, and nothing that others append is lost. What the job made anew, or
//     put in another's place, comes as a new inode, whole or not at all.
//   * A process that follows one that died begins after the last operation that one did; a machine that died, after the
//     last that was durable. So home is always as the job once had it.
#pragma once

#include <memory>

#include "home/apply/apply.h"
#include "home/apply/apply_journal.h"
#include "home/root/safe_root.h"

namespace vrun::home {

std::unique_ptr<Applier> MakeLiveApplier(ApplyOptions options, SafeRoot root, ApplyJournal journal);

}  // namespace vrun::home
