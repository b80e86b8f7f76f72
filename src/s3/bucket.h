// SPDX-License-Identifier: Apache-2.0
// A bucket at a store, and the object names in it.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "s3/sigv4.h"

namespace vrun::s3 {

struct Bucket {
  std::string endpoint;  // http[s]://HOST[:PORT], nothing after it
  std::string name;
  std::string region = "us-east-1";
  std::string prefix = "vrun/";  // prefix of every key; ends with '/' unless empty
  bool path_style = true;        // ENDPOINT/BUCKET/KEY; else BUCKET.HOST/KEY
  std::string ca_pem;            // the authorities for the endpoint's certificate; "": the system's

  // "https" or "http".
  std::string scheme() const { return endpoint.substr(0, endpoint.find("://")); }
  std::string host() const;                        // as in the Host header
  std::string PathOf(std::string_view key) const;  // not encoded; begins with '/'
  std::string base() const { return scheme() + "://" + host(); }
};

// Brings the endpoint into its usual form (no default port, lower case, no final slash). kInvalid says what to write
// instead.
Status Normalize(Bucket* bucket);

// Reads the format of ~/.aws/credentials: NAME = VALUE lines; uses the first section that has both keys. kDenied when
// others than its owner may read the file.
Result<Keys> ReadKeys(const std::string& file);
Result<Keys> ParseKeys(std::string_view text, const std::string& file);

}  // namespace vrun::s3
