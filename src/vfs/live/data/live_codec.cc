// SPDX-License-Identifier: Apache-2.0
#include "vfs/live/data/live_codec.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string>
#include <utility>

namespace vrun::vfs {
namespace {

// Never renumber: kMagic in live_journal.cc identifies the layout.
enum Tag : uint8_t {
  kHeader = 1,
  kNode,
  kGone,
  kName,
  kNoName,
  kFile,
  kUnits,
  kDirty,
  kOperation,
  kDropped,
  kAcknowledged,
  kDone,
  kUntold,
  kTold,
  kAbsent,
  kNoAbsent,
  kPlaces,
  kClaim,
};

// In an operation's `over`, where it was added later: it is exclusive.
constexpr uint32_t kExclusive = 1u << 31;

constexpr std::array<uint32_t, 256> kCrcTable = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
    table[i] = crc;
  }
  return table;
}();

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t CrcByInstruction(std::string_view data, uint32_t crc) {
  uint64_t wide = crc;
  size_t i = 0;
  for (; i + 8 <= data.size(); i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, data.data() + i, sizeof word);
    wide = __builtin_ia32_crc32di(wide, word);
  }
  crc = static_cast<uint32_t>(wide);
  for (; i < data.size(); ++i) crc = __builtin_ia32_crc32qi(crc, static_cast<unsigned char>(data[i]));
  return crc;
}
#endif

void PutTag(std::string* out, Tag tag) { PutNumber(out, static_cast<uint8_t>(tag)); }

void PutText(std::string* out, std::string_view text) {
  PutNumber(out, static_cast<uint32_t>(text.size()));
  out->append(text);
}

void PutTime(std::string* out, const timespec& time) {
  PutNumber(out, static_cast<int64_t>(time.tv_sec));
  PutNumber(out, static_cast<int64_t>(time.tv_nsec));
}

bool TakeTime(Taker* in, timespec* time) {
  int64_t seconds = 0, nanoseconds = 0;
  if (!in->Number(&seconds) || !in->Number(&nanoseconds)) return false;
  *time = {seconds, static_cast<long>(nanoseconds)};
  return true;
}

void PutVersion(std::string* out, const tree::FileVersion& version) {
  PutNumber(out, version.dev);
  PutNumber(out, version.ino);
  PutNumber(out, version.ctime_ns);
  PutNumber(out, version.size);
}

bool TakeVersion(Taker* in, tree::FileVersion* version) {
  return in->Number(&version->dev) && in->Number(&version->ino) && in->Number(&version->ctime_ns) &&
         in->Number(&version->size);
}

void PutId(std::string* out, const std::optional<store::ObjectId>& id) { PutText(out, id ? id->Encode() : ""); }

bool TakeId(Taker* in, std::optional<store::ObjectId>* id) {
  std::string raw;
  if (!in->Text(&raw)) return false;
  *id = store::ObjectId::Decode(raw);
  // A journal from before an upgrade may have names of an algorithm no longer in use: those count as unknown.
  return raw.empty() || raw.size() == 1 + sizeof(Digest::bytes);
}

bool TakeDigest(Taker* in, Digest* digest) {
  std::string raw;
  if (!in->Text(&raw)) return false;
  const auto taken = Digest::FromBytes(raw);
  if (taken) *digest = *taken;
  return taken.has_value();
}

void PutAttributes(std::string* out, const LiveAttributes& a) {
  PutNumber(out, a.ino);
  PutNumber(out, a.mode);
  PutNumber(out, a.uid);
  PutNumber(out, a.gid);
  PutNumber(out, a.nlink);
  PutNumber(out, a.rdev);
  PutNumber(out, a.size);
  PutNumber(out, a.blocks);
  PutTime(out, a.atime);
  PutTime(out, a.mtime);
  PutTime(out, a.ctime);
}

bool TakeAttributes(Taker* in, LiveAttributes* a) {
  return in->Number(&a->ino) && in->Number(&a->mode) && in->Number(&a->uid) && in->Number(&a->gid) &&
         in->Number(&a->nlink) && in->Number(&a->rdev) && in->Number(&a->size) && in->Number(&a->blocks) &&
         TakeTime(in, &a->atime) && TakeTime(in, &a->mtime) && TakeTime(in, &a->ctime);
}

