// SPDX-License-Identifier: Apache-2.0
// What an Applier (apply.h) does when home has something else at a place than the job saw. The Applier numbers and
// checks the operations, builds content, sets metadata and keeps the journal; at each place it asks its policy.
//
//   frozen  the change at home stays, and the job's version is put beside it (frozen_policy.cc)
//   live    the last writer wins (live_policy.h)
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "home/apply/apply_context.h"

namespace vrun::home {

class ConflictPolicy {
 public:
  explicit ConflictPolicy(ApplyContext* context) : context_(*context) {}
  virtual ~ConflictPolicy() = default;

  // --- content ---

  // Opens in `file` what takes the content. False: home has another file than the one that the content is based on, and
  // needs the whole of it.
  virtual Result<bool> Begin(const v1::WriteBack& /*message*/, IncomingFile* file) {
    VRUN_TRY(context_.MakeTemporaryFile(file));
    return true;
  }
  virtual Status Write(const IncomingFile& file, const v1::FileData& data) {
    return WriteRange(file.fd.get(), data.data(), data.offset(), file.put.sparse());
  }
  // The content is complete, with the operation `sequence`: puts it in its place. False: as for Begin. If `place`
  // changes, the job's version lies there.
  virtual Result<bool> Put(uint64_t sequence, IncomingFile* file) = 0;

  // --- names ---

  // Gives `temporary`, in the directory of `place`, its name; or another one, which `place` then says. `meta`: what it
  // has, if it was not made from a file of home. `base`: what the job saw at the place.
  virtual Status Install(const std::string& temporary, const v1::Meta* meta, const std::optional<v1::BaseVersion>& base,
                         Place* place) = 0;
  // Makes a directory at `place`, or at another one, which `place` then says. False: home has a directory there, which
  // stays as it is.
  virtual Result<bool> MakeDirectory(const v1::WriteBack& message, Place* place) = 0;
  // Before a hard link to `source` (nullopt: home has no such file) is made. True: the policy has made a copy of what
  // the job saw instead.
  virtual Result<bool> CopyInsteadOfLink(const v1::WriteBack& /*message*/,
                                         const std::optional<struct stat>& /*source*/) {
    return false;
  }
  virtual Result<bool> MayRemove(const v1::WriteBack& message, const Place& place, const struct stat& current) = 0;
  // A directory that is not empty stays. False: the user knows why.
  virtual bool TellNotEmpty(const Place& /*place*/) { return true; }
  // Moves what `from` has (`source`; nullopt: nothing) to `to`.
  virtual Status Rename(const v1::WriteBack& message, const std::optional<Place>& from,
                        const std::optional<struct stat>& source, Place to) = 0;
  virtual Result<bool> MaySetMeta(const v1::WriteBack& message, const Place& place, const struct stat& current) = 0;

  // Whether the file has the job's content and nothing else.
  virtual bool IsOwn(const struct stat& /*st*/) const { return false; }

  // --- what an operation did, so that the policy knows the job's own changes ---

  // `held`: ApplyContext::Hold before the operation. `before`: the file before it.
  virtual void Made(const Place& /*place*/, uint64_t /*sequence*/) {}
  virtual void Linked(const Place& place, uint64_t sequence, const UniqueFd& held, const struct stat& before,
                      bool copied) = 0;
  virtual void Removed(uint64_t sequence, const UniqueFd& held, const struct stat& before) = 0;
  virtual void MetaSet(const v1::WriteBack& message, const Place& place, const UniqueFd& held,
                       const struct stat& before) = 0;

 protected:
  ApplyContext& context_;
};

// Each sets the sequence from which the context's series continues.
Result<std::unique_ptr<ConflictPolicy>> MakeFrozenPolicy(ApplyContext* context);
std::unique_ptr<ConflictPolicy> MakeLivePolicy(ApplyContext* context);

}  // namespace vrun::home
