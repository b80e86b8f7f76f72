// SPDX-License-Identifier: Apache-2.0
// gRPC's credentials from ours. Not for other modules.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "rpc/credentials.h"
#include "rpc/rpc.h"

namespace grpc {
class ChannelCredentials;
class ServerCredentials;
}  // namespace grpc

namespace vrun::rpc {

// What is in their files now. They themselves when they were not read from files, or the files have another key now.
Result<Credentials> ReadAgain(const Credentials& credentials);

// Each new connection uses what is in the files then (within a minute). `role`, `admit`: as in Channel::Dial.
std::shared_ptr<grpc::ChannelCredentials> ClientTls(const Credentials& mine, const std::string& role,
                                                    std::function<bool(const Peer&)> admit);
// The same for a server that asks its clients for a certificate. With `strangers` it also takes clients without one,
// shows its authority's certificate to those who know only its digest, and keeps its own for as long as it runs.
std::shared_ptr<grpc::ServerCredentials> ServerTls(const Credentials& mine, bool strangers);

}  // namespace vrun::rpc
