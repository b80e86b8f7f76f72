// SPDX-License-Identifier: Apache-2.0
// Applies the series of a live view (src/vfs/live/data/live_stream.h): its jobs' changes to the root, in order, with a
// short delay.
//
// Like Applier, with these differences:
//   * The last writer wins, as on any shared file system: whatever has the name is replaced or removed, whoever wrote
//     it. Only a thing of another kind (a directory against a file) is put aside as NAME.vrun-JOB, which `notice`
//     reports.
//   * A file may be sent as a patch (v1::Over) against what this series or the given version put there. If home has
//     anything else, the whole file is requested (TakeWantWhole).
//   * What the job wrote to an existing file goes into that file itself, as on any shared file system: processes that
//     have it open see it, and data that others append is not lost. A file that the job created or replaced gets a new
//     inode, whole or not at all.
//   * After a crash of the process, the next one begins after the last applied operation; after a crash of the machine,
//     after the last durable one. So home always has a state that the job once had.
#pragma once

#include <memory>

#include "home/apply/apply.h"
#include "home/apply/apply_journal.h"
#include "home/root/safe_root.h"

namespace vrun::home {

std::unique_ptr<Applier> MakeLiveApplier(ApplyOptions options, SafeRoot root, ApplyJournal journal);

}  // namespace vrun::home