void PutXattrs(std::string* out, const std::vector<std::pair<std::string, std::string>>& xattrs) {
  PutNumber(out, static_cast<uint32_t>(xattrs.size()));
  for (const auto& [name, value] : xattrs) {
    PutText(out, name);
    PutText(out, value);
  }
}

bool TakeXattrs(Taker* in, std::vector<std::pair<std::string, std::string>>* xattrs) {
  uint32_t n = 0;
  if (!in->Number(&n) || n > in->size()) return false;
  for (; n > 0; --n) {
    auto& [name, value] = xattrs->emplace_back();
    if (!in->Text(&name) || !in->Text(&value)) return false;
  }
  return true;
}

// --- records ---------------------------------------------------------------------------------------------------------

bool TakeHeader(Taker* in, LiveState* state) {
  LiveState now;
  if (!TakeDigest(in, &state->tree) || !in->Number(&now.acknowledged) || !in->Number(&now.next_operation) ||
      !in->Number(&now.next_node) || !in->Number(&now.next_cookie) || !in->Number(&now.next_file)) {
    return false;
  }
  // An acknowledgement appended during the checkpoint may be newer.
  state->acknowledged = std::max(state->acknowledged, now.acknowledged);
  state->next_operation = std::max(state->next_operation, now.next_operation);
  state->next_node = std::max(state->next_node, now.next_node);
  state->next_cookie = std::max(state->next_cookie, now.next_cookie);
  state->next_file = std::max(state->next_file, now.next_file);
  return true;
}

LiveFileState& FileOf(LiveState* state, uint64_t id) {
  LiveFileState& file = state->files[id];
  file.id = id;
  state->next_file = std::max(state->next_file, id + 1);
  return file;
}

bool TakeNode(Taker* in, LiveState* state) {
  auto node = std::make_unique<LiveNode>();
  uint64_t file = 0;
  bool shown = false, told = false, changed = false, moved = false, has_directory = false;
  std::string path;
  if (!in->Number(&node->nodeid) || node->nodeid == 0 || !TakeAttributes(in, &node->attributes) || !in->Bool(&shown) ||
      !in->Bool(&changed) || !in->Bool(&told) || !in->Number(&file) || !in->Text(&node->target) ||
      !TakeXattrs(in, &node->xattrs) || !in->Number(&node->operation) || !TakeVersion(in, &node->at_home) ||
      !TakeVersion(in, &node->version) || !TakeId(in, &node->known_id) || !in->Bool(&moved) || !in->Text(&path) ||
      !in->Bool(&has_directory)) {
    return false;
  }
  node->home = shown ? LiveNode::Home::kShown : told ? LiveNode::Home::kTold : LiveNode::Home::kUnaware;
  if (moved) node->home_path = std::make_unique<const std::string>(std::move(path));
  node->change = changed ? 1 : 0;
  if (has_directory) {
    node->directory = std::make_unique<LiveDirectory>();
    if (!in->Bool(&node->directory->has_lower) || !TakeDigest(in, &node->directory->digest)) return false;
  }
  if (has_directory != S_ISDIR(node->attributes.mode)) return false;
  const uint64_t nodeid = node->nodeid;
  state->next_node = std::max(state->next_node, nodeid + 1);
  state->nodes[nodeid] = std::move(node);
  if (file != 0) {
    state->file_of[nodeid] = file;
    FileOf(state, file);
  } else {
    state->file_of.erase(nodeid);
  }
  return true;
}

bool TakeGone(Taker* in, LiveState* state) {
  uint64_t nodeid = 0;
  if (!in->Number(&nodeid)) return false;
  state->nodes.erase(nodeid);
  state->file_of.erase(nodeid);
  state->names.erase(nodeid);
  state->places.erase(nodeid);
  const auto absent = state->absent.lower_bound({nodeid, ""});
  state->absent.erase(absent, state->absent.lower_bound({nodeid + 1, ""}));
  return true;
}

