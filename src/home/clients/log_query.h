// SPDX-License-Identifier: Apache-2.0
// `vctl logs`: the output of a job of this home.
#pragma once

#include <memory>

#include "home/links/controller_client.h"
#include "home/runs/runs.h"
#include "home/streams/client_connection.h"
#include "home/streams/log_spool.h"
#include "proto/local.pb.h"

namespace vrun::home {

// Loop thread only. The conversation lives until everything is sent or the client has disconnected. Everything but the
// client must outlive it.
void AnswerLogQuery(EventLoop* loop, ControllerClient* controller, LogSpool* spool, const Runs* runs,
                    const std::shared_ptr<ClientConnection>& client, const v1::Query::ReadLog& query);

}  // namespace vrun::home
