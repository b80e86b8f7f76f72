// SPDX-License-Identifier: Apache-2.0
#include "s3/answer.h"

#include "base/escape.h"

namespace vrun::s3 {

std::string ErrorCode(std::string_view body) {
  const size_t first = body.find("<Code>");
  const size_t end = body.find("</Code>");
  if (first == std::string_view::npos || end == std::string_view::npos || end < first + 6) return "";
  return Escape(body.substr(first + 6, std::min<size_t>(end - first - 6, 64)));
}

Error FromAnswer(long status, std::string_view body, std::string_view what) {
  const std::string code = ErrorCode(body);
  const std::string head = "S3: " + std::string(what) + ": ";
  const std::string tail = code.empty() ? " (HTTP " + std::to_string(status) + ")" : " (" + code + ")";
  if (code == "NoSuchBucket") {
    return Error(Code::kInvalid, head + "there is no such bucket: make it, or correct s3_bucket" + tail);
  }
  if (code == "RequestTimeTooSkewed") {
    return Error(Code::kDenied,
                 head + "this machine's clock and the store's differ: set the controller's clock" + tail);
  }
  if (code == "InvalidAccessKeyId" || code == "SignatureDoesNotMatch" || code == "InvalidToken") {
    return Error(Code::kDenied,
                 head + "the store does not accept the credentials: correct the keys in s3_credentials" + tail);
  }
  if (code == "ExpiredToken") {
    return Error(Code::kDenied, head + "the session token has expired: renew the keys in s3_credentials" + tail);
  }
  if (code == "AuthorizationHeaderMalformed" || code == "AuthorizationQueryParametersError" ||
      code == "PermanentRedirect" || (status >= 300 && status < 400)) {
    return Error(Code::kInvalid,
                 head + "the bucket is of another region or endpoint: correct s3_region and s3_endpoint" + tail);
  }
  if (status == 401 || status == 403) {
    return Error(
        Code::kDenied,
        head +
            "not allowed: give the keys s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket on the bucket" +
            tail);
  }
  if (status == 416) return Error(Code::kCorrupt, head + "the object is too short" + tail);
  if (status == 404) return Error(Code::kNotFound, head + "not there" + tail);
  if (status == 408 || status == 429 || status >= 500) {
    return Error(Code::kUnavailable, head + "the store is busy or broken: trying again may help" + tail);
  }
  return Error(Code::kInvalid, head + "refused" + tail);
}

}  // namespace vrun::s3