bool TakeName(Taker* in, bool there, LiveState* state) {
  uint64_t directory = 0;
  std::string name;
  LiveSavedName entry;
  if (!in->Number(&directory) || !in->Text(&name) || name.empty() || name.size() > 255) return false;
  if (there && (!in->Number(&entry.node) || !in->Number(&entry.cookie) || !in->Number(&entry.operation))) return false;
  if (there) {
    state->names[directory][name] = entry;
    state->next_cookie = std::max(state->next_cookie, entry.cookie + 1);
  } else {
    state->names[directory].erase(name);
  }
  return true;
}

bool TakeFile(Taker* in, LiveState* state) {
  LiveFileState file;
  std::string present;
  if (!in->Number(&file.id) || !in->Number(&file.dirty) || !in->Number(&file.published) ||
      !in->Bool(&file.incomplete) || !TakeVersion(in, &file.lower) || !TakeDigest(in, &file.lower_tree) ||
      !in->Text(&file.lower_path) || !in->Number(&file.lower_size) || !in->Text(&present)) {
    return false;
  }
  if (file.incomplete && present.size() != (file.lower_size + kLiveUnit - 1) / kLiveUnit) return false;
  for (const char unit : present) file.present.push_back(unit != 0);
  state->next_file = std::max(state->next_file, file.id + 1);
  const uint64_t id = file.id;
  state->files[id] = std::move(file);
  return true;
}

bool TakeUnits(Taker* in, LiveState* state) {
  uint64_t id = 0, first = 0, end = 0, lower_size = 0;
  if (!in->Number(&id) || !in->Number(&first) || !in->Number(&end) || !in->Number(&lower_size)) return false;
  const auto it = state->files.find(id);
  if (it == state->files.end()) return true;
  LiveFileState& file = it->second;
  // Sizes only shrink; the part that is cut off is no longer home's.
  file.lower_size = std::min(file.lower_size, lower_size);
  file.present.resize(std::min<uint64_t>(file.present.size(), (file.lower_size + kLiveUnit - 1) / kLiveUnit));
  for (uint64_t unit = first; unit < std::min<uint64_t>(end, file.present.size()); ++unit) file.present[unit] = true;
  if (std::find(file.present.begin(), file.present.end(), false) == file.present.end()) file.incomplete = false;
  return true;
}

bool TakeDirty(Taker* in, LiveState* state) {
  uint64_t id = 0, generation = 0;
  if (!in->Number(&id) || !in->Number(&generation)) return false;
  LiveFileState& file = FileOf(state, id);
  file.dirty = std::max(file.dirty, generation);
  return true;
}

bool TakeOperation(Taker* in, LiveState* state) {
  LiveOperation op;
  uint8_t kind = 0;
  uint32_t ranges = 0;
  if (!in->Number(&op.number) || !in->Number(&kind) || !in->Number(&op.node) || !in->Bool(&op.born) ||
      !in->Number(&op.other) || !in->Text(&op.path) || !in->Text(&op.from) || !TakeAttributes(in, &op.attributes) ||
      !TakeXattrs(in, &op.xattrs) || !in->Text(&op.target) || !TakeVersion(in, &op.base) ||
      !in->Number(&op.content.file) || !in->Number(&op.content.generation) || !in->Number(&op.content.aside) ||
      !in->Number(&op.content.size) || !in->Number(&op.content.over) || !in->Number(&ranges) || ranges > in->size()) {
    return false;
  }
  if (kind < 1 || kind > static_cast<uint8_t>(LiveOperation::Kind::kMeta)) return false;
  op.kind = static_cast<LiveOperation::Kind>(kind);
  op.exclusive = (op.content.over & kExclusive) != 0;
  op.content.over &= ~kExclusive;
  if (op.kind == LiveOperation::Kind::kPut && !op.target.empty()) {
    const char* end = op.target.data() + op.target.size();
    const auto [at, error] = std::from_chars(op.target.data(), end, op.linked);
    if (error != std::errc() || at != end) return false;
    op.target.clear();
  }
  for (; ranges > 0; --ranges) {
    ByteRange& range = op.content.ranges.emplace_back();
    if (!in->Number(&range.offset) || !in->Number(&range.length)) return false;
  }
  state->next_operation = std::max(state->next_operation, op.number + 1);
  state->next_file = std::max(state->next_file, op.content.aside + 1);
  if (op.content.file != 0) {
    LiveFileState& file = FileOf(state, op.content.file);
    file.published = std::max(file.published, op.content.generation);
  }
  if (op.number > state->acknowledged) state->operations[op.number] = std::move(op);
  return true;
}

