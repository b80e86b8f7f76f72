// SPDX-License-Identifier: Apache-2.0
// `vctl job ID pull` and `vctl job ID drop`: what a job with --writes=keep left on its nodes.
#pragma once

#include <memory>

#include "home/links/controller_client.h"
#include "home/links/node_links.h"
#include "home/root/snapshot_table.h"
#include "home/runs/run_files.h"
#include "home/streams/client_connection.h"
#include "proto/local.pb.h"

namespace vrun::home {

// Loop thread only. The conversation lives until all is told or the client has gone, which ends a pull where it is:
// what was not put in place stays on its node. All but the client outlives it.
void AnswerKeptQuery(EventLoop* loop, ControllerClient* controller, NodeLinks* nodes, const SnapshotTable* trees,
                     const RunFiles* files, const std::shared_ptr<ClientConnection>& client,
                     const v1::Query::KeptWrites& query);

}  // namespace vrun::home
