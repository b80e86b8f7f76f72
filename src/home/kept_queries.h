// SPDX-License-Identifier: Apache-2.0
// `vctl job ID pull` and `vctl job ID drop`: what a job with --writes=keep left on its nodes.
#pragma once

#include <memory>

#include "home/client_connection.h"
#include "home/services.h"
#include "proto/local.pb.h"

namespace vrun::home {

// Loop thread only. The conversation lives until all is told or the client has gone, which ends a pull where it is:
// what was not put in place stays on its node. `services` outlives it.
void AnswerKeptQuery(const Services* services, const std::shared_ptr<ClientConnection>& client,
                     const v1::Query::KeptWrites& query);

}  // namespace vrun::home
