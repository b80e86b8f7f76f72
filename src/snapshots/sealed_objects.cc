// SPDX-License-Identifier: Apache-2.0
#include "snapshots/sealed_objects.h"

#include <algorithm>
#include <future>
#include <utility>

#include "base/escape.h"
#include "base/hash/blake3.h"
#include "s3/extent.h"

namespace vrun::snapshots {
namespace {

constexpr uint64_t kMaxObjectBytes = kMaxParts * (kPartBytes + 64) + (64u << 10);
constexpr size_t kCountAt = 8;  // number of parts of an object, and its salt: s3/extent.h
constexpr size_t kSaltAt = 16, kSaltBytes = 16;
constexpr size_t kLengthBytes = 8;
constexpr size_t kNamesAtATime = 500;

Error DamagedObject(const std::string& name) {
  return Error(Code::kCorrupt,
               "the S3 store: snapshot object " + Escape(name) + " is damaged or sealed with another key");
}

uint64_t Number(std::string_view bytes) {
  uint64_t n = 0;
  for (size_t i = bytes.size(); i-- > 0;) n = n << 8 | static_cast<uint8_t>(bytes[i]);
  return n;
}

std::string_view SaltOf(std::string_view object) {
  return object.size() < kSaltAt + kSaltBytes ? std::string_view() : object.substr(kSaltAt, kSaltBytes);
}

// Cuts `bytes` into consecutive parts of maximum size; the last may be shorter.
std::vector<std::string_view> Cut(std::string_view bytes) {
  std::vector<std::string_view> parts;
  for (; !bytes.empty(); bytes.remove_prefix(parts.back().size())) parts.push_back(bytes.substr(0, kPartBytes));
  return parts;
}

std::string Seal(const std::string& key, const std::string& name, const std::vector<std::string_view>& parts) {
  std::vector<std::optional<s3::ExtentUnit>> units;
  for (const std::string_view part : parts) units.push_back(s3::ExtentUnit{Blake3(part), part});
  return s3::SealExtent(key, name, units);
}

Result<std::string> OpenPart(const s3::ExtentTable& table, size_t part, std::string_view object, uint64_t length) {
  const uint64_t at = table.OffsetOf(part), bytes = table.BytesOf(part);
  if (!table.Has(part) || at + bytes > object.size()) return Error(Code::kCorrupt, "the object is truncated");
  return table.OpenUnit(part, object.substr(at, bytes), length);
}

}  // namespace

SealedObjects::SealedObjects(std::string owner, std::string store_id, Presign presign)
    : owner_(std::move(owner)), store_id_(std::move(store_id)), presign_(std::move(presign)) {}

SealedObjects::~SealedObjects() = default;

Result<SealedObjects::Signed> SealedObjects::Sign(v1::VaultPresign::Method method,
                                                  const std::vector<std::string>& names) {
  v1::VaultPresign request;
  request.set_owner(owner_);
  request.set_store(store_id_);
  request.set_method(method);
  for (const std::string& name : names) request.add_name(name);
  VRUN_ASSIGN(const v1::PresignReply reply, presign_(request));
  if (reply.has_error()) return Error(static_cast<Code>(reply.error().code()), Escape(reply.error().message()));
  const int count = static_cast<int>(names.size());
  if (reply.key_size() != count || reply.signature_size() != count || reply.seal().empty())
    return Error(Code::kUnavailable, "the controller's answer has no URLs of the S3 store");
  Signed out;
  for (int i = 0; i < count; ++i)
    out.urls.push_back(reply.base() + reply.key(i) + "?" + reply.query() + "&X-Amz-Signature=" + reply.signature(i));
  out.seal = reply.seal();
  MutexLock lock(mu_);
  if (!client_ || client_ca_ != reply.ca_pem()) {
    client_ca_ = reply.ca_pem();
    client_ = std::make_shared<s3::Client>(
        s3::ClientOptions{.transfer_micros = 60'000'000, .tries = 2, .ca_pem = client_ca_});
  }
  out.client = client_;
  return out;
}

namespace {

// Starts all requests and waits for them; returns the first error.
Result<std::vector<std::string>> Transfer(s3::Client* client, std::vector<s3::Request> requests) {
  std::vector<std::future<Result<std::string>>> answers;
  for (s3::Request& request : requests) {
    auto answer = std::make_shared<std::promise<Result<std::string>>>();
    answers.push_back(answer->get_future());
    client->Start(std::move(request), [answer](Result<std::string> body) { answer->set_value(std::move(body)); });
  }
  std::vector<std::string> bodies;
  std::optional<Error> failed;
  for (auto& answer : answers) {
    Result<std::string> body = answer.get();
    if (body)
      bodies.push_back(*std::move(body));
    else if (!failed)
      failed = std::move(body).error();
  }
  if (failed) return *std::move(failed);
  return bodies;
}

}  // namespace

Result<std::string> SealedObjects::Read(const std::string& name, std::string* seal) {
  VRUN_ASSIGN(const Signed sign, Sign(v1::VaultPresign::GET, {name}));
  *seal = sign.seal;
  VRUN_ASSIGN(auto bodies, Transfer(sign.client.get(), {{.method = s3::Method::kGet,
                                                         .url = sign.urls[0],
                                                         .max_bytes = kMaxObjectBytes,
                                                         .what = "get " + name + " of the snapshots"}}));
  return std::move(bodies[0]);
}

Result<std::vector<std::string>> SealedObjects::GetParts(const std::string& name, const std::string& salt,
                                                         const std::vector<uint64_t>& lengths) {
  std::string seal;
  VRUN_ASSIGN(const std::string object, Read(name, &seal));
  if (!salt.empty() && SaltOf(object) != salt) return DamagedObject(name);
  auto table = s3::ExtentTable::Open(seal, name, lengths.size(), object);
  if (!table) return DamagedObject(name);
  std::vector<std::string> parts;
  for (size_t i = 0; i < lengths.size(); ++i) {
    auto part = OpenPart(*table, i, object, lengths[i]);
    if (!part) return DamagedObject(name);
    parts.push_back(*std::move(part));
  }
  return parts;
}

Result<std::string> SealedObjects::PutParts(const std::string& name, const std::vector<std::string_view>& parts) {
  VRUN_ASSIGN(const Signed sign, Sign(v1::VaultPresign::PUT, {name}));
  auto body = std::make_shared<const std::string>(Seal(sign.seal, name, parts));
  std::string salt(SaltOf(*body));
  VRUN_TRY(Transfer(sign.client.get(), {{.method = s3::Method::kPut,
                                         .url = sign.urls[0],
                                         .body = std::move(body),
                                         .what = "put " + name + " of the snapshots"}}));
  return salt;
}

// The first part contains the total length of the rest.
Status SealedObjects::Put(const std::string& name, std::string_view bytes) {
  std::string length(kLengthBytes, '\0');
  for (size_t i = 0; i < kLengthBytes; ++i) length[i] = static_cast<char>(bytes.size() >> (8 * i));
  std::vector<std::string_view> parts = Cut(bytes);
  parts.insert(parts.begin(), length);
  if (parts.size() > kMaxParts) return Error(Code::kUnsupported, "the S3 store: " + name + ": too large");
  VRUN_TRY(PutParts(name, parts));
  return {};
}

Result<std::string> SealedObjects::Get(const std::string& name) {
  std::string seal;
  VRUN_ASSIGN(const std::string object, Read(name, &seal));
  if (object.size() < kCountAt + 4) return DamagedObject(name);
  const uint64_t count = Number(std::string_view(object).substr(kCountAt, 4));
  if (count == 0 || count > kMaxParts) return DamagedObject(name);
  auto table = s3::ExtentTable::Open(seal, name, count, object);
  auto first = table ? OpenPart(*table, 0, object, kLengthBytes) : Result<std::string>(DamagedObject(name));
  if (!first) return DamagedObject(name);
  uint64_t left = Number(*first);
  if ((left + kPartBytes - 1) / kPartBytes != count - 1) return DamagedObject(name);
  std::string bytes;
  for (size_t i = 1; i < count; ++i) {
    auto part = OpenPart(*table, i, object, std::min(left, kPartBytes));
    if (!part) return DamagedObject(name);
    left -= part->size();
    bytes += *part;
  }
  return bytes;
}

Status SealedObjects::Delete(const std::vector<std::string>& names) {
  for (size_t at = 0; at < names.size(); at += kNamesAtATime) {
    const std::vector<std::string> some(
        names.begin() + static_cast<ptrdiff_t>(at),
        names.begin() + static_cast<ptrdiff_t>(std::min(names.size(), at + kNamesAtATime)));
    VRUN_ASSIGN(const Signed sign, Sign(v1::VaultPresign::DELETE, some));
    std::vector<s3::Request> requests;
    for (size_t i = 0; i < some.size(); ++i) {
      requests.push_back({.method = s3::Method::kDelete,
                          .url = sign.urls[i],
                          .max_bytes = 65536,
                          .what = "delete " + some[i] + " of the snapshots"});
    }
    const auto gone = Transfer(sign.client.get(), std::move(requests));
    if (!gone && gone.error().code() != Code::kNotFound) return gone.error();
  }
  return {};
}

}  // namespace vrun::snapshots
