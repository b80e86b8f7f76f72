// SPDX-License-Identifier: Apache-2.0
#include "store/format/unit_map.h"

#include <sys/random.h>

#include <cstring>

namespace vrun::store {
namespace {

constexpr size_t kCheckBytes = 8;

void PutU32(uint32_t v, char* out) {
  for (int i = 0; i < 4; ++i) out[i] = static_cast<char>(v >> (8 * i));
}
void PutU64(uint64_t v, char* out) {
  for (int i = 0; i < 8; ++i) out[i] = static_cast<char>(v >> (8 * i));
}
uint64_t GetLittle(const char* in, int bytes) {
  uint64_t v = 0;
  for (int i = bytes; i-- > 0;) v = v << 8 | static_cast<uint8_t>(in[i]);
  return v;
}

}  // namespace

MapNonce NewMapNonce() {
  MapNonce nonce;
  VRUN_CHECK(::getrandom(nonce.data(), nonce.size(), 0) == static_cast<ssize_t>(nonce.size()));
  return nonce;
}

std::string EncodeMapHeader(const MapHeader& header) {
  std::string out(kMapHeaderBytes, '\0');
  std::memcpy(out.data(), "VRM2", 4);
  PutU32(static_cast<uint32_t>(UnitBytes(header.size)), &out[4]);
  PutU64(header.size, &out[8]);
  const std::string id = header.id.Encode();
  std::memcpy(&out[16], id.data(), id.size());
  std::memcpy(&out[56], header.nonce.data(), header.nonce.size());
  PutU64(header.content_inode, &out[72]);
  const size_t body = kMapHeaderBytes - kCheckBytes;
  std::memcpy(&out[body], Sha256({out.data(), body}).bytes.data(), kCheckBytes);
  return out;
}

Result<MapHeader> DecodeMapHeader(std::string_view bytes) {
  const Error corrupt(Code::kCorrupt, "unit map: its header is damaged");
  if (bytes.size() < kMapHeaderBytes || bytes.substr(0, 4) != "VRM2") return corrupt;
  const size_t body = kMapHeaderBytes - kCheckBytes;
  if (std::memcmp(&bytes[body], Sha256(bytes.substr(0, body)).bytes.data(), kCheckBytes) != 0) return corrupt;
  MapHeader header;
  header.size = GetLittle(&bytes[8], 8);
  const auto id = ObjectId::Decode(bytes.substr(16, 33));
  if (!id || GetLittle(&bytes[4], 4) != UnitBytes(header.size)) return corrupt;
  header.id = *id;
  std::memcpy(header.nonce.data(), &bytes[56], header.nonce.size());
  header.content_inode = GetLittle(&bytes[72], 8);
  return header;
}

namespace {

void RecordCheck(const MapNonce& nonce, const char* body, char* out) {
  char text[sizeof(MapNonce) + kMapRecordBytes - kCheckBytes];
  std::memcpy(text, nonce.data(), nonce.size());
  std::memcpy(text + nonce.size(), body, kMapRecordBytes - kCheckBytes);
  std::memcpy(out, Sha256({text, sizeof text}).bytes.data(), kCheckBytes);
}

}  // namespace

void EncodeMapRecord(const MapNonce& nonce, const MapRecord& record, std::string* out) {
  char bytes[kMapRecordBytes];
  PutU32(record.present ? 1 : 2, bytes);
  PutU32(record.unit, bytes + 4);
  std::memcpy(bytes + 8, record.digest.bytes.data(), 32);
  RecordCheck(nonce, bytes, bytes + kMapRecordBytes - kCheckBytes);
  out->append(bytes, sizeof bytes);
}

std::optional<MapRecord> DecodeMapRecord(const MapNonce& nonce, std::string_view bytes) {
  if (bytes.size() != kMapRecordBytes) return std::nullopt;
  char check[kCheckBytes];
  RecordCheck(nonce, bytes.data(), check);
  if (std::memcmp(check, &bytes[kMapRecordBytes - kCheckBytes], kCheckBytes) != 0) return std::nullopt;
  const uint64_t kind = GetLittle(bytes.data(), 4);
  if (kind != 1 && kind != 2) return std::nullopt;
  MapRecord record;
  record.present = kind == 1;
  record.unit = static_cast<uint32_t>(GetLittle(&bytes[4], 4));
  std::memcpy(record.digest.bytes.data(), &bytes[8], 32);
  return record;
}

}  // namespace vrun::store
