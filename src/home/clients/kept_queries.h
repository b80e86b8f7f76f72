// SPDX-License-Identifier: Apache-2.0
// `vctl job ID pull` and `vctl job ID drop`: the kept writes of a job with --writes=keep.
#pragma once

#include <memory>

#include "home/links/controller_client.h"
#include "home/links/node_links.h"
#include "home/runs/job_roots.h"
#include "home/runs/run_files.h"
#include "home/streams/client_connection.h"
#include "proto/local.pb.h"

namespace vrun::home {

// Loop thread only. The conversation lives until everything is sent or the client has disconnected. A disconnect stops
// a pull: what was not put in place stays on its node. Everything but the client must outlive it.
void AnswerKeptQuery(EventLoop* loop, ControllerClient* controller, NodeLinks* nodes, const JobRoots* roots,
                     const RunFiles* files, const std::shared_ptr<ClientConnection>& client,
                     const v1::Query::KeptWrites& query);

}  // namespace vrun::home
