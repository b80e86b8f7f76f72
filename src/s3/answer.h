// SPDX-License-Identifier: Apache-2.0
// Interprets a store's answers. Pure.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace vrun::s3 {

// Converts an HTTP status of 300 and above, with its XML, to an error of one line with advice.
//   kCorrupt      a range behind the object's end (416)
//   kNotFound     the object is not there (404 without NoSuchBucket)
//   kDenied       wrong credentials, no permission, a wrong clock, an expired URL
//   kInvalid      the bucket does not exist or is elsewhere
//   kUnavailable  a retry may help (5xx, 429, 408)
Error FromAnswer(long status, std::string_view body, std::string_view what);
// <Code> of an error's XML; "" if there is none. Bounded, printable.
std::string ErrorCode(std::string_view body);

}  // namespace vrun::s3