bool TakeAcknowledged(Taker* in, LiveState* state) {
  uint64_t number = 0;
  if (!in->Number(&number)) return false;
  state->acknowledged = std::max(state->acknowledged, number);
  state->operations.erase(state->operations.begin(), state->operations.upper_bound(number));
  return true;
}

bool TakeDone(Taker* in, LiveState* state) {
  constexpr size_t kMost = 4096;  // as kMostLately in done_requests.h
  uint64_t unique = 0, node = 0;
  if (!in->Number(&unique) || !in->Number(&node)) return false;
  state->claims.erase(unique);
  state->done.emplace_back(unique, node);
  if (state->done.size() > kMost) state->done.pop_front();
  return true;
}

bool TakeClaim(Taker* in, LiveState* state) {
  uint64_t unique = 0;
  uint8_t now = 0;
  LiveSavedClaim claim;
  if (!in->Number(&unique) || !in->Number(&claim.number) || !in->Number(&claim.directory) || !in->Text(&claim.name) ||
      !in->Number(&now) || now < 1 || now > static_cast<uint8_t>(LiveSavedClaim::State::kOver)) {
    return false;
  }
  claim.state = static_cast<LiveSavedClaim::State>(now);
  if (claim.state == LiveSavedClaim::State::kOver) {
    state->claims.erase(unique);
  } else {
    state->claims[unique] = std::move(claim);
  }
  return true;
}

bool TakeNumbers(Taker* in, std::vector<uint64_t>* numbers) {
  uint32_t n = 0;
  if (!in->Number(&n) || n > in->size()) return false;
  for (; n > 0; --n) {
    if (!in->Number(&numbers->emplace_back())) return false;
  }
  return true;
}

bool TakeUntold(Taker* in, LiveState* state) {
  uint32_t n = 0;
  if (!in->Number(&n) || n > in->size()) return false;
  for (; n > 0; --n) {
    auto& [directory, name] = state->untold.names.emplace_back();
    if (!in->Number(&directory) || !in->Text(&name)) return false;
  }
  return TakeNumbers(in, &state->untold.listings) && TakeNumbers(in, &state->untold.attributes);
}

bool TakeAbsent(Taker* in, LiveState* state) {
  std::pair<uint64_t, std::string> name;
  if (!in->Number(&name.first) || !in->Text(&name.second)) return false;
  state->absent.insert(std::move(name));
  return true;
}

// Encoded as runs in which place and index grow together: an edit makes two or three runs, however large the directory
// is.
bool TakePlaces(Taker* in, LiveState* state) {
  uint64_t nodeid = 0;
  uint32_t runs = 0;
  LiveSavedPlaces saved;
  if (!in->Number(&nodeid) || !TakeDigest(in, &saved.digest) || !in->Number(&saved.next) || !in->Number(&runs)) {
    return false;
  }
  constexpr size_t kMost = 1u << 22;  // names of a directory
  for (; runs > 0; --runs) {
    uint32_t place = 0, index = 0, length = 0;
    if (!in->Number(&place) || !in->Number(&index) || !in->Number(&length)) return false;
    if (length > kMost || saved.places.size() + length > kMost) return false;
    for (uint32_t i = 0; i < length; ++i) saved.places.emplace_back(place + i, index + i);
  }
  state->places[nodeid] = std::move(saved);
  return true;
}

