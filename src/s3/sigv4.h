// SPDX-License-Identifier: Apache-2.0
// AWS Signature Version 4 in the query string: a URL that allows its holder one operation on one object until it
// expires. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace vrun::s3 {

// The keys of an account at the store. They never leave the process that read them.
struct Keys {
  std::string access_key;
  std::string secret_key;
  std::string session_token;  // for temporary credentials; "": none
};

// 32 raw bytes.
std::string HmacSha256(std::string_view key, std::string_view data);
std::string Hex(std::string_view raw);
// RFC 3986 as SigV4 requires: everything except A-Za-z0-9-._~ (and '/' as a separator) becomes %XX.
std::string UriEncode(std::string_view text, bool keep_slashes);

// Signs for one time, region and host. The day's key is derived once, so a signature costs two hashes.
class Presigner {
 public:
  // `host`: the Host header, with the port unless it is the scheme's default. `expires_s`: at most a week.
  Presigner(Keys keys, std::string host, std::string region, int64_t wall_micros, uint32_t expires_s);

  // The part common to all URLs of this signer: the whole query except the signature.
  const std::string& query() const { return query_; }
  // The signature for `path` (not encoded, begins with '/') in lower-case hex. The URL is scheme://host +
  // UriEncode(path, true) + "?" + query() + "&X-Amz-Signature=" + this.
  std::string Sign(std::string_view method, std::string_view path) const;

 private:
  std::string host_, time_, scope_, query_, key_;
};

// kDate, kRegion, kService, kSigning; raw.
std::string SigningKey(std::string_view secret, std::string_view date, std::string_view region,
                       std::string_view service);

}  // namespace vrun::s3
