// SPDX-License-Identifier: Apache-2.0
// Exports a snapshot as an OCI image layout: one layer (tar, zstd), a configuration, a manifest, an index. For users
// who must deliver a container.
#pragma once

#include <functional>

#include "proto/snapshots.pb.h"
#include "snapshots/collection.h"

namespace vrun::snapshots {

// Emits the files of the layout one after the other, in parts. `emit` may block; its error ends the export.
Status ExportLayout(const Collection::Snapshot& snapshot, const home::ContentFiles& files,
                    const std::function<Status(v1::ExportPart)>& emit);

}  // namespace vrun::snapshots
