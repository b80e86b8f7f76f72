// SPDX-License-Identifier: Apache-2.0
#include "s3/bucket.h"

#include <sys/stat.h>
#include <unistd.h>

#include "base/config.h"
#include "base/escape.h"
#include "base/files.h"

namespace vrun::s3 {
namespace {

std::string_view Trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r')) text.remove_suffix(1);
  return text;
}

bool IsBucketName(std::string_view name) {
  if (name.size() < 3 || name.size() > 63) return false;
  for (const char c : name) {
    if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_')) return false;
  }
  return name.front() != '.' && name.front() != '-';
}

}  // namespace

std::string Bucket::host() const {
  const std::string at = endpoint.substr(endpoint.find("://") + 3);
  return path_style ? at : name + "." + at;
}

std::string Bucket::PathOf(std::string_view key) const {
  return (path_style ? "/" + name + "/" : "/") + prefix + std::string(key);
}

Status Normalize(Bucket* bucket) {
  const auto bad = [&](std::string_view why) {
    return Error(Code::kInvalid, "s3_endpoint " + Escape(bucket->endpoint) + ": " + std::string(why) +
                                     ": write https://HOST or http://HOST:PORT");
  };
  if (!IsBucketName(bucket->name)) {
    return Error(Code::kInvalid,
                 "s3_bucket " + Escape(bucket->name) + ": not a bucket's name: 3 to 63 of a-z, 0-9, '-' and '.'");
  }
  if (bucket->region.empty()) bucket->region = "us-east-1";
  for (const char c : bucket->region) {
    if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-')) {
      return Error(Code::kInvalid, "s3_region " + Escape(bucket->region) + ": not a region: as in eu-central-1");
    }
  }
  if (bucket->endpoint.empty()) {
    bucket->endpoint = "https://s3." + bucket->region + ".amazonaws.com";
    // the wildcard certificate does not cover names with dots
    bucket->path_style = bucket->name.find('.') != std::string::npos;
  }
  std::string text = bucket->endpoint;
  while (text.ends_with('/')) text.pop_back();
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  const size_t colon = text.find("://");
  const std::string scheme = text.substr(0, colon == std::string::npos ? 0 : colon);
  if (scheme != "http" && scheme != "https") return bad("no scheme");
  std::string host = text.substr(colon + 3);
  if (host.find('/') != std::string::npos || host.find('@') != std::string::npos ||
      host.find('?') != std::string::npos) {
    return bad("more than a host and a port");
  }
  const bool port_given =
      host.rfind(':') != std::string::npos && host.rfind(':') > (host.rfind(']') + 1 == 0 ? 0 : host.rfind(']'));
  const std::string with_port = port_given ? host : host + (scheme == "https" ? ":443" : ":80");
  auto parsed = ParseHostPort(with_port);
  if (!parsed) return bad("not a host and a port");
  const int usual = scheme == "https" ? 443 : 80;
  if (port_given && parsed->port == usual) host = host.substr(0, host.rfind(':'));
  bucket->endpoint = scheme + "://" + host;
  if (!bucket->prefix.empty() && !bucket->prefix.ends_with('/')) bucket->prefix += '/';
  return {};
}

Result<Keys> ReadKeys(const std::string& file) {
  struct stat st;
  if (::stat(file.c_str(), &st) != 0) return ErrnoError("s3_credentials " + Escape(file));
  if ((st.st_mode & 077) != 0) {
    return Error(Code::kDenied, "s3_credentials " + Escape(file) + ": others may read it: chmod 600 it");
  }
  auto text = ReadFile(file, 65536);
  if (!text) return std::move(text).error().With("s3_credentials");
  return ParseKeys(*text, file);
}

Result<Keys> ParseKeys(std::string_view text, const std::string& file) {
  Keys keys;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = Trim(text.substr(0, end));
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    if (line.starts_with('[')) {
      if (!keys.access_key.empty() && !keys.secret_key.empty()) break;
      keys = {};
      continue;
    }
    const size_t equals = line.find('=');
    if (line.empty() || line.front() == '#' || line.front() == ';' || equals == std::string_view::npos) continue;
    const std::string_view name = Trim(line.substr(0, equals)), value = Trim(line.substr(equals + 1));
    if (name == "aws_access_key_id") keys.access_key = value;
    if (name == "aws_secret_access_key") keys.secret_key = value;
    if (name == "aws_session_token") keys.session_token = value;
  }
  if (keys.access_key.empty() || keys.secret_key.empty()) {
    return Error(Code::kInvalid, "s3_credentials " + Escape(file) +
                                     ": no keys: write lines aws_access_key_id = ... and aws_secret_access_key = ...");
  }
  return keys;
}

}  // namespace vrun::s3