bool TakeRecord(uint8_t tag, Taker* in, LiveState* state) {
  uint64_t number = 0;
  switch (tag) {
    case kHeader: return TakeHeader(in, state);
    case kNode: return TakeNode(in, state);
    case kGone: return TakeGone(in, state);
    case kName: return TakeName(in, true, state);
    case kNoName: return TakeName(in, false, state);
    case kFile: return TakeFile(in, state);
    case kUnits: return TakeUnits(in, state);
    case kDirty: return TakeDirty(in, state);
    case kOperation: return TakeOperation(in, state);
    case kAcknowledged: return TakeAcknowledged(in, state);
    case kDone: return TakeDone(in, state);
    case kUntold: return TakeUntold(in, state);
    case kTold: state->untold = {}; return true;
    case kAbsent: return TakeAbsent(in, state);
    case kNoAbsent: state->absent.clear(); return true;
    case kPlaces: return TakePlaces(in, state);
    case kClaim: return TakeClaim(in, state);
    case kDropped:
      if (!in->Number(&number)) return false;
      state->operations.erase(number);
      return true;
    default: return false;
  }
}

}  // namespace

uint32_t Crc32c(std::string_view data, uint32_t seed) {
  uint32_t crc = ~seed;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) return ~CrcByInstruction(data, crc);
#endif
  for (const char c : data) crc = kCrcTable[(crc ^ static_cast<unsigned char>(c)) & 0xff] ^ crc >> 8;
  return ~crc;
}

bool ApplyFrame(std::string_view body, LiveState* state) {
  Taker in(body);
  while (!in.empty()) {
    uint8_t tag = 0;
    if (!in.Number(&tag) || !TakeRecord(tag, &in, state)) return false;
  }
  return true;
}

// --- writing ---------------------------------------------------------------------------------------------------------

void LiveFrame::Header(const LiveState& state) {
  PutTag(&body_, kHeader);
  PutText(&body_, state.tree.view());
  PutNumber(&body_, state.acknowledged);
  PutNumber(&body_, state.next_operation);
  PutNumber(&body_, state.next_node);
  PutNumber(&body_, state.next_cookie);
  PutNumber(&body_, state.next_file);
}

void LiveFrame::Node(const LiveNode& node, uint64_t file) {
  const auto boolean = [this](bool value) { PutNumber(&body_, static_cast<uint8_t>(value ? 1 : 0)); };
  PutTag(&body_, kNode);
  PutNumber(&body_, node.nodeid);
  PutAttributes(&body_, node.attributes);
  boolean(node.in_home_tree());
  boolean(node.change != 0);
  boolean(node.named_at_home());
  PutNumber(&body_, file);
  PutText(&body_, node.target);
  PutXattrs(&body_, node.xattrs);
  PutNumber(&body_, node.operation);
  PutVersion(&body_, node.at_home);
  PutVersion(&body_, node.version);
  PutId(&body_, node.known_id);
  boolean(node.home_path != nullptr);
  PutText(&body_, node.home_path ? *node.home_path : "");
  boolean(node.directory != nullptr);
  if (node.directory == nullptr) return;
  boolean(node.directory->has_lower);
  PutText(&body_, node.directory->digest.view());
}

void LiveFrame::Gone(uint64_t nodeid) {
  PutTag(&body_, kGone);
  PutNumber(&body_, nodeid);
}

void LiveFrame::Name(uint64_t directory, std::string_view name, const LiveSavedName* entry) {
  PutTag(&body_, entry != nullptr ? kName : kNoName);
  PutNumber(&body_, directory);
  PutText(&body_, name);
  if (entry == nullptr) return;
  PutNumber(&body_, entry->node);
  PutNumber(&body_, entry->cookie);
  PutNumber(&body_, entry->operation);
}

void LiveFrame::File(const LiveFileState& file) {
  PutTag(&body_, kFile);
  PutNumber(&body_, file.id);
  PutNumber(&body_, file.dirty);
  PutNumber(&body_, file.published);
  PutNumber(&body_, static_cast<uint8_t>(file.incomplete ? 1 : 0));
  PutVersion(&body_, file.lower);
  PutText(&body_, file.lower_tree.view());
  PutText(&body_, file.lower_path);
  PutNumber(&body_, file.lower_size);
  std::string present;
  for (const bool unit : file.present) present += unit ? '\1' : '\0';
  PutText(&body_, present);
}

void LiveFrame::Units(uint64_t file, uint64_t first, uint64_t end, uint64_t lower_size) {
  PutTag(&body_, kUnits);
  PutNumber(&body_, file);
  PutNumber(&body_, first);
  PutNumber(&body_, end);
  PutNumber(&body_, lower_size);
}

