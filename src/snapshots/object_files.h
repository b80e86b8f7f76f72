// SPDX-License-Identifier: Apache-2.0
// Files of snapshots for a ContentServer: looks up the version and reads the store. Content is immutable, so a version
// never changes.
#pragma once

#include <fcntl.h>

#include <string_view>

#include "base/escape.h"
#include "base/files.h"
#include "home/pack/digest_cache.h"
#include "home/root/content_files.h"
#include "snapshots/vault.h"
#include "store/store.h"

namespace vrun::snapshots {

// Any thread. A file is verified when it is first opened after a restart (about 1 s per GB), or fetched from the vault
// first.
class ObjectFiles final : public home::ContentFiles {
 public:
  // Owns none of them. `vault`: the source of content missing in the store; null: none.
  ObjectFiles(store::Store* store, Vault* vault, const home::DigestCache* ids)
      : store_(store), vault_(vault), ids_(ids) {}

  Result<UniqueFd> OpenPart(std::string_view path, const tree::FileVersion& version, uint64_t offset,
                            uint64_t length) const override {
    if (version.size == 0 || length == 0) return OpenFile("/dev/null", O_RDONLY);
    // Fetched content may have been evicted again for another caller.
    for (int turn = 0; turn < kTurns; ++turn) {
      VRUN_ASSIGN(std::shared_ptr<store::Object> object, Find(path, version));
      auto fd = object->OpenPart(offset, length);
      if (fd || fd.error().code() != Code::kNotFound) return fd;
      if (vault_ == nullptr) break;
      const store::ObjectId id = object->id();
      object.reset();
      const Status fetched = vault_->Fetch(id, version.size, offset, length);
      if (!fetched && fetched.error().code() == Code::kNotFound) break;
      if (!fetched) return fetched.error();
    }
    return Error(Code::kCorrupt, Escape(path) +
                                     ": damaged in the snapshot store: restore its disk, or make the "
                                     "snapshot again");
  }
  Result<UniqueFd> OpenAtHand(std::string_view path, const tree::FileVersion& version) const override {
    VRUN_ASSIGN(const std::shared_ptr<store::Object> object, Find(path, version));
    if (!object->complete()) return Error(Code::kUnavailable, Escape(path) + ": not on the snapshot store's disk");
    return object->OpenPart(0, 0);
  }
  Status Check(int, std::string_view, const tree::FileVersion&) const override { return {}; }

 private:
  Result<std::shared_ptr<store::Object>> Find(std::string_view path, const tree::FileVersion& version) const {
    const auto id = ids_->Find(version);
    if (id) return store_->Acquire(*id, version.size);
    return Error(Code::kDenied, Escape(path) +
                                    ": permission denied: your user could not read it when the snapshot "
                                    "was made");
  }

  static constexpr int kTurns = 4;
  store::Store* const store_;
  Vault* const vault_;
  const home::DigestCache* const ids_;
};

}  // namespace vrun::snapshots
