// SPDX-License-Identifier: Apache-2.0
#include "home/serve/requests/resident.h"

#include "home/serve/requests/unit_reader.h"

namespace vrun::home {
namespace {

constexpr size_t kMaxOffered = 65536;  // files

}  // namespace

bool Resident::Offer(const tree::FileVersion& version) {
  MutexLock lock(mutex_);
  if (offered_.size() >= kMaxOffered) offered_.clear();
  return offered_.insert(version).second;
}

bool Resident::Offered(const tree::FileVersion& version) {
  MutexLock lock(mutex_);
  return offered_.contains(version);
}

Result<v1::ContentReply> Resident::Get(const v1::ContentRequest::GetResident& get) {
  const tree::FileVersion version = Version(get.version());
  VRUN_ASSIGN(const ServedFiles::Served served, files_->Check(get.tree(), get.path(), version));
  Guess guess = files_->GuessFrom(served, [this](const tree::FileVersion& file) { return Offer(file); });
  guess.Touched(get.path(), version);
  // If the file was offered before, so were its libraries.
  if (!Offered(version)) guess.AddFile(get.path(), version);
  (void)Offer(version);
  if (get.siblings()) guess.AddSiblings(get.path());
  v1::ContentReply reply;
  reply.mutable_resident();
  for (const GuessedFile& guessed : guess.Take()) {
    v1::ResidentFile* file = reply.mutable_resident()->add_file();
    file->set_path(guessed.path);
    *file->mutable_version() = ToWire(guessed.version);
    if (auto id = digests_->Find(guessed.version)) file->set_object_id(id->Encode());
    for (const auto& [first, end] : guessed.ranges) {
      file->add_range(first);
      file->add_range(end);
    }
    for (const auto& [first, end] : guessed.loader) {
      file->add_loader(first);
      file->add_loader(end);
    }
  }
  return reply;
}

}  // namespace vrun::home
