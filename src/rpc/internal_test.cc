// SPDX-License-Identifier: Apache-2.0
#include "rpc/internal.h"

#include <grpcpp/support/status.h>
#include <gtest/gtest.h>

#include <string>

namespace vrun::rpc {
namespace {

TEST(FromGrpcStatus, OnlyWhatIsAboutCertificatesBlamesThem) {
  const auto of = [](const char* text) { return FromGrpcStatus({grpc::StatusCode::UNAVAILABLE, text}, "", "node n1"); };
  for (const char* text : {"Ssl handshake failed: SSL_ERROR_SSL", "x: CERTIFICATE_VERIFY_FAILED"}) {
    EXPECT_NE(of(text).message().find("certificates may belong to another cluster"), std::string::npos) << text;
  }
  const Error down = of("failed to connect to all addresses; last error: UNAVAILABLE: tcp handshaker shutdown");
  EXPECT_EQ(down.code(), Code::kUnavailable);
  EXPECT_EQ(down.message().find("certificates"), std::string::npos) << "a link that is down";
}

}  // namespace
}  // namespace vrun::rpc
