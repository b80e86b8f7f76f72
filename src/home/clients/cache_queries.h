// SPDX-License-Identifier: Apache-2.0
// `vctl cache`: queries the nodes about the caches that hold this home's content, several nodes at a time, and forwards
// their answers.
#pragma once

#include <memory>

#include "home/links/controller_client.h"
#include "home/links/node_links.h"
#include "home/streams/client_connection.h"
#include "proto/local.pb.h"

namespace vrun::home {

// Loop thread only. The conversation lives until every node has answered or the client has disconnected, which cancels
// the requests. Everything but the client must outlive it. An unreachable or silent node yields an error for that node;
// an unknown node name fails the whole query.
void AnswerCacheQuery(EventLoop* loop, ControllerClient* controller, NodeLinks* nodes,
                      const std::shared_ptr<ClientConnection>& client, const v1::Query::Cache& query);

}  // namespace vrun::home
