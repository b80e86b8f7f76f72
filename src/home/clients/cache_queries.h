// SPDX-License-Identifier: Apache-2.0
// `vctl cache`: asks the nodes about the caches that hold this home's content, several at a time, and passes on what
// they say.
#pragma once

#include <memory>

#include "home/links/controller_client.h"
#include "home/links/node_links.h"
#include "home/streams/client_connection.h"
#include "proto/local.pb.h"

namespace vrun::home {

// Loop thread only. The conversation lives until every node has answered or the client has gone, which tells the nodes
// to stop. All but the client outlives it. A node that is away, or does not answer, is an error of that node; a name
// that is not of the cluster is an error of the question.
void AnswerCacheQuery(EventLoop* loop, ControllerClient* controller, NodeLinks* nodes,
                      const std::shared_ptr<ClientConnection>& client, const v1::Query::Cache& query);

}  // namespace vrun::home
