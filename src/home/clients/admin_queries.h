// SPDX-License-Identifier: Apache-2.0
// Queries that change jobs or nodes, and runs that only ask when they would start: passed on to the controller.
#pragma once

#include <memory>

#include "home/links/controller_client.h"
#include "home/runs/launch.h"
#include "home/streams/client_connection.h"
#include "proto/local.pb.h"

namespace vrun::home {

// Loop thread only.
class AdminQueries {
 public:
  using Client = std::shared_ptr<ClientConnection>;
  // Both outlive it.
  AdminQueries(ControllerClient* controller, const Launch::Defaults* defaults)
      : controller_(controller), defaults_(defaults) {}

  void Change(const Client& client, const v1::ChangeJobs& change);
  void Drain(const Client& client, const v1::DrainNodes& drain);
  void Maintain(const Client& client, const v1::SetMaintenance& maintenance);
  // `certificate_ends_us`: of this home; 0: unknown.
  void WhoAmI(const Client& client, int64_t certificate_ends_us);
  // Run.test_only: the answer is a Notice, then Done.
  void Test(const Client& client, const v1::Run& run);

 private:
  ControllerClient* const controller_;
  const Launch::Defaults* const defaults_;
};

}  // namespace vrun::home
