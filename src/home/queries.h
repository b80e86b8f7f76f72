// SPDX-License-Identifier: Apache-2.0
// The questions of vctl: one answer, and the connection ends.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "home/client_connection.h"
#include "home/services.h"
#include "proto/local.pb.h"

namespace vrun::home {

class ContentServer;
class Runs;

// Loop thread only.
class Queries {
 public:
  // `shut_down` is called after a Shutdown was answered.
  Queries(const Services* services, Runs* runs, const ContentServer* content, std::function<void()> shut_down);
  ~Queries() { *alive_ = false; }

  void Answer(std::shared_ptr<ClientConnection> client, const v1::Query& query);

 private:
  using Client = std::shared_ptr<ClientConnection>;
  void Status(const Client& client);
  void ListJobs(const Client& client, bool all);
  void GetJob(const Client& client, uint64_t job);
  void ListNodes(const Client& client);
  void Why(const Client& client, uint64_t job);
  void ListTeams(const Client& client);
  void ListAccounts(const Client& client, const v1::Query::ListAccounts& query);
  void CancelJobs(const Client& client, const v1::Query::CancelJobs& cancel);
  void ReadLog(const Client& client, uint64_t job, bool follow);

  const Services* const services_;
  Runs* const runs_;
  const ContentServer* const content_;
  const std::function<void()> shut_down_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace vrun::home
