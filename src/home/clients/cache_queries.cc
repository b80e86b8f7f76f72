// SPDX-License-Identifier: Apache-2.0
#include "home/clients/cache_queries.h"

#include <list>
#include <string>
#include <vector>

#include "base/escape.h"

namespace vrun::home {
namespace {

constexpr int64_t kNodesTimeout = 10'000'000;
// Figures are answered at once; verifying a large file or pruning many may take long without a message.
constexpr int64_t kSilenceOfFigures = 15'000'000;
constexpr int64_t kSilenceOfWork = 120'000'000;

class CacheConversation : public std::enable_shared_from_this<CacheConversation> {
 public:
  CacheConversation(EventLoop* loop, ControllerClient* controller, NodeLinks* nodes, v1::CacheRequest request)
      : loop_(loop), controller_(controller), links_(nodes), request_(std::move(request)) {
    request_.set_home_id(nodes->home_id());
  }
  ~CacheConversation() { Forget(); }

  // The connection owns us, we hold it weakly.
  void Start(const std::shared_ptr<ClientConnection>& client, const std::string& only) {
    client_ = client;
    client->SetEvents({.on_message = [self = shared_from_this()](v1::ClientMessage, std::vector<UniqueFd>) {},
                       .on_closed = [self = shared_from_this()] { self->Forget(); }});
    controller_->Call<v1::NodesRequest, v1::NodesReply>("Nodes", {}, kNodesTimeout,
                                                        [weak = weak_from_this(), only](Result<v1::NodesReply> reply) {
                                                          auto self = weak.lock();
                                                          auto client = self ? self->client_.lock() : nullptr;
                                                          if (!client) return;
                                                          if (!reply) return client->SendError(reply.error());
                                                          self->Ask(*reply, only);
                                                        });
  }

 private:
  struct Node {
    v1::NodeInfo info;
    int address = 0;  // the address being tried
    std::unique_ptr<CacheStream> stream;
    EventLoop::TimerId timer = 0;
    bool over = false;
  };

  void Forget() {
    for (Node& node : nodes_) loop_->Cancel(node.timer);
    nodes_.clear();
  }

  void Ask(const v1::NodesReply& reply, const std::string& only) {
    for (const v1::NodeInfo& info : reply.nodes()) {
      if (only.empty() || info.name() == only) nodes_.emplace_back().info = info;
    }
    if (nodes_.empty() && !only.empty()) {
      if (auto client = client_.lock()) {
        client->SendError(
            Error(Code::kNotFound, "node " + Escape(only) + ": there is no such node: `vctl nodes` lists them"));
      }
      return;
    }
    for (Node& node : nodes_) Open(&node);
    FinishWhenAllAreOver();
  }

  void Open(Node* node) {
    const std::string name = "node " + Escape(node->info.name());
    if (node->info.state() == "lost" || node->info.state() == "away") {
      return Over(node, Error(Code::kUnavailable,
                              name + ": it is " + node->info.state() + ": ask for its cache when it is back"));
    }
    if (node->address >= node->info.addresses_size()) {
      return Over(node,
                  Error(Code::kUnavailable, name + ": it cannot be reached from here: `vctl doctor` may tell why"));
    }
    auto stream = links_->OpenCache(
        node->info.name(), node->info.addresses(node->address++),
        {.on_message = [this, node](v1::CacheEvent event) { Heard(node, std::move(event)); },
         .on_closed =
             [this, node](Error reason) {
               if (node->over) return;
               // Unreachable: try another address.
               if (reason.code() == Code::kUnavailable && node->address < node->info.addresses_size()) {
                 Open(node);
                 return FinishWhenAllAreOver();
               }
               const std::string text = reason.code() == Code::kOk ? "no answer" : reason.message();
               Over(node, Error(reason.code() == Code::kOk ? Code::kInternal : reason.code(),
                                "node " + Escape(node->info.name()) + ": " + text));
               FinishWhenAllAreOver();
             }});
    if (!stream) return Over(node, stream.error());
    node->stream = std::move(*stream);
    node->stream->Send(request_);
    Watch(node);
  }

  void Watch(Node* node) {
    loop_->Cancel(node->timer);
    const int64_t silence = request_.has_stat() ? kSilenceOfFigures : kSilenceOfWork;
    node->timer = loop_->After(silence, [this, node, silence] {
      Over(node, Error(Code::kTimeout, "node " + Escape(node->info.name()) + ": no answer for " +
                                           std::to_string(silence / 1'000'000) + " s: look into its log"));
      FinishWhenAllAreOver();
    });
  }

  void Heard(Node* node, v1::CacheEvent event) {
    if (node->over) return;
    Watch(node);
    if (event.has_error()) {
      const Error error(static_cast<Code>(event.error().code()), event.error().message());
      Over(node, error.With("node " + Escape(node->info.name())));
      return FinishWhenAllAreOver();
    }
    node->over = event.has_report();
    if (node->over) loop_->Cancel(node->timer);
    Tell(*node, std::move(event));
    FinishWhenAllAreOver();
  }

  void Over(Node* node, const Error& error) {
    if (std::exchange(node->over, true)) return;
    loop_->Cancel(node->timer);
    v1::CacheEvent event;
    event.mutable_error()->set_code(static_cast<int>(error.code()));
    event.mutable_error()->set_message(error.message());
    Tell(*node, std::move(event));
  }

  void Tell(const Node& node, v1::CacheEvent event) {
    auto client = client_.lock();
    if (!client) return;
    v1::HomeMessage message;
    message.mutable_cache()->set_node(node.info.name());
    message.mutable_cache()->set_pool(node.info.pool());
    *message.mutable_cache()->mutable_event() = std::move(event);
    client->Send(message);
  }

  void FinishWhenAllAreOver() {
    auto self = shared_from_this();  // closing the connection releases us
    for (const Node& node : nodes_) {
      if (!node.over) return;
    }
    auto client = client_.lock();
    if (!client || std::exchange(finished_, true)) return;
    v1::HomeMessage message;
    message.mutable_done();
    client->Send(message);
    client->Close();
  }

  EventLoop* const loop_;
  ControllerClient* const controller_;
  NodeLinks* const links_;
  v1::CacheRequest request_;
  std::weak_ptr<ClientConnection> client_;
  std::list<Node> nodes_;  // callbacks of the streams hold pointers
  bool finished_ = false;
};

}  // namespace

void AnswerCacheQuery(EventLoop* loop, ControllerClient* controller, NodeLinks* nodes,
                      const std::shared_ptr<ClientConnection>& client, const v1::Query::Cache& query) {
  std::make_shared<CacheConversation>(loop, controller, nodes, query.request())->Start(client, query.node());
}

}  // namespace vrun::home
