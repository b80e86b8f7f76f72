// SPDX-License-Identifier: Apache-2.0
// What a store's answer means. Pure.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace vrun::s3 {

// Of an HTTP status of 300 and above, with the XML that came with it: one line, with what to do.
//   kCorrupt      a range behind its end (416)
//   kNotFound     the object is not there (404 without NoSuchBucket)
//   kDenied       wrong credentials, no permission, a clock that is off, an expired URL
//   kInvalid      there is no such bucket, or it is elsewhere
//   kUnavailable  trying again may help (5xx, 429, 408)
Error FromAnswer(long status, std::string_view body, std::string_view what);
// <Code> of an error's XML; "" when there is none. Bounded, printable.
std::string ErrorCode(std::string_view body);

}  // namespace vrun::s3
