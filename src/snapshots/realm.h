// SPDX-License-Identifier: Apache-2.0
// The snapshots of one home in the store: captured from that home, served to nodes. File versions are meaningful only
// within one home, so each home has its own realm.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/io/event_loop.h"
#include "home/links/node_links.h"
#include "home/root/deny_list.h"
#include "home/root/tree_table.h"
#include "home/serve/content_server.h"
#include "node/source/content_source.h"
#include "rpc/credentials.h"
#include "snapshots/manifest.h"
#include "snapshots/object_files.h"

namespace vrun::snapshots {

class Realm {
 public:
  // `home_id`: the home. `content_home_id`: the home id under which the store serves nodes. `store` and `vault` (null:
  // none) must outlive it.
  Realm(EventLoop* loop, store::Store* store, Vault* vault, const rpc::Credentials& mine, std::string home_id,
        std::string content_home_id)
      : home_id_(std::move(home_id)),
        content_home_id_(std::move(content_home_id)),
        source_({.home_id = home_id_}),
        manifest_(store, vault),
        late_(&source_, store, &manifest_.ids(), home_id_),
        files_(store, vault, &manifest_, &late_),
        server_(&trees_, &files_, &manifest_.ids(), vault != nullptr ? 6 : 2, "", content_home_id_),
        nodes_(loop, &server_, content_home_id_) {
    nodes_.UseCredentials(mine);
    // Nothing that was readable when the snapshot was made is treated as secret here.
    trees_.SetCurrent(tree::AssembleTree({}, tree::Directory::Make({}, nullptr)),
                      std::make_shared<const home::DenyRules>());
  }

  const std::string& home_id() const { return home_id_; }
  const std::string& content_home_id() const { return content_home_id_; }
  node::ContentSource& source() { return source_; }    // any thread
  Manifest& manifest() { return manifest_; }           // any thread
  LateFiles& late() { return late_; }                  // any thread
  home::TreeTable& trees() { return trees_; }          // any thread
  const ObjectFiles& files() const { return files_; }  // any thread
  home::NodeLinks& nodes() { return nodes_; }          // the loop's thread
  home::Traces& traces() { return server_.traces(); }  // any thread

 private:
  const std::string home_id_;
  const std::string content_home_id_;
  node::ContentSource source_;
  Manifest manifest_;
  LateFiles late_;
  ObjectFiles files_;
  home::TreeTable trees_;
  home::ContentServer server_;
  home::NodeLinks nodes_;
};

}  // namespace vrun::snapshots
