// SPDX-License-Identifier: Apache-2.0
// Shared by channel.cc and server.cc: conversions between gRPC's types and ours. Not for other modules.
#pragma once

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

#include <string>

#include "base/result.h"
#include "rpc/credentials.h"
#include "rpc/rpc.h"

namespace grpc {
class ByteBuffer;
class ChannelArguments;
class Status;
}  // namespace grpc

namespace vrun::rpc {

inline constexpr int kMaxMessageBytes = 64 << 20;
inline constexpr int kKeepaliveMillis = 5000;
// How soon a channel takes the other side for dead. gRPC's clients send no more than a ping a second; our servers take
// any number.
struct Patience {
  int ping_millis = kKeepaliveMillis;    // of silence until it asks
  int answer_millis = kKeepaliveMillis;  // until it gives up
  int connect_millis = 5000;             // of one attempt to connect, with the TLS handshake
};
// With one address there is nowhere else to go. With several, as of a controller and one that stands by, who was
// stopped must be given up before whoever waits notices: its kernel still takes connections, and nobody answers on
// them.
inline constexpr Patience kPatienceAlone{}, kPatienceWithOthers{1200, 2000, 1000};
// Large enough for data in flight on a fast or long link.
inline constexpr int kStreamWindowBytes = 8 << 20;
// The connection's window is set only by gRPC's estimator. Without the estimator (gRPC 1.51) it stays at 64 KiB plus
// the current message, so one message per round trip, however large the streams' windows are.
inline constexpr int kEstimateWindow = 1;
inline constexpr int kFrameBytes = 1 << 20;
// Unsent bytes of one connection in the kernel, besides those in flight: 4 ms at 500 Mbit/s.
inline constexpr int kKernelQueueBytes = 256 << 10;
// Trailing metadata with the Code; marks an error as sent by the application.
inline constexpr char kCodeKey[] = "vrun-code";

// ThreadSanitizer cannot see inside gRPC: these tell it that Before, when data is handed to gRPC, happens before After,
// when it comes back.
#if defined(__SANITIZE_THREAD__)
inline void TellSanitizerBefore(void* p) { __tsan_release(p); }
inline void TellSanitizerAfter(void* p) { __tsan_acquire(p); }
#else
inline void TellSanitizerBefore(void*) {}
inline void TellSanitizerAfter(void*) {}
#endif

// Takes over the string without copying.
grpc::ByteBuffer ToBuffer(std::string message);
std::string FromBuffer(const grpc::ByteBuffer& buffer);

grpc::Status ToGrpcStatus(const Error& error);
// `code_text` is the value of kCodeKey or empty; `where` names the peer in connection errors.
Error FromGrpcStatus(const grpc::Status& status, std::string_view code_text, const std::string& where);

// Redirects gRPC's log (warnings and errors) to ours and makes other process-wide settings, on the first call.
void PrepareGrpc();

// Limits unsent data in the kernel for connections to `address` to what keeps them busy (TCP_NOTSENT_LOWAT, tcp(7)).
// The default is up to 4 MiB, which urgent messages cannot overtake. gRPC does not expose its sockets, so this searches
// the process's descriptors.
void KeepKernelQueueShort(const std::string& address);

// Parses "vrun://ROLE/NAME"; false if it is something else.
bool ParseIdentity(std::string_view uri, Peer* peer);

}  // namespace vrun::rpc
