// SPDX-License-Identifier: Apache-2.0
// AWS Signature Version 4 in the query string: a URL that lets whoever holds it do one thing with one object until it
// expires. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace vrun::s3 {

// Of an account at the store. Never leaves the process that read it.
struct Keys {
  std::string access_key;
  std::string secret_key;
  std::string session_token;  // of temporary credentials; "": none
};

// 32 raw bytes.
std::string HmacSha256(std::string_view key, std::string_view data);
std::string Hex(std::string_view raw);
// RFC 3986 as SigV4 wants it: everything but A-Za-z0-9-._~ (and, where it separates, '/') as %XX.
std::string UriEncode(std::string_view text, bool keep_slashes);

// Signs for one moment, region and host. The key of a day is derived once, so a signature costs two hashes.
class Presigner {
 public:
  // `host`: the Host header, with its port unless that is the scheme's own. `expires_s`: at most a week.
  Presigner(Keys keys, std::string host, std::string region, int64_t wall_micros, uint32_t expires_s);

  // What is common to all URLs of this signer: everything of the query but the signature.
  const std::string& query() const { return query_; }
  // For `path` (not encoded yet, begins with '/'): lower-case hex. The URL is
  // scheme://host + UriEncode(path, true) + "?" + query() + "&X-Amz-Signature=" + this.
  std::string Sign(std::string_view method, std::string_view path) const;

 private:
  std::string host_, time_, scope_, query_, key_;
};

// kDate, kRegion, kService, kSigning; raw.
std::string SigningKey(std::string_view secret, std::string_view date, std::string_view region,
                       std::string_view service);

}  // namespace vrun::s3
