// SPDX-License-Identifier: Apache-2.0
// What a file system server leaves to the next one, beside its own state: its views, its runs, its port. On top of
// KeeperLink, which only knows names, values and descriptors.
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
#include "vfs/frozen/view.h"
#include "vfs/live/live_view.h"

namespace vrun::node {

// Loop thread only.
class KeptState {
 public:
  struct View {
    v1::KeptView what;
    vfs::ViewHandle handle;
  };
  struct LiveView {
    v1::KeptLiveView what;
    vfs::ViewHandle handle;
  };
  // Of the server before.
  struct Left {
    std::vector<View> views;
    std::vector<LiveView> live;
    std::vector<v1::AllowToken> runs;
    int port = 0;  // 0: none
  };

  // Blocks until the keeper has told all. `keeper` -1: there is none, and nothing is kept.
  static Result<std::unique_ptr<KeptState>> Start(UniqueFd keeper, Left* left);

  bool has_keeper() const { return link_->present(); }
  // Whether the next server can serve all that this one serves.
  bool complete() const { return has_keeper() && complete_; }

  // The first time with the view's descriptors. `view` null: one that is being taken over, and is kept already.
  void KeepView(bool apart, uint64_t slot, const vfs::View* view, const std::set<uint64_t>& leases);
  void DropView(bool apart, uint64_t slot);
  // The same of a live view.
  void KeepLive(uint64_t id, const vfs::LiveView* view, const std::set<uint64_t>& leases);
  void DropLive(uint64_t id);
  // Takes off what is mounted in slots of this directory and is not kept: its server died before it could say so.
  void UnmountStrays(const std::string& directory, bool apart) const;
  void KeepRuns(const std::vector<v1::AllowToken>& runs);
  // A free port of `host`, bound and never listening: nobody is given it by chance, and a server can listen on it.
  Result<int> ReservePort(const std::string& host);
  // The one that was reserved is the one in use: for all servers of this keeper.
  void KeepPort(int port);
  void SetProgram(const std::string& path) { link_->SetProgram(path); }

 private:
  // The descriptors of a view, of which `name` is not kept yet; false: it cannot be.
  bool Keep(const std::string& name, std::string value, bool known,
            const std::function<Result<vfs::ViewHandle>()>& handle_of);

  std::unique_ptr<KeeperLink> link_;
  std::set<std::pair<bool, uint64_t>> views_;  // apart, slot
  std::set<uint64_t> live_;                    // ids
  bool complete_ = true;
  UniqueFd port_;
};

}  // namespace vrun::node
