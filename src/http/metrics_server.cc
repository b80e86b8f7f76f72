// SPDX-License-Identifier: Apache-2.0
#include "http/metrics_server.h"

#include <utility>

#include "http/metrics_page.h"

namespace vrun::http {
namespace {

constexpr Limits kLimits{.header_bytes = 8u << 10, .body_bytes = 1u << 10, .connections = 16, .event_streams = 0};

}  // namespace

Result<std::unique_ptr<Server>> ServeMetrics(const std::string& address, EventLoop* loop,
                                             std::function<std::string()> page) {
  // Requests hold it only weakly: after the server's end, what is still posted asks for no page.
  auto owned = std::make_shared<std::function<std::string()>>(std::move(page));
  const std::weak_ptr<std::function<std::string()>> weak = owned;
  return Server::Start(address, std::nullopt, kLimits,
                       [loop, owned = std::move(owned), weak](Request request, std::shared_ptr<Exchange> exchange) {
                         if (request.path != "/metrics") {
                           return exchange->Answer(Problem(404, "figures for Prometheus are at /metrics"));
                         }
                         if (request.method != "GET") return exchange->Answer(Problem(405, "GET /metrics"));
                         loop->Post([weak, exchange = std::move(exchange)] {
                           if (const auto make = weak.lock()) {
                             exchange->Answer({.body = (*make)(), .content_type = kMetricsContentType});
                           }
                         });
                       });
}

}  // namespace vrun::http
