// SPDX-License-Identifier: Apache-2.0
// The answers of a ContentSession that are names and attributes: roots, directories, whole trees.
#include <algorithm>
#include <numeric>
#include <utility>

#include "base/escape.h"
#include "home/content_server.h"
#include "home/content_session.h"
#include "tree/codec.h"

namespace vrun::home {
namespace {

// Of directory objects between two looks at more urgent work, and of one pack. zstd finds little more in larger ones.
constexpr uint64_t kTreeStepBytes = 256 * 1024;
// Names and numbers: half as fast as 1, and a tenth smaller.
constexpr int kPackLevel = 3;

}  // namespace

std::string ContentSession::KnownIds(const tree::Directory& directory, std::span<const size_t> entries) const {
  std::vector<tree::KnownId> known;
  if (server_->digests_->size() == 0) return {};
  for (const size_t i : entries) {
    const tree::Entry entry = directory.At(i);
    if (!entry.is_regular() || entry.size == 0) continue;
    if (auto id = server_->digests_->Find(entry.version())) known.push_back({static_cast<uint32_t>(i), id->Encode()});
  }
  return tree::EncodeKnownIds(known);
}

std::string ContentSession::KnownIds(const tree::Directory& directory) const {
  if (server_->digests_->size() == 0) return {};
  std::vector<size_t> all(directory.size());
  std::iota(all.begin(), all.end(), 0);
  return KnownIds(directory, all);
}

Error ContentSession::UnknownTree(const std::optional<Digest>& id) const {
  // As JobRun names it.
  if (id && *id == Digest()) {
    return Error(Code::kAborted, "home has lost the root as it was when this job was submitted: submit it again");
  }
  if (!server_->trees_->current()) return Error(Code::kUnavailable, "home has not looked at its root yet");
  return Error(Code::kAborted, "home does not have this tree any more");
}

bool ContentSession::Root(Work* work) {
  uint64_t id = work->request.id();
  auto digest = Digest::FromBytes(work->request.get_root().tree());
  auto held = digest ? server_->trees_->Find(*digest) : std::nullopt;
  if (!held) return Fail(id, UnknownTree(digest));
  v1::ContentReply reply;
  reply.set_id(id);
  reply.set_last(true);
  reply.mutable_root()->set_entry(tree::EncodeRoot(held->asked->root));
  Send(reply);
  return true;
}

bool ContentSession::SendDirectory(Work* work, const tree::Directory& directory, bool last_of_answer) {
  std::string_view encoded = directory.encoded();
  std::string_view part = encoded.substr(work->done, kMaxPart);
  v1::ContentReply reply;
  reply.set_id(work->request.id());
  v1::DirectoryObject* object = reply.mutable_directory();
  object->set_digest(directory.digest().bytes.data(), directory.digest().bytes.size());
  object->set_raw_bytes(part.size());
  object->set_total_bytes(encoded.size());
  if (server_->compressor_.Compress(part, object->mutable_encoded())) {
    object->set_zstd(true);
  } else {
    object->set_encoded(part.data(), part.size());
  }
  if (work->done == 0) object->set_known_ids(KnownIds(directory));
  work->done += part.size();
  bool whole = work->done == encoded.size();
  reply.set_last(whole && last_of_answer);
  Send(reply, *work);
  return whole;
}

bool ContentSession::Directory(Work* work) {
  const auto& get = work->request.get_directory();
  auto tree_id = Digest::FromBytes(get.tree());
  auto wanted = Digest::FromBytes(get.digest());
  if (!tree_id || !wanted || get.path().empty() || get.path()[0] != '/') {
    return Fail(work->request.id(), Error(Code::kInvalid, "malformed request for a directory"));
  }
  auto held = server_->trees_->Find(*tree_id);
  // After a restart of home the tree of a running job is not known; what did not change is still where it was.
  tree::SnapshotPtr snapshot = held ? held->asked : server_->trees_->current();
  if (!snapshot) return Fail(work->request.id(), UnknownTree());
  auto directory = tree::LookupDirectory(*snapshot, get.path());
  if (!held && snapshot->apart && (!directory || (*directory)->digest() != *wanted)) {
    directory = tree::LookupDirectory(*snapshot->apart, get.path());
  }
  if (!directory || (*directory)->digest() != *wanted) {
    return Fail(work->request.id(),
                Error(Code::kAborted, Escape(get.path()) + ": changed at home after the job's tree was taken"));
  }
  return SendDirectory(work, **directory, true);
}

bool ContentSession::Packs(const tree::Directory& directory) { return directory.encoded().size() <= kTreeStepBytes; }

bool ContentSession::Tree(Work* work) {
  uint64_t id = work->request.id();
  if (!work->listed) {
    auto wanted = Digest::FromBytes(work->request.get_tree().tree());
    auto have = Digest::FromBytes(work->request.get_tree().have());
    auto held = wanted ? server_->trees_->Find(*wanted) : std::nullopt;
    if (!held) return Fail(id, UnknownTree(wanted));
    auto base = have ? server_->trees_->Find(*have) : std::nullopt;
    if (have && !base && work->request.get_tree().walks()) {
      return Fail(id, Error(Code::kNotFound, "home does not know the tree that the node has"));
    }
    work->tree = tree::NewDirectories(base ? base->asked->directory : nullptr, held->asked->directory);
    work->listed = true;
    if (work->tree.empty()) {
      // The node has it all: an answer of no object.
      v1::ContentReply reply;
      reply.set_id(id);
      reply.set_last(true);
      Send(reply);
      return true;
    }
  }
  uint64_t sent = 0;
  while (work->next < work->tree.size() && sent < kTreeStepBytes) {
    if (work->request.get_tree().packed() && work->done == 0 && Packs(*work->tree[work->next].directory)) {
      sent += SendPack(work);
      continue;
    }
    tree::NewDirectory& item = work->tree[work->next];
    uint64_t before = work->done;
    bool whole = SendDirectory(work, *item.directory, work->next + 1 == work->tree.size());
    sent += work->done - before;
    if (!whole) continue;
    work->done = 0;
    item.directory.reset();
    ++work->next;
  }
  return work->next == work->tree.size();
}

uint64_t ContentSession::SendPack(Work* work) {
  v1::ContentReply reply;
  reply.set_id(work->request.id());
  v1::DirectoryPack* pack = reply.mutable_pack();
  std::string raw;
  bool known = false;
  for (; work->next < work->tree.size(); ++work->next) {
    tree::NewDirectory& item = work->tree[work->next];
    const std::string_view encoded = item.directory->encoded();
    if (!Packs(*item.directory)) break;
    if (!raw.empty() && (raw.size() + encoded.size() > kTreeStepBytes || HasDelta(*work, item))) break;
    raw += encoded;
    pack->add_raw_bytes(static_cast<uint32_t>(encoded.size()));
    std::string ids = KnownIds(*item.directory);
    known |= !ids.empty();
    pack->add_known_ids(std::move(ids));
    item.directory.reset();
  }
  if (!known) pack->clear_known_ids();
  pack->set_zstd(server_->compressor_.Compress(raw, pack->mutable_encoded(), kPackLevel));
  const uint64_t size = raw.size();
  if (!pack->zstd()) pack->set_encoded(std::move(raw));
  reply.set_last(work->next == work->tree.size() && !work->request.has_watch_tree());
  Send(reply, *work);
  return size;
}

}  // namespace vrun::home
