// SPDX-License-Identifier: Apache-2.0
// The state that a file system server saves for its successor: its views, its runs, its port. Built on KeeperLink,
// which only knows names, values and descriptors.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "node/fs/keeper_link.h"
#include "proto/fsctl.pb.h"
#include "vfs/frozen/frozen_view.h"
#include "vfs/live/live_view.h"

namespace vrun::node {

// Loop thread only.
class Handover {
 public:
  struct View {
    v1::HandoverView what;
    vfs::ViewHandle handle;
  };
  struct LiveView {
    v1::HandoverLiveView what;
    vfs::ViewHandle handle;
  };
  // The previous server's state.
  struct Left {
    std::vector<View> views;
    std::vector<LiveView> live;
    std::vector<v1::AllowToken> runs;
    int port = 0;  // 0: none
  };

  // Blocks until the keeper has sent everything. `keeper` -1: there is none, and nothing is saved.
  static Result<std::unique_ptr<Handover>> Start(UniqueFd keeper, Left* left);

  bool has_keeper() const { return link_->present(); }
  // Whether the next server can serve everything that this one serves.
  bool complete() const { return has_keeper() && complete_; }

  // The first call saves the view's descriptors. `view` null: a view that is being taken over, already saved.
  void SaveView(bool apart, uint64_t slot, const vfs::FrozenView* view, const std::set<uint64_t>& leases);
  void DropView(bool apart, uint64_t slot);
  // The same for a live view.
  void SaveLiveView(uint64_t id, const vfs::LiveView* view, const std::set<uint64_t>& leases);
  void DropLive(uint64_t id);
  // Unmounts whatever is mounted in slots of this directory but not saved: its server died before it could save it.
  void UnmountStrays(const std::string& directory, bool apart) const;
  void SaveRuns(const std::vector<v1::AllowToken>& runs);
  // Binds a free port of `host` without listening. Nobody else gets the port, and a server can still listen on it.
  Result<int> ReservePort(const std::string& host);
  // The reserved port is in use: keep it for all servers of this keeper.
  void SavePort(int port);
  void SetProgram(const std::string& path) { link_->SetProgram(path); }

 private:
  // Saves the descriptors of a view unless `known`. False: it cannot be saved.
  bool Keep(const std::string& name, std::string value, bool known,
            const std::function<Result<vfs::ViewHandle>()>& handle_of);

  std::unique_ptr<KeeperLink> link_;
  std::set<std::pair<bool, uint64_t>> views_;  // apart, slot
  std::set<uint64_t> live_;                    // ids
  bool complete_ = true;
  UniqueFd port_;
};

}  // namespace vrun::node
