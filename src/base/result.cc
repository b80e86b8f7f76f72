// SPDX-License-Identifier: Apache-2.0
#include "base/result.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace vrun {

std::string_view CodeName(Code code) {
  switch (code) {
    case Code::kOk: return "ok";
    case Code::kInvalid: return "invalid";
    case Code::kNotFound: return "not-found";
    case Code::kExists: return "exists";
    case Code::kDenied: return "denied";
    case Code::kUnavailable: return "unavailable";
    case Code::kExhausted: return "exhausted";
    case Code::kAborted: return "aborted";
    case Code::kTimeout: return "timeout";
    case Code::kCorrupt: return "corrupt";
    case Code::kUnsupported: return "unsupported";
    case Code::kInternal: return "internal";
  }
  return "unknown";
}

Code CodeFromErrno(int e) {
  switch (e) {
    case 0: return Code::kOk;
    case ENOENT:
    case ENOTDIR:
    case ESRCH:
    case ENXIO: return Code::kNotFound;
    case EEXIST:
    case ENOTEMPTY: return Code::kExists;
    case EACCES:
    case EPERM:
    case EROFS: return Code::kDenied;
    case ENOSPC:
    case EDQUOT:
    case ENOMEM:
    case EMFILE:
    case ENFILE: return Code::kExhausted;
    case ECONNREFUSED:
    case ECONNRESET:
    case EPIPE:
    case ENOTCONN:
    case EAGAIN:
    case EHOSTUNREACH:
    case ENETUNREACH: return Code::kUnavailable;
    case ETIMEDOUT: return Code::kTimeout;
    case ESTALE:
    case ECANCELED: return Code::kAborted;
    case ENOSYS:
    case EOPNOTSUPP:
    case ENODEV: return Code::kUnsupported;
    case EINVAL:
    case ENAMETOOLONG:
    case ELOOP: return Code::kInvalid;
    default: return Code::kInternal;
  }
}

Error Error::With(std::string_view what) && {
  message_.insert(0, std::string(what) + ": ");
  return std::move(*this);
}

Error Error::With(std::string_view what) const& { return Error(*this).With(what); }

Error ErrnoError(int error_number, std::string_view what) {
  Error e(CodeFromErrno(error_number), std::string(what) + ": " + std::strerror(error_number));
  e.errno_ = error_number;
  return e;
}

Error ErrnoError(std::string_view what) { return ErrnoError(errno, what); }

void CheckFailed(const char* file, int line, const char* condition) {
  std::fprintf(stderr, "%s:%d: check failed: %s\n", file, line, condition);
  std::abort();
}

}  // namespace vrun