void LiveFrame::Dirty(uint64_t file, uint64_t generation) {
  PutTag(&body_, kDirty);
  PutNumber(&body_, file);
  PutNumber(&body_, generation);
}

void LiveFrame::Operation(const LiveOperation& op) {
  PutTag(&body_, kOperation);
  PutNumber(&body_, op.number);
  PutNumber(&body_, static_cast<uint8_t>(op.kind));
  PutNumber(&body_, op.node);
  PutNumber(&body_, static_cast<uint8_t>(op.born ? 1 : 0));
  PutNumber(&body_, op.other);
  PutText(&body_, op.path);
  PutText(&body_, op.from);
  PutAttributes(&body_, op.attributes);
  PutXattrs(&body_, op.xattrs);
  // (A kPut has no target: its slot in the layout holds `linked`, which was added later.)
  PutText(&body_, op.linked != 0 ? std::to_string(op.linked) : op.target);
  PutVersion(&body_, op.base);
  PutNumber(&body_, op.content.file);
  PutNumber(&body_, op.content.generation);
  PutNumber(&body_, op.content.aside);
  PutNumber(&body_, op.content.size);
  PutNumber(&body_, op.content.over | (op.exclusive ? kExclusive : 0));
  PutNumber(&body_, static_cast<uint32_t>(op.content.ranges.size()));
  for (const ByteRange& range : op.content.ranges) {
    PutNumber(&body_, range.offset);
    PutNumber(&body_, range.length);
  }
}

void LiveFrame::Dropped(uint64_t number) {
  PutTag(&body_, kDropped);
  PutNumber(&body_, number);
}

void LiveFrame::Done(uint64_t unique, uint64_t node) {
  PutTag(&body_, kDone);
  PutNumber(&body_, unique);
  PutNumber(&body_, node);
}

void LiveFrame::Claim(uint64_t unique, const LiveSavedClaim& claim) {
  PutTag(&body_, kClaim);
  PutNumber(&body_, unique);
  PutNumber(&body_, claim.number);
  PutNumber(&body_, claim.directory);
  PutText(&body_, claim.name);
  PutNumber(&body_, static_cast<uint8_t>(claim.state));
}

void LiveFrame::Untold(const LiveNotices& notices) {
  const auto numbers = [this](const std::vector<uint64_t>& all) {
    PutNumber(&body_, static_cast<uint32_t>(all.size()));
    for (const uint64_t one : all) PutNumber(&body_, one);
  };
  PutTag(&body_, kUntold);
  PutNumber(&body_, static_cast<uint32_t>(notices.names.size()));
  for (const auto& [directory, name] : notices.names) {
    PutNumber(&body_, directory);
    PutText(&body_, name);
  }
  numbers(notices.listings);
  numbers(notices.attributes);
}

void LiveFrame::Told() { PutTag(&body_, kTold); }

void LiveFrame::Absent(uint64_t directory, std::string_view name) {
  PutTag(&body_, kAbsent);
  PutNumber(&body_, directory);
  PutText(&body_, name);
}

void LiveFrame::NoAbsent() { PutTag(&body_, kNoAbsent); }

void LiveFrame::Places(const LiveNode& directory) {
  const LiveDirectory& of = *directory.directory;
  PutTag(&body_, kPlaces);
  PutNumber(&body_, directory.nodeid);
  PutText(&body_, of.digest.view());
  PutNumber(&body_, of.next_place);
  const size_t runs_at = body_.size();
  uint32_t runs = 0;
  PutNumber(&body_, runs);
  for (size_t i = 0; i < of.places.size(); ++runs) {
    const auto [place, index] = of.places[i];
    uint32_t length = 1;
    for (++i; i < of.places.size() && of.places[i] == std::pair(place + length, index + length); ++i) ++length;
    PutNumber(&body_, place);
    PutNumber(&body_, index);
    PutNumber(&body_, length);
  }
  std::memcpy(body_.data() + runs_at, &runs, sizeof runs);
}

void LiveFrame::Acknowledged(uint64_t number) {
  PutTag(&body_, kAcknowledged);
  PutNumber(&body_, number);
}

}  // namespace vrun::vfs
