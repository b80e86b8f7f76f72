// SPDX-License-Identifier: Apache-2.0
// What the controller can be asked, one file each. State thread, inside a transaction: an error of the store shows in
// store().failure() and undoes the whole batch; any other error is the answer.
#pragma once

#include <string>

#include "base/result.h"
#include "control/state/state.h"
#include "proto/control.pb.h"
#include "proto/vault.pb.h"
#include "rpc/rpc.h"

namespace vrun::control {

// Homes only.
// Without a placement: AddPlacement knows it once State::Decide has run.
Result<v1::SubmitReply> Submit(State& state, const rpc::Peer& peer, const v1::SubmitRequest& request);
Result<v1::CancelReply> Cancel(State& state, const rpc::Peer& peer, const v1::CancelRequest& request);
Result<v1::GetReply> Get(State& state, const rpc::Peer& peer, const v1::GetRequest& request);
Result<v1::ListReply> List(State& state, const rpc::Peer& peer, const v1::ListRequest& request);
Result<v1::NodesReply> Nodes(State& state, const rpc::Peer& peer, const v1::NodesRequest& request);
Result<v1::WhyAnswer> Why(State& state, const rpc::Peer& peer, const v1::WhyRequest& request);
Result<v1::TeamList> Teams(State& state, const rpc::Peer& peer, const v1::TeamsRequest& request);
Result<v1::AccountList> Accounts(State& state, const rpc::Peer& peer, const v1::AccountsRequest& request);
void AddPlacement(State& state, v1::SubmitReply* reply);

// A node's messages. The node is the certificate's name.
Status RegisterNode(State& state, const std::string& name, const v1::Register& request);
Status Heard(State& state, const std::string& name);
v1::PresignReply Presign(State& state, const std::string& node, const v1::PresignRequest& request);

// The snapshot store's.
Result<v1::PresignReply> PresignVault(State& state, const rpc::Peer& peer, const v1::VaultPresign& request);

}  // namespace vrun::control
