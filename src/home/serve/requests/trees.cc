// SPDX-License-Identifier: Apache-2.0
#include "base/escape.h"
#include "home/serve/requests/requests.h"
#include "home/serve/served_files.h"
#include "tree/codec.h"
#include "tree/unread.h"

namespace vrun::home {

Result<v1::ContentReply> GetRoot(const TreeTable& trees, const v1::ContentRequest::GetRoot& get) {
  const auto digest = Digest::FromBytes(get.tree());
  const auto held = digest ? trees.Find(*digest) : std::nullopt;
  if (!held) return UnknownTree(trees, digest);
  v1::ContentReply reply;
  reply.mutable_root()->set_entry(tree::EncodeRoot(held->asked->root));
  return reply;
}

bool GetDirectories::Step() {
  if (!directories_) {
    auto found = find_(*trees_, request_);
    if (!found) return Fail(found.error());
    if (found->empty()) {
      // The node has everything: an answer without objects.
      v1::ContentReply reply;
      return Send(&reply, true);
    }
    directories_.emplace(digests_, compressor_, *std::move(found),
                         Directories::Form{.packed = request_.get_tree().packed()},
                         [this](v1::ContentReply* reply, bool last) { Send(reply, last); });
  }
  return directories_->Step();
}

FoundDirectories FindDirectory(const TreeTable& trees, const v1::ContentRequest& request) {
  const auto& get = request.get_directory();
  const auto tree_id = Digest::FromBytes(get.tree());
  const auto wanted = Digest::FromBytes(get.digest());
  if (!tree_id || !wanted || get.path().empty() || get.path()[0] != '/') {
    return Error(Code::kInvalid, "malformed request for a directory");
  }
  const auto held = trees.Find(*tree_id);
  // After a restart of home the tree of a running job is unknown; unchanged files are still in the current tree.
  const tree::TreePtr snapshot = held ? held->asked : trees.known();
  if (!snapshot) return UnknownTree(trees);
  // The node waits for the next tree, which has the directory.
  if (tree::IsUnread(*wanted)) {
    trees.Want(get.path());
    return Error(Code::kAborted, Escape(get.path()) + ": home has just read this directory for the first time");
  }
  if (!held && trees.WantUnread(get.path())) {
    return Error(Code::kUnavailable, Escape(get.path()) + ": home has not read this directory yet: try again");
  }
  auto directory = tree::LookupDirectory(*snapshot, get.path());
  if (!held && snapshot->apart && (!directory || (*directory)->digest() != *wanted)) {
    directory = tree::LookupDirectory(*snapshot->apart, get.path());
  }
  if (!directory || (*directory)->digest() != *wanted) {
    return Error(Code::kAborted, Escape(get.path()) + ": changed at home after the job's tree was taken");
  }
  return std::vector<tree::NewDirectory>{{.path = get.path(), .directory = *directory, .base = nullptr}};
}

FoundDirectories FindTree(const TreeTable& trees, const v1::ContentRequest& request) {
  const auto& get = request.get_tree();
  const auto wanted = Digest::FromBytes(get.tree());
  const auto have = Digest::FromBytes(get.have());
  const auto held = wanted ? trees.Find(*wanted) : std::nullopt;
  if (!held) return UnknownTree(trees, wanted);
  const auto base = have ? trees.Find(*have) : std::nullopt;
  if (have && !base && get.walks()) {
    return Error(Code::kNotFound, "home no longer has the node's tree");
  }
  return tree::NewDirectories(base ? base->asked->directory : nullptr, held->asked->directory);
}

}  // namespace vrun::home
