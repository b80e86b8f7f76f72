// SPDX-License-Identifier: Apache-2.0
// Result<T>: the value of an operation, or the Error that says what failed, why and what to do.
//
// Our interfaces throw no exceptions. Error::ToString() is the text after "vrun: ": "what: why: what to do".
#pragma once

#include <cerrno>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace vrun {

// Fixed numbers, because they are sent over the wire. Append only.
enum class Code : int {
  kOk = 0,
  kInvalid = 1,  // the request is malformed or impossible
  kNotFound = 2,
  kExists = 3,
  kDenied = 4,       // permission or policy
  kUnavailable = 5,  // the other side is unreachable; a retry may help
  kExhausted = 6,    // disk, memory, descriptors, quota
  kAborted = 7,      // superseded: stale version, lost epoch, cancelled
  kTimeout = 8,
  kCorrupt = 9,       // content does not match its digest, or bytes do not parse
  kUnsupported = 10,  // this host or kernel cannot do it
  kInternal = 11,     // a bug in vrun
};

std::string_view CodeName(Code code);
Code CodeFromErrno(int error_number);

class Error {
 public:
  Error(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  Code code() const { return code_; }
  // The errno that caused the failure, 0 if none.
  int error_number() const { return errno_; }
  const std::string& message() const { return message_; }

  // Prepends what was being attempted: "mount overlay: " + message.
  Error With(std::string_view what) &&;
  Error With(std::string_view what) const&;

 private:
  friend Error ErrnoError(int, std::string_view);
  Code code_;
  int errno_ = 0;
  std::string message_;
};

// "what: strerror(e)", code derived from e.
Error ErrnoError(int error_number, std::string_view what);
// ErrnoError(errno, what).
Error ErrnoError(std::string_view what);

template <typename T>
class [[nodiscard]] Result : public tl::expected<T, Error> {
 public:
  using Base = tl::expected<T, Error>;
  using Base::Base;
  Result(Error error) : Base(tl::unexpect, std::move(error)) {}  // NOLINT: implicit by design
  Result(Base base) : Base(std::move(base)) {}                   // NOLINT
};

using Status = Result<void>;

}  // namespace vrun

#define VRUN_CONCAT_(a, b) a##b
#define VRUN_CONCAT(a, b) VRUN_CONCAT_(a, b)

// VRUN_TRY(expr): returns the error of a Result<void>.
#define VRUN_TRY(expr)                                                 \
  do {                                                                 \
    auto vrun_try_result_ = (expr);                                    \
    if (!vrun_try_result_) return std::move(vrun_try_result_).error(); \
  } while (0)

// VRUN_ASSIGN(auto x, expr): x = *expr, or returns its error.
#define VRUN_ASSIGN(lhs, expr) VRUN_ASSIGN_(VRUN_CONCAT(vrun_assign_, __LINE__), lhs, expr)
#define VRUN_ASSIGN_(tmp, lhs, expr)       \
  auto tmp = (expr);                       \
  if (!tmp) return std::move(tmp).error(); \
  lhs = *std::move(tmp)

// VRUN_CHECK(cond): a programming error when false; logs and aborts.
#define VRUN_CHECK(cond)                                         \
  do {                                                           \
    if (!(cond)) ::vrun::CheckFailed(__FILE__, __LINE__, #cond); \
  } while (0)

namespace vrun {
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition);
}
