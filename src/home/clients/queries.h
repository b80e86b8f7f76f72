// SPDX-License-Identifier: Apache-2.0
// vctl's queries: one answer each, then the connection ends.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "home/links/controller_client.h"
#include "home/links/node_links.h"
#include "home/streams/client_connection.h"
#include "proto/local.pb.h"

namespace vrun::home {

class ContentServer;
class JobRoots;
class AwayJobs;
class Runs;
class Withheld;

// Loop thread only.
class Queries {
 public:
  using Client = std::shared_ptr<ClientConnection>;
  // None is owned; all outlive it. `root`: the directory of this machine that jobs see as "/".
  Queries(EventLoop* loop, ControllerClient* controller, NodeLinks* nodes, const JobRoots* roots, const Runs* runs,
          const AwayJobs* away, Withheld* withheld, const ContentServer* content, std::string root);
  ~Queries() { *alive_ = false; }

  // Passes this kind of query to `answer`.
  void Pass(v1::Query::WhatCase what, std::function<void(const Client& client, const v1::Query& query)> answer) {
    others_[what] = std::move(answer);
  }
  void Answer(const Client& client, const v1::Query& query);

 private:
  void Status(const Client& client);
  void ListJobs(const Client& client, bool all);
  void GetJob(const Client& client, const v1::Query::GetJob& query);
  void ListNodes(const Client& client);
  void Why(const Client& client, const v1::Query::Why& query);
  void ListTeams(const Client& client);
  void ListAccounts(const Client& client, const v1::Query::ListAccounts& query);
  void Usage(const Client& client, const v1::UsageRequest& request);
  void CancelJobs(const Client& client, const v1::Query::CancelJobs& cancel);

  EventLoop* const loop_;
  ControllerClient* const controller_;
  NodeLinks* const nodes_;
  const JobRoots* const roots_;
  const Runs* const runs_;
  const AwayJobs* const away_;
  Withheld* const withheld_;
  const ContentServer* const content_;
  const std::string root_;
  std::map<v1::Query::WhatCase, std::function<void(const Client& client, const v1::Query& query)>> others_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace vrun::home
