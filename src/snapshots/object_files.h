// SPDX-License-Identifier: Apache-2.0
// Files of snapshots for a ContentServer: looks up the version and reads the store. Content is immutable, so a version
// never changes. Of a snapshot that is still being made, content that has not come is asked of its home.
#pragma once

#include <fcntl.h>

#include <string_view>

#include "base/escape.h"
#include "base/files.h"
#include "home/root/content_files.h"
#include "snapshots/away/late_files.h"
#include "snapshots/manifest.h"
#include "snapshots/vault.h"
#include "store/store.h"

namespace vrun::snapshots {

// Any thread. A file is verified when it is first opened after a restart (about 1 s per GB), or fetched from the vault
// first.
class ObjectFiles final : public home::ContentFiles {
 public:
  // Owns none of them. `vault`: the source of content missing in the store; null: none.
  ObjectFiles(store::Store* store, Vault* vault, Manifest* manifest, LateFiles* late)
      : store_(store), vault_(vault), manifest_(manifest), late_(late) {}

  Result<UniqueFd> OpenPart(std::string_view path, const tree::FileVersion& version, uint64_t offset,
                            uint64_t length) const override {
    if (version.size == 0 || length == 0) return OpenFile("/dev/null", O_RDONLY);
    // Fetched content may have been evicted again for another caller.
    for (int turn = 0; turn < kTurns; ++turn) {
      if (!manifest_->ids().Find(version)) return OpenLate(path, version, offset, length);
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
    auto late = OpenLate(path, version, offset, length);
    if (late || late.error().code() != Code::kDenied) return late;
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
    const auto id = manifest_->ids().Find(version);
    if (id) return store_->Acquire(*id, version.size);
    return NotHere(path, version);
  }
  Error NotHere(std::string_view path, const tree::FileVersion& version) const {
    if (manifest_->Lost(version)) {
      return Error(Code::kAborted, Escape(path) + ": it changed at home before it was sent to the pool's store");
    }
    return Error(Code::kDenied, Escape(path) +
                                    ": permission denied: your user could not read it when the snapshot "
                                    "was made");
  }
  Result<UniqueFd> OpenLate(std::string_view path, const tree::FileVersion& version, uint64_t offset,
                            uint64_t length) const {
    auto object = late_->Fetch(path, version, offset, length);
    if (object) return (*object)->OpenPart(offset, length);
    if (object.error().code() == Code::kNotFound) return NotHere(path, version);
    return std::move(object).error();
  }

  static constexpr int kTurns = 4;
  store::Store* const store_;
  Vault* const vault_;
  Manifest* const manifest_;
  LateFiles* const late_;
};

}  // namespace vrun::snapshots
