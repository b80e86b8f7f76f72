// SPDX-License-Identifier: Apache-2.0
// Stands in for the homes of away jobs (RunSpec.away): attaches to each attempt, so that it starts, and serves its
// snapshot for as long as the job needs it. The home of such a job does the same as long as it is there.
//
// The controller is asked which attempts there are. Streams, writes and the end of the job wait on the node for home.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "base/io/event_loop.h"
#include "base/result.h"
#include "home/links/node_links.h"
#include "proto/control.pb.h"
#include "rpc/rpc.h"

namespace vrun::snapshots {

// Loop thread only.
class StandIn {
 public:
  // A snapshot, in use as long as `held` is.
  struct Root {
    std::shared_ptr<const void> held;
    home::NodeLinks* nodes = nullptr;
    std::string home_id;  // the home of which it is
    v1::SnapshotReference reference;
  };
  using Found = std::function<void(Result<Root>)>;  // to be called on the loop
  using FindRoot = std::function<void(const std::string& owner, const v1::SnapshotReference&, Found)>;

  // Owns neither.
  StandIn(EventLoop* loop, rpc::Channel* controller, FindRoot find);
  ~StandIn();

  // To be called about once a second.
  void Look();

 private:
  class Guest;
  using Key = std::tuple<uint64_t, uint32_t, uint32_t>;  // job, attempt, pod

  template <typename Reply>
  void Ask(const std::string& method, const std::string& request, std::function<void(Result<Reply>)> done);
  void Heard(const v1::ListReply& list);
  void Serve(const std::string& owner, const v1::GetReply& job);
  void Open(const std::string& owner, const v1::SnapshotReference& reference, const v1::Placement& placement);

  EventLoop* const loop_;
  rpc::Channel* const controller_;
  const FindRoot find_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  bool asking_ = false;
  std::map<Key, std::unique_ptr<Guest>> guests_;  // null: being opened
  std::map<uint64_t, uint32_t> known_;            // the attempt of each job for which the placements are known
};

}  // namespace vrun::snapshots
