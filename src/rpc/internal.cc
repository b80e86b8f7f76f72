// SPDX-License-Identifier: Apache-2.0
#include "rpc/internal.h"

#include <absl/synchronization/mutex.h>
#include <grpc/support/log.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>
#include <grpcpp/support/status.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <charconv>
#include <mutex>
#include <vector>

#include "base/clock.h"
#include "base/escape.h"
#include "base/files.h"
#include "base/log.h"
#include "base/thread/mutex.h"

namespace vrun::rpc {
namespace {

grpc::StatusCode ToGrpcCode(Code code) {
  switch (code) {
    case Code::kOk: return grpc::StatusCode::OK;
    case Code::kInvalid: return grpc::StatusCode::INVALID_ARGUMENT;
    case Code::kNotFound: return grpc::StatusCode::NOT_FOUND;
    case Code::kExists: return grpc::StatusCode::ALREADY_EXISTS;
    case Code::kDenied: return grpc::StatusCode::PERMISSION_DENIED;
    case Code::kUnavailable: return grpc::StatusCode::UNAVAILABLE;
    case Code::kExhausted: return grpc::StatusCode::RESOURCE_EXHAUSTED;
    case Code::kAborted: return grpc::StatusCode::ABORTED;
    case Code::kTimeout: return grpc::StatusCode::DEADLINE_EXCEEDED;
    case Code::kCorrupt: return grpc::StatusCode::DATA_LOSS;
    case Code::kUnsupported: return grpc::StatusCode::UNIMPLEMENTED;
    case Code::kInternal: return grpc::StatusCode::INTERNAL;
  }
  return grpc::StatusCode::INTERNAL;
}

Code FromGrpcCode(grpc::StatusCode code) {
  switch (code) {
    case grpc::StatusCode::OK: return Code::kOk;
    case grpc::StatusCode::INVALID_ARGUMENT:
    case grpc::StatusCode::FAILED_PRECONDITION:
    case grpc::StatusCode::OUT_OF_RANGE: return Code::kInvalid;
    case grpc::StatusCode::NOT_FOUND: return Code::kNotFound;
    case grpc::StatusCode::ALREADY_EXISTS: return Code::kExists;
    case grpc::StatusCode::PERMISSION_DENIED:
    case grpc::StatusCode::UNAUTHENTICATED: return Code::kDenied;
    case grpc::StatusCode::UNAVAILABLE: return Code::kUnavailable;
    case grpc::StatusCode::RESOURCE_EXHAUSTED: return Code::kExhausted;
    case grpc::StatusCode::CANCELLED:
    case grpc::StatusCode::ABORTED: return Code::kAborted;
    case grpc::StatusCode::DEADLINE_EXCEEDED: return Code::kTimeout;
    case grpc::StatusCode::DATA_LOSS: return Code::kCorrupt;
    case grpc::StatusCode::UNIMPLEMENTED: return Code::kUnsupported;
    default: return Code::kInternal;
  }
}

void LogFromGrpc(gpr_log_func_args* args) {
  if (args->severity == GPR_LOG_SEVERITY_ERROR) {
    // A failing connection is retried every two seconds; log it only once a minute.
    static Mutex mu;
    static std::string last;
    static int64_t last_time = 0;
    MutexLock lock(mu);
    int64_t now = MonotonicMicros();
    if (last == args->message && now - last_time < 60'000'000) return;
    last = args->message;
    last_time = now;
    LogWarning("grpc: {}", Escape(args->message));
  } else {
    LogDebug("grpc: {}", Escape(args->message));
  }
}

bool IsNameText(std::string_view text) {
  if (text.empty() || text.size() > 200) return false;
  for (char c : text) {
    bool fine = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
                c == '-' || c == '@' || c == '+';
    if (!fine) return false;
  }
  return true;
}

// All descriptors of this process are below this number. 0: unknown.
int DescriptorTableSize() {
  constexpr std::string_view kField = "\nFDSize:\t";
  const std::string status = ReadFile("/proc/self/status").value_or("");
  const size_t at = status.find(kField);
  int size = 0;
  if (at != std::string::npos) std::from_chars(status.data() + at + kField.size(), status.data() + status.size(), size);
  return size;
}

}  // namespace

grpc::ByteBuffer ToBuffer(std::string message) {
  auto* owned = new std::string(std::move(message));
  TellSanitizerBefore(owned);
  grpc::Slice slice(
      owned->data(), owned->size(),
      [](void* s) {
        TellSanitizerAfter(s);
        delete static_cast<std::string*>(s);
      },
      owned);
  return grpc::ByteBuffer(&slice, 1);
}

std::string FromBuffer(const grpc::ByteBuffer& buffer) {
  std::string message;
  std::vector<grpc::Slice> slices;
  if (!buffer.Valid() || !buffer.Dump(&slices).ok()) return message;
  message.reserve(buffer.Length());
  for (const grpc::Slice& s : slices) message.append(reinterpret_cast<const char*>(s.begin()), s.size());
  return message;
}

grpc::Status ToGrpcStatus(const Error& error) {
  if (error.code() == Code::kOk) return grpc::Status::OK;
  return grpc::Status(ToGrpcCode(error.code()), error.message());
}

Error FromGrpcStatus(const grpc::Status& status, std::string_view code_text, const std::string& where) {
  if (status.ok()) return Error(Code::kOk, "");
  int number = 0;
  auto [end, ec] = std::from_chars(code_text.data(), code_text.data() + code_text.size(), number);
  if (ec == std::errc() && number > 0 && number <= static_cast<int>(Code::kInternal)) {
    return Error(static_cast<Code>(number), status.error_message());
  }
  const std::string& text = status.error_message();
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    return Error(Code::kTimeout, where + ": no answer in time");
  }
  // ("tcp handshaker shutdown": there was never a connection.)
  const bool connected = text.find("tcp handshaker") == std::string::npos;
  if ((connected && text.find("andshake") != std::string::npos) || text.find("CERTIFICATE") != std::string::npos) {
    return Error(Code::kUnavailable,
                 where + ": TLS handshake failed: the certificates may belong to another cluster or be " +
                     "out of date: " + Escape(text));
  }
  return Error(FromGrpcCode(status.error_code()), where + ": " + Escape(text));
}

