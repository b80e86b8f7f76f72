// SPDX-License-Identifier: Apache-2.0
// A mail as it is sent (RFC 5322). Pure.
#pragma once

#include <cstdint>
#include <string>

namespace vrun::control::notify {

struct Mail {
  std::string from, to;  // addresses (url.h)
  std::string subject;   // may be UTF-8. What could end the line becomes a space
  std::string text;      // may be UTF-8; lines end with \n
  std::string id;        // the same in each try: it becomes the Message-ID
  int64_t date_us = 0;
};
// Lines end with CR LF. Names of jobs cannot add a header.
std::string Compose(const Mail& mail);

// One header's value: as it is if it is plain ASCII, else encoded words of RFC 2047, folded.
std::string EncodeHeader(const std::string& text);

}  // namespace vrun::control::notify
