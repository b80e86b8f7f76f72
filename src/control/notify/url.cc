// SPDX-License-Identifier: Apache-2.0
#include "control/notify/url.h"

#include <curl/curl.h>

#include <algorithm>
#include <memory>
#include <string_view>

#include "base/escape.h"

namespace vrun::control::notify {
namespace {

constexpr size_t kMostUrl = 2000, kMostAddress = 254;

struct FreeUrl {
  void operator()(CURLU* url) const { ::curl_url_cleanup(url); }
};

std::string Lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](char c) { return static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c); });
  return text;
}

// "": there is no such part.
std::string Part(CURLU* url, CURLUPart part, unsigned flags = 0) {
  char* text = nullptr;
  if (::curl_url_get(url, part, &text, flags) != CURLUE_OK) return "";
  std::string copy = text;
  ::curl_free(text);
  return copy;
}

bool IsAlnum(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'); }

// Words with dots between them, each of these characters.
bool AreWords(std::string_view text, std::string_view more) {
  char before = '.';
  for (const char c : text) {
    if (c == '.' ? before == '.' : !IsAlnum(c) && more.find(c) == more.npos) return false;
    before = c;
  }
  return before != '.';
}

}  // namespace

Result<Url> ParseUrl(const std::string& text) {
  const auto bad = [&](const char* why) {
    return Error(Code::kInvalid, Escape(text.substr(0, 200)) + ": not a URL of a webhook: " + why);
  };
  if (text.size() > kMostUrl) return bad("it is longer than 2000 bytes");
  for (const char c : text) {
    if (c <= ' ' || c > '~' || c == '\\' || c == '"' || c == '<' || c == '>' || c == '^' || c == '`' || c == '|') {
      return bad("it has bytes that a URL does not have");
    }
  }
  const std::unique_ptr<CURLU, FreeUrl> url(::curl_url());
  if (!url || ::curl_url_set(url.get(), CURLUPART_URL, text.c_str(), CURLU_DISALLOW_USER) != CURLUE_OK) {
    return bad("write https://HOST[:PORT]/PATH, without a user name");
  }
  const std::string scheme = Lower(Part(url.get(), CURLUPART_SCHEME));
  if ((scheme != "http" && scheme != "https") || !Lower(text).starts_with(scheme + "://")) {
    return bad("it begins with neither https:// nor http://");
  }
  // libcurl takes a third slash for a mistake, and would call the host after it.
  if (text[scheme.size() + 3] == '/') return bad("it names no host");
  if (!Part(url.get(), CURLUPART_USER).empty() || text.find('@') < text.find_first_of("/?#", scheme.size() + 3)) {
    return bad("it has a user name");
  }
  if (text.find('#') != std::string::npos) return bad("it has a fragment");
  Url out;
  const std::string host = Lower(Part(url.get(), CURLUPART_HOST));
  if (host.empty() || host.find('%') != std::string::npos) return bad("it names no host");
  out.origin = scheme + "://" + host + ":" + Part(url.get(), CURLUPART_PORT, CURLU_DEFAULT_PORT);
  out.path = Part(url.get(), CURLUPART_PATH);
  if (out.path.empty()) out.path = "/";
  const std::string path = Lower(out.path);
  // Servers differ in whether these are dots and slashes.
  for (const char* hidden : {"%2e", "%2f", "%5c", "%00", "//"}) {
    if (path.find(hidden) != std::string::npos) return bad("its path has hidden dots or slashes");
  }
  if ((path + "/").find("/../") != std::string::npos || (path + "/").find("/./") != std::string::npos) {
    return bad("its path has dots");
  }
  const std::string query = Part(url.get(), CURLUPART_QUERY);
  out.text = out.origin + out.path + (query.empty() ? "" : "?" + query);
  return out;
}

bool IsUnder(const Url& url, const Url& prefix) {
  if (url.origin != prefix.origin || !url.path.starts_with(prefix.path)) return false;
  return prefix.path.back() == '/' || url.path.size() == prefix.path.size() || url.path[prefix.path.size()] == '/';
}

bool IsMailAddress(const std::string& text) {
  const size_t at = text.find('@');
  if (at == std::string::npos || at == 0 || at > 64 || text.size() > kMostAddress) return false;
  const std::string_view local = std::string_view(text).substr(0, at), domain = std::string_view(text).substr(at + 1);
  return local[0] != '-' && AreWords(local, "!#$%&'*+-/=?^_`{|}~") && AreWords(domain, "-") && domain[0] != '-';
}

}  // namespace vrun::control::notify
