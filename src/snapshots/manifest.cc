// SPDX-License-Identifier: Apache-2.0
#include "snapshots/manifest.h"

#include <cstdint>
#include <functional>

#include "base/escape.h"
#include "proto/snapshots.pb.h"
#include "snapshots/vault.h"
#include "tree/codec.h"
#include "tree/directory_builder.h"
#include "tree/rules.h"

namespace vrun::snapshots {
namespace {

// A path has at most half of PATH_MAX names; deeper trees exist only in tests of that.
constexpr int kMaxDepth = 4096;

Error TooDeep(const std::string& path) {
  return Error(Code::kUnsupported, Escape(path.substr(0, 80)) + "...: directories " + std::to_string(kMaxDepth) +
                                       " levels deep: a snapshot cannot hold them");
}

Error Damaged(const std::string& what) {
  return Error(Code::kCorrupt, "the snapshot store: " + what + ": the snapshot is damaged");
}

}  // namespace

Result<tree::DirectoryPtr> Manifest::Load(const Digest& blob) {
  const MutexLock lock(mu_);
  return LoadAt(blob, 0);
}

Result<tree::DirectoryPtr> Manifest::LoadAt(const Digest& blob, int depth) {
  if (depth > kMaxDepth) return Damaged("the directories are nested too deeply");
  VRUN_ASSIGN(const std::string bytes, Blob(blob));
  v1::SnapshotDirectory object;
  if (!object.ParseFromString(bytes)) return Damaged("a directory does not parse");
  VRUN_ASSIGN(const tree::DirectoryPtr parsed, tree::Directory::Parse(std::move(*object.mutable_directory())));
  if (const auto it = known_.find(parsed->digest()); it != known_.end()) return it->second.directory;
  VRUN_ASSIGN(const std::vector<tree::KnownId> ids, tree::DecodeKnownIds(object.known_ids(), parsed->size()));
  tree::DirectoryBuilder builder;
  std::vector<tree::DirectoryBuilder::NamedDirectory> children;
  auto id = ids.begin();
  for (size_t i = 0; i < parsed->size(); ++i) {
    const tree::Entry entry = parsed->At(i);
    if (!builder.AddEncoded(parsed->EncodedAt(i))) return Damaged("a directory is too large");
    const bool identified = id != ids.end() && id->index == i;
    if (identified) {
      const auto decoded = store::ObjectId::Decode((id++)->id);
      if (!decoded)
        return Damaged("a name of content that does not parse, or one of SHA-256: of an earlier version of vrun");
      IdentifyLocked(entry.version(), *decoded);
    } else if (entry.is_regular() && entry.size > 0) {
      unreadable_.insert(entry.version());
    }
    if (!entry.is_directory()) continue;
    const size_t which = children.size();
    const auto child = which < static_cast<size_t>(object.child_size())
                           ? Digest::FromBytes(object.child(static_cast<int>(which)))
                           : std::nullopt;
    if (!child) return Damaged("a directory without its children");
    VRUN_ASSIGN(tree::DirectoryPtr loaded, LoadAt(*child, depth + 1));
    children.emplace_back(entry.name, std::move(loaded));
  }
  tree::DirectoryPtr complete = std::move(builder).Finish(std::move(children));
  if (complete->digest() != parsed->digest()) return Damaged("a directory whose children are not its own");
  known_[complete->digest()] = {complete, blob};
  return complete;
}

struct Manifest::Completion {
  const NewDirectories& fresh;
  std::vector<NewFile>* files;
  std::unordered_map<Digest, tree::DirectoryPtr, DigestHash> done;
  std::unordered_set<tree::FileVersion, tree::FileVersionHash> listed;
};

Result<tree::DirectoryPtr> Manifest::Complete(const Digest& root, const NewDirectories& fresh,
                                              std::vector<NewFile>* files) {
  Completion work{fresh, files, {}, {}};
  const MutexLock lock(mu_);
  return CompleteAt(root, "/", 0, &work);
}

Result<tree::DirectoryPtr> Manifest::CompleteAt(const Digest& digest, const std::string& path, int depth,
                                                Completion* work) {
  if (depth > kMaxDepth) return TooDeep(path);
  if (const auto it = known_.find(digest); it != known_.end()) return it->second.directory;
  if (const auto it = work->done.find(digest); it != work->done.end()) return it->second;
  const auto it = work->fresh.find(digest);
  if (it == work->fresh.end()) return Error(Code::kCorrupt, "home did not send the directory " + Escape(path));
  const tree::Directory& directory = *it->second.directory;
  tree::DirectoryBuilder builder;
  std::vector<tree::DirectoryBuilder::NamedDirectory> children;
  auto known = it->second.known_ids.begin();
  for (size_t i = 0; i < directory.size(); ++i) {
    const tree::Entry entry = directory.At(i);
    if (!builder.AddEncoded(directory.EncodedAt(i))) return Error(Code::kCorrupt, "a directory is too large");
    const bool told = known != it->second.known_ids.end() && known->first == i;
    std::optional<store::ObjectId> id;
    if (told) id = (known++)->second;
    if (entry.is_regular() && entry.size > 0 && work->listed.insert(entry.version()).second) {
      if (const auto ours = ids_.Find(entry.version())) id = ours;
      work->files->push_back({tree::JoinPath(path, entry.name), entry.version(), id});
    }
    if (!entry.is_directory()) continue;
    VRUN_ASSIGN(tree::DirectoryPtr child, CompleteAt(entry.child, tree::JoinPath(path, entry.name), depth + 1, work));
    children.emplace_back(entry.name, std::move(child));
  }
  tree::DirectoryPtr complete = std::move(builder).Finish(std::move(children));
  if (complete->digest() != digest) return Error(Code::kCorrupt, "home sent another directory than " + Escape(path));
  work->done[digest] = complete;
  return complete;
}

void Manifest::Identify(const tree::FileVersion& version, const store::ObjectId& id) {
  const MutexLock lock(mu_);
  IdentifyLocked(version, id);
}

void Manifest::IdentifyLocked(const tree::FileVersion& version, const store::ObjectId& id) {
  // Doubts about recently changed versions are home's to resolve: it named the content when it served it, and checked
  // the file afterwards.
  ids_.Remember(version, id, INT64_MAX);
  unreadable_.erase(version);
  lost_.erase(version);
}

void Manifest::MarkUnreadable(const NewFile& file) {
  const MutexLock lock(mu_);
  unreadable_.insert(file.version);
}

void Manifest::MarkLost(const NewFile& file) {
  const MutexLock lock(mu_);
  unreadable_.insert(file.version);
  lost_.insert(file.version);
}

bool Manifest::Lost(const tree::FileVersion& version) const {
  const MutexLock lock(mu_);
  return lost_.contains(version);
}

uint64_t Manifest::Unreadable(const tree::DirectoryPtr& root, size_t most, std::vector<std::string>* paths) const {
  const MutexLock lock(mu_);
  if (unreadable_.empty()) return 0;
  uint64_t count = 0;
  VisitDirectories(root, [&](const std::string& path, const tree::DirectoryPtr& directory) VRUN_REQUIRES(mu_) {
    for (size_t i = 0; i < directory->size(); ++i) {
      const tree::Entry entry = directory->At(i);
      if (!entry.is_regular() || entry.size == 0 || !unreadable_.contains(entry.version())) continue;
      if (count++ < most) paths->push_back(tree::JoinPath(path, entry.name));
    }
  });
  return count;
}

Result<Digest> Manifest::Write(const tree::DirectoryPtr& root) {
  const MutexLock lock(mu_);
  return WriteAt(root, 0);
}

Result<Digest> Manifest::WriteAt(const tree::DirectoryPtr& directory, int depth) {
  if (const auto it = known_.find(directory->digest()); it != known_.end()) return it->second.blob;
  v1::SnapshotDirectory object;
  object.set_directory(std::string(directory->encoded()));
  std::vector<tree::KnownId> ids;
  for (size_t i = 0; i < directory->size(); ++i) {
    const tree::Entry entry = directory->At(i);
    if (entry.is_directory()) {
      VRUN_ASSIGN(const Digest child, WriteAt(directory->Child(i), depth + 1));
      object.add_child(std::string(child.view()));
    } else if (const auto id = entry.is_regular() ? ids_.Find(entry.version()) : std::nullopt) {
      ids.push_back({static_cast<uint32_t>(i), id->Encode()});
    }
  }
  object.set_known_ids(tree::EncodeKnownIds(ids));
  const std::string bytes = object.SerializeAsString();
  const Digest blob = Sha256(bytes);
  VRUN_TRY(store_->PutBlob(blob, bytes));
  known_[directory->digest()] = {directory, blob};
  return blob;
}

void Manifest::Need(const tree::DirectoryPtr& root, const tree::DirectoryPtr& base, Contents* contents) const {
  std::vector<std::pair<tree::DirectoryPtr, tree::DirectoryPtr>> stack{{root, base}};
  const MutexLock lock(mu_);
  while (!stack.empty()) {
    const auto [directory, known] = std::move(stack.back());
    stack.pop_back();
    if (!directory || (known && known->digest() == directory->digest())) continue;
    const auto it = known_.find(directory->digest());
    if (it == known_.end() || !contents->directory_set.insert(it->second.blob).second) continue;
    contents->directories.push_back(it->second.blob);
    for (size_t i = 0; i < directory->size(); ++i) {
      const tree::Entry entry = directory->At(i);
      if (entry.is_directory()) {
        const size_t at = known ? known->Find(entry.name) : 0;
        stack.emplace_back(directory->Child(i), known && at < known->size() ? known->Child(at) : nullptr);
      }
      const auto id = entry.is_regular() ? ids_.Find(entry.version()) : std::nullopt;
      if (id && contents->object_set.insert(*id).second) contents->objects.emplace_back(*id, entry.size);
    }
  }
}

void Manifest::Retain(const std::vector<tree::DirectoryPtr>& roots) {
  const MutexLock lock(mu_);
  std::unordered_map<Digest, Known, DigestHash> kept;
  for (const tree::DirectoryPtr& root : roots) {
    VisitDirectories(root, [&](const std::string&, const tree::DirectoryPtr& directory) VRUN_REQUIRES(mu_) {
      if (const auto it = known_.find(directory->digest()); it != known_.end()) kept.insert(*it);
    });
  }
  known_ = std::move(kept);
}

Result<std::string> Manifest::Blob(const Digest& blob) const {
  auto bytes = store_->GetBlob(blob);
  if (bytes || vault_ == nullptr || bytes.error().code() != Code::kNotFound) return bytes;
  VRUN_TRY(vault_->FetchDirectory(blob));
  return store_->GetBlob(blob);
}

void VisitDirectories(const tree::DirectoryPtr& root,
                      const std::function<void(const std::string& path, const tree::DirectoryPtr&)>& visit) {
  std::unordered_set<Digest, DigestHash> seen;
  std::vector<std::pair<std::string, tree::DirectoryPtr>> stack{{"/", root}};
  while (!stack.empty()) {
    const auto [path, directory] = std::move(stack.back());
    stack.pop_back();
    if (!directory || !seen.insert(directory->digest()).second) continue;
    visit(path, directory);
    for (size_t i = 0; i < directory->size(); ++i) {
      if (tree::DirectoryPtr child = directory->Child(i)) {
        stack.emplace_back(tree::JoinPath(path, directory->NameAt(i)), std::move(child));
      }
    }
  }
}

}  // namespace vrun::snapshots