void PrepareGrpc() {
  static std::once_flag once;
  std::call_once(once, [] {
    // Debian's absl is built to search for deadlocks at every lock.
    absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
    gpr_set_log_verbosity(LogEnabled(LogLevel::kDebug) ? GPR_LOG_SEVERITY_INFO : GPR_LOG_SEVERITY_ERROR);
    gpr_set_log_function(LogFromGrpc);
  });
}

bool ParseIdentity(std::string_view uri, Peer* peer) {
  constexpr std::string_view kScheme = "vrun://";
  if (!uri.starts_with(kScheme)) return false;
  uri.remove_prefix(kScheme.size());
  size_t slash = uri.find('/');
  if (slash == std::string_view::npos) return false;
  if (!IsNameText(uri.substr(0, slash)) || !IsNameText(uri.substr(slash + 1))) return false;
  peer->role = std::string(uri.substr(0, slash));
  peer->name = std::string(uri.substr(slash + 1));
  return true;
}

void KeepKernelQueueShort(const std::string& address) {
  const std::string_view port = std::string_view(address).substr(address.rfind(':') + 1);
  uint16_t wanted = 0;
  if (std::from_chars(port.data(), port.data() + port.size(), wanted).ec != std::errc()) return;
  // By number: a home may have 100,000 open files, and listing them in /proc takes ten times as long.
  const int end = DescriptorTableSize();
  for (int fd = 0; fd < end; ++fd) {
    sockaddr_storage peer{};
    socklen_t size = sizeof peer;
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0) continue;
    const in_port_t its = peer.ss_family == AF_INET    ? reinterpret_cast<const sockaddr_in*>(&peer)->sin_port
                          : peer.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&peer)->sin6_port
                                                       : 0;
    if (ntohs(its) != wanted) continue;
    (void)::setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kKernelQueueBytes, sizeof kKernelQueueBytes);
  }
}

}  // namespace vrun::rpc
