// SPDX-License-Identifier: Apache-2.0
// What channel.cc and server.cc share: conversions between gRPC's types and ours. Not for other modules.
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
// Room for what is under way on a fast or a long link.
inline constexpr int kStreamWindowBytes = 8 << 20;
// The connection's window is the estimator's alone: without it (gRPC 1.51) it stays at 64 KiB and what one message
// needs, which is one message for each round trip, however large the streams' windows are.
inline constexpr int kEstimateWindow = 1;
inline constexpr int kFrameBytes = 1 << 20;
// Of one connection, in the kernel, beside what is on its way: 4 ms at 500 Mbit/s.
inline constexpr int kKernelQueueBytes = 256 << 10;
// Trailing metadata that marks an error as an answer of the application and carries its Code.
inline constexpr char kCodeKey[] = "vrun-code";

// ThreadSanitizer cannot look into gRPC: what is handed to it with Before is in order with what comes back with After.
#if defined(__SANITIZE_THREAD__)
inline void TellSanitizerBefore(void* p) { __tsan_release(p); }
inline void TellSanitizerAfter(void* p) { __tsan_acquire(p); }
#else
inline void TellSanitizerBefore(void*) {}
inline void TellSanitizerAfter(void*) {}
#endif

// The buffer takes the string over; nothing is copied.
grpc::ByteBuffer ToBuffer(std::string message);
std::string FromBuffer(const grpc::ByteBuffer& buffer);

grpc::Status ToGrpcStatus(const Error& error);
// `code_text` is the value of kCodeKey or empty; `where` names the other side in errors of the connection.
Error FromGrpcStatus(const grpc::Status& status, std::string_view code_text, const std::string& where);

// Points gRPC's own log at ours (warnings and errors), and other settings that a process has once; the first call does
// it.
void PrepareGrpc();

// The kernel takes no more of what is to be sent to `address` than the connection needs to stay busy
// (TCP_NOTSENT_LOWAT, tcp(7)): by default up to 4 MiB, in which no urgent message overtakes. gRPC gives nobody its
// sockets: they are looked for among the descriptors of this process.
void KeepKernelQueueShort(const std::string& address);

// "vrun://ROLE/NAME". False when it is none.
bool ParseIdentity(std::string_view uri, Peer* peer);

}  // namespace vrun::rpc
