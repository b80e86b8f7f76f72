// SPDX-License-Identifier: Apache-2.0
#include "home/runs/job_roots.h"

#include "home/frozen/tree_restore.h"

namespace vrun::home {

void JobRoots::AddTo(ApplyOptions* options, const tree::TreePtr& tree) const {
  options->rules = [table = table_] { return table->rules(); };
  options->judge = judge_;
  options->grew = [frozen = frozen_](const struct stat& before, const struct stat& after) {
    frozen->Grew(before, after);
  };
  if (!tree) return;
  options->restore = [tree, files = files_](const std::string& path, int directory, const std::string& name,
                                            const auto& made) {
    return RestoreFromTree(*tree, *files, path, directory, name, made);
  };
}

}  // namespace vrun::home
