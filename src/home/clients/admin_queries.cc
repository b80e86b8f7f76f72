// SPDX-License-Identifier: Apache-2.0
#include "home/clients/admin_queries.h"

#include "base/escape.h"

namespace vrun::home {
namespace {

constexpr int64_t kAdminTimeout = 30'000'000;

void SendNotice(const AdminQueries::Client& client, const std::string& text) {
  v1::HomeMessage message;
  message.mutable_notice()->set_text(text);
  client->Send(message);
}

void Done(const AdminQueries::Client& client) {
  v1::HomeMessage message;
  message.mutable_done();
  client->Send(message);
  client->Close();
}

}  // namespace

void AdminQueries::Change(const Client& client, const v1::ChangeJobs& change) {
  controller_->Call<v1::ChangeJobs, v1::ChangeReply>("Change", change, kAdminTimeout,
                                                     [client](Result<v1::ChangeReply> reply) {
                                                       if (!reply) return client->SendError(reply.error());
                                                       for (const std::string& problem : reply->problems())
                                                         SendNotice(client, problem);
                                                       Done(client);
                                                     });
}

void AdminQueries::Drain(const Client& client, const v1::DrainNodes& drain) {
  controller_->Call<v1::DrainNodes, v1::NodesReply>(
      "Drain", drain, kAdminTimeout, [client](Result<v1::NodesReply> reply) {
        if (!reply) return client->SendError(reply.error());
        v1::HomeMessage message;
        message.mutable_nodes()->mutable_nodes()->Swap(reply->mutable_nodes());
        client->Send(message);
        client->Close();
      });
}

void AdminQueries::Maintain(const Client& client, const v1::SetMaintenance& maintenance) {
  controller_->Call<v1::SetMaintenance, v1::MaintenanceList>("Maintain", maintenance, kAdminTimeout,
                                                             [client](Result<v1::MaintenanceList> reply) {
                                                               if (!reply) return client->SendError(reply.error());
                                                               v1::HomeMessage message;
                                                               *message.mutable_maintenance() = *std::move(reply);
                                                               client->Send(message);
                                                               client->Close();
                                                             });
}

void AdminQueries::WhoAmI(const Client& client, int64_t certificate_ends_us) {
  controller_->Call<v1::WhoAmIRequest, v1::WhoAmIReply>(
      "People/WhoAmI", {}, kAdminTimeout,
      [client, certificate_ends_us, address = controller_->address()](Result<v1::WhoAmIReply> reply) {
        if (!reply) return client->SendError(reply.error());
        v1::HomeMessage message;
        *message.mutable_who_am_i() = *std::move(reply);
        message.mutable_who_am_i()->set_controller(address);
        message.mutable_who_am_i()->set_certificate_ends_us(certificate_ends_us);
        client->Send(message);
        client->Close();
      });
}

void AdminQueries::Test(const Client& client, const v1::Run& run) {
  v1::SubmitRequest request;
  request.set_test_only(true);
  request.set_request_id(run.request_id());
  request.set_home_id(controller_->home_id());
  *request.mutable_spec() = run.spec();
  if (run.has_array()) *request.mutable_array() = run.array();
  v1::RunSpec* spec = request.mutable_spec();
  if (spec->pool().empty()) spec->set_pool(defaults_->pool);
  // Run times are known by name.
  if (spec->name().empty() && spec->command().argv_size() > 0) {
    const std::string& path = spec->command().argv(0);
    spec->set_name(Escape(path.substr(path.rfind('/') + 1)));
  }
  controller_->Submit(request, [client](Result<v1::SubmitReply> reply) {
    if (!reply) return client->SendError(reply.error());
    if (!reply->has_forecast()) {
      return client->SendError(
          Error(Code::kUnsupported, "the controller cannot say when a job would start: update it"));
    }
    SendNotice(client, reply->forecast().summary());
    Done(client);
  });
}

}  // namespace vrun::home
