// SPDX-License-Identifier: Apache-2.0
// The files of snapshots for a ContentServer: by version, out of the store. Immutable, so never another version.
#pragma once

#include <fcntl.h>

#include <string_view>

#include "base/escape.h"
#include "base/files.h"
#include "home/content_files.h"
#include "home/digest_cache.h"
#include "snapshots/vault.h"
#include "store/store.h"

namespace vrun::snapshots {

// Any thread. The first open of a file since the process started verifies all of it (about 1 s a GB), or brings all of
// it out of the vault.
class ObjectFiles final : public home::ContentFiles {
 public:
  // None is owned. `vault`: where content is that the store lacks; null: nowhere.
  ObjectFiles(store::Store* store, Vault* vault, const home::DigestCache* ids)
      : store_(store), vault_(vault), ids_(ids) {}

  Result<UniqueFd> OpenVersion(std::string_view path, const tree::FileVersion& version) const override {
    if (version.size == 0) return OpenFile("/dev/null", O_RDONLY);
    const auto id = ids_->Find(version);
    if (!id) {
      return Error(Code::kDenied, Escape(path) +
                                      ": permission denied: your user could not read it when the snapshot "
                                      "was made");
    }
    VRUN_ASSIGN(const std::shared_ptr<store::Object> object, store_->Acquire(*id, version.size));
    auto fd = object->OpenForPassthrough();
    if (fd || fd.error().code() != Code::kNotFound) return fd;
    if (vault_ != nullptr) {
      const Status fetched = vault_->Fetch(*id, version.size);
      if (fetched) return object->OpenForPassthrough();
      if (fetched.error().code() != Code::kNotFound) return fetched.error();
    }
    return Error(Code::kCorrupt, Escape(path) +
                                     ": damaged in the snapshot store: restore its disk, or make the "
                                     "snapshot again");
  }
  Status Check(int, std::string_view, const tree::FileVersion&) const override { return {}; }

 private:
  store::Store* const store_;
  Vault* const vault_;
  const home::DigestCache* const ids_;
};

}  // namespace vrun::snapshots
