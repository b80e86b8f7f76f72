// SPDX-License-Identifier: Apache-2.0
// Serves one page of figures of a daemon to Prometheus, at /metrics, without a token: whoever reaches the address reads
// it. So a page says nothing about users, names of jobs or paths.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/io/event_loop.h"
#include "base/result.h"
#include "http/server.h"

namespace vrun::http {

// `page` is called on the loop, as long as the server lives; `loop` must outlive the server. HOST:PORT as in
// Server::Start.
Result<std::unique_ptr<Server>> ServeMetrics(const std::string& address, EventLoop* loop,
                                             std::function<std::string()> page);

}  // namespace vrun::http
