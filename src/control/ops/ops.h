// SPDX-License-Identifier: Apache-2.0
// The controller's operations, one file each. State thread, inside a transaction. A store error is recorded in
// store().failure() and undoes the whole batch; any other error is the answer to the request.
#pragma once

#include <string>

#include "base/result.h"
#include "control/state/state.h"
#include "proto/control.pb.h"
#include "proto/usage.pb.h"
#include "proto/vault.pb.h"
#include "rpc/rpc.h"

namespace vrun::control {

// For homes only. Service has asked MayCall (access/access.h); calls about a job ask State::MayTouch.
// The reply has no placement yet. AddPlacement fills it in after State::Decide has run.
Result<v1::SubmitReply> Submit(State& state, const rpc::Peer& peer, const v1::SubmitRequest& request);
Result<v1::CancelReply> Cancel(State& state, const rpc::Peer& peer, const v1::CancelRequest& request);
Result<v1::GetReply> Get(State& state, const rpc::Peer& peer, const v1::GetRequest& request);
Result<v1::ListReply> List(State& state, const rpc::Peer& peer, const v1::ListRequest& request);
Result<v1::NodesReply> Nodes(State& state, const rpc::Peer& peer, const v1::NodesRequest& request);
Result<v1::WhyAnswer> Why(State& state, const rpc::Peer& peer, const v1::WhyRequest& request);
Result<v1::TeamList> Teams(State& state, const rpc::Peer& peer, const v1::TeamsRequest& request);
Result<v1::AccountList> Accounts(State& state, const rpc::Peer& peer, const v1::AccountsRequest& request);
Result<v1::ChangeReply> Change(State& state, const rpc::Peer& peer, const v1::ChangeJobs& request);
Result<v1::NodesReply> Drain(State& state, const rpc::Peer& peer, const v1::DrainNodes& request);
Result<v1::WhoAmIReply> WhoAmI(State& state, const rpc::Peer& peer, const v1::WhoAmIRequest& request);
Result<v1::MaintenanceList> Maintain(State& state, const rpc::Peer& peer, const v1::SetMaintenance& request);
Result<v1::UsageReport> Usage(State& state, const rpc::Peer& peer, const v1::UsageRequest& request);
Result<v1::PriceList> ListPrices(State& state, const rpc::Peer& peer, const v1::PricesRequest& request);
Result<v1::BudgetList> Budgets(State& state, const rpc::Peer& peer, const v1::BudgetsRequest& request);
void AddPlacement(State& state, v1::SubmitReply* reply);

// Messages of a node. The node's name comes from its certificate.
Status RegisterNode(State& state, const std::string& name, const v1::Register& request);
Status Heard(State& state, const std::string& name);
v1::PresignReply Presign(State& state, const std::string& node, const v1::PresignRequest& request);

// For the snapshot store only.
Result<v1::PresignReply> PresignVault(State& state, const rpc::Peer& peer, const v1::VaultPresign& request);

}  // namespace vrun::control
