// SPDX-License-Identifier: Apache-2.0
#include "snapshots/vault.h"

#include <algorithm>
#include <atomic>
#include <optional>

#include "base/escape.h"
#include "base/log.h"
#include "base/thread/mutex.h"

namespace vrun::snapshots {
namespace {

constexpr uint32_t kVersion = 1;
constexpr uint64_t kPackBytes = 4u << 20;
constexpr size_t kPacksOfIndex = 1024;
constexpr size_t kMaxSmallIndexes = 32;
constexpr size_t kAtATime = 8;  // packs in transfer, in memory: 4 MiB each, twice
constexpr uint32_t kPackPieces = kPackBytes / kPartBytes;
constexpr uint32_t kMostAhead = 8 * kPackPieces;
constexpr size_t kReaders = 4096;
constexpr char kCatalog[] = "catalog";

std::string PackName(uint64_t number) { return "pack " + std::to_string(number); }
std::string IndexName(uint64_t number) { return "index " + std::to_string(number); }

Error Lost(const std::string& what) {
  return Error(Code::kCorrupt, "the S3 store: " + what + ": the snapshots stored there are damaged");
}

Error NotThere() { return Error(Code::kNotFound, "the S3 store does not have it"); }

void Unname(const std::vector<std::string>& names, v1::VaultCatalog* catalog) {
  auto* all = catalog->mutable_snapshot();
  const auto gone = std::remove_if(all->begin(), all->end(), [&](const v1::SnapshotInfo& s) {
    return std::find(names.begin(), names.end(), s.reference().name()) != names.end();
  });
  all->erase(gone, all->end());
}

// Runs a limited number of functions at a time on a queue, and keeps the first error.
class Together {
 public:
  Together(WorkQueue* queue, size_t most) : queue_(queue), most_(most) {}
  ~Together() { (void)Wait(); }

  // Waits for room. False: one has failed, so stop.
  bool Start(std::function<Status()> work) {
    MutexLock lock(mu_);
    changed_.wait(lock, [&]() VRUN_REQUIRES(mu_) { return under_way_ < most_; });
    if (failed_) return false;
    ++under_way_;
    queue_->Post([this, work = std::move(work)] {
      Status done = work();
      MutexLock guard(mu_);
      if (!done && !failed_) failed_ = std::move(done).error();
      --under_way_;
      changed_.notify_all();
    });
    return true;
  }
  Status Wait() {
    MutexLock lock(mu_);
    changed_.wait(lock, [&]() VRUN_REQUIRES(mu_) { return under_way_ == 0; });
    if (failed_) return *failed_;
    return {};
  }

 private:
  WorkQueue* const queue_;
  const size_t most_;
  Mutex mu_;
  CondVar changed_;
  size_t under_way_ VRUN_GUARDED_BY(mu_) = 0;
  std::optional<Error> failed_ VRUN_GUARDED_BY(mu_);
};

}  // namespace

Vault::Vault(store::Store* store, std::string bucket, SealedObjects::Presign presign, std::string owner,
             std::string store_id, std::function<bool()> make_room)
    : store_(store),
      bucket_(std::move(bucket)),
      store_id_(store_id),
      objects_(std::move(owner), std::move(store_id), std::move(presign)),
      make_room_(std::move(make_room)) {}

Vault::~Vault() {
  ahead_.Stop();
  transfers_.Stop();
}

bool Vault::is_open() const {
  MutexLock lock(mu_);
  return open_;
}

// --- catalog and indexes

Status Vault::Open() {
  v1::VaultCatalog catalog;
  auto bytes = objects_.Get(kCatalog);
  if (!bytes && bytes.error().code() != Code::kNotFound) return std::move(bytes).error();
  if (bytes && !catalog.ParseFromString(*bytes)) return Lost("a catalog does not parse");
  if (bytes && catalog.version() != kVersion) {
    return Error(Code::kUnsupported, "the S3 store: its snapshots were written by another version of vrun: update it");
  }
  catalog.set_version(kVersion);
  Indexes indexes;
  Packs packs;
  VRUN_TRY(ReadIndexes(catalog, &indexes, &packs));
  Use(std::move(catalog), std::move(indexes), std::move(packs));
  doubtful_ = false;
  Clean();
  return {};
}

Status Vault::ReadIndexes(const v1::VaultCatalog& catalog, Indexes* indexes, Packs* packs) {
  Mutex together;
  Together reads(&transfers_, kAtATime);
  for (const uint64_t number : catalog.index()) {
    const bool going = reads.Start([this, number, indexes, packs, &together]() -> Status {
      VRUN_ASSIGN(const std::string bytes, objects_.Get(IndexName(number)));
      v1::VaultIndex index;
      if (!index.ParseFromString(bytes)) return Lost("an index does not parse");
      MutexLock lock(together);
      for (const v1::VaultPack& listed : index.pack()) {
        Pack& pack = (*packs)[listed.number()];
        for (const v1::VaultPiece& p : listed.piece()) {
          Piece piece{{}, p.size(), p.index()};
          if (const auto blob = Digest::FromBytes(p.id()))
            piece.id = DirectoryId(*blob);
          else if (const auto id = store::ObjectId::Decode(p.id()); id && id->algorithm != piece.id.algorithm)
            piece.id = *id;
          else
            return Lost("an index has an invalid digest");
          if (piece.index >= PiecesOf(piece.size)) return Lost("an index has an impossible piece");
          pack.pieces.push_back(piece);
        }
        pack.salt = listed.salt();
        if (pack.pieces.empty() || pack.pieces.size() > kMaxParts) return Lost("an index has an impossible pack");
        (*indexes)[number].push_back(listed.number());
      }
      return {};
    });
    if (!going) break;
  }
  auto read = reads.Wait();
  if (!read && read.error().code() == Code::kNotFound) return Lost("an index is missing");
  return read;
}

void Vault::Use(v1::VaultCatalog catalog, Indexes indexes, Packs packs) {
  catalog_ = std::move(catalog);
  indexes_ = std::move(indexes);
  MutexLock lock(mu_);
  packs_.clear();
  where_.clear();
  directory_sizes_.clear();
  IncludeLocked(std::move(packs));
  open_ = true;
}

void Vault::IncludeLocked(Packs fresh) {
  for (const auto& [number, pack] : fresh) {
    for (const Piece& piece : pack.pieces) {
      where_[piece] = number;
      if (piece.directory()) directory_sizes_[piece.id] = piece.size;
    }
  }
  packs_.merge(fresh);
}

Status Vault::PutCatalog(const Indexes& indexes, v1::VaultCatalog* next) {
  if (next->store_id().empty()) next->set_store_id(store_id_);
  next->clear_index();
  for (const auto& [number, of] : indexes) next->add_index(number);
  const Status put = objects_.Put(kCatalog, next->SerializeAsString());
  doubtful_ = !put;  // it may have been stored all the same
  return put;
}

void Vault::Clean() {
  if (catalog_.doomed_size() == 0) return;
  // Deletions that failed are retried at the next start and with the next change.
  const auto gone = objects_.Delete({catalog_.doomed().begin(), catalog_.doomed().end()});
  if (gone)
    catalog_.clear_doomed();
  else
    LogWarning("snapshots in the S3 store: {}: unneeded objects stay there until the next try", gone.error().message());
}

// --- changes

Status Vault::Add(const v1::SnapshotInfo& info, const Contents& contents, const Progress& progress) {
  VRUN_CHECK(!doubtful_);
  std::vector<std::pair<store::ObjectId, uint64_t>> wanted;
  for (const Digest& blob : contents.directories) {
    {
      MutexLock lock(mu_);
      if (directory_sizes_.contains(DirectoryId(blob))) continue;
    }
    VRUN_ASSIGN(const std::string bytes, store_->GetBlob(blob));
    wanted.emplace_back(DirectoryId(blob), bytes.size());
  }
  wanted.insert(wanted.end(), contents.objects.begin(), contents.objects.end());
  std::vector<Piece> missing;
  for (const auto& [id, size] : wanted) {
    for (uint32_t i = 0; i < PiecesOf(size); ++i) {
      MutexLock lock(mu_);
      if (const Piece piece{id, size, i}; !where_.contains(piece)) missing.push_back(piece);
    }
  }
  v1::VaultCatalog next = catalog_;
  Indexes indexes = indexes_;
  Packs fresh;
  uint64_t number = catalog_.next_number();
  VRUN_TRY(Upload(missing, &number, &indexes, &fresh, progress));
  VRUN_TRY(MergeIndexes(fresh, &number, &indexes, &next));
  next.set_next_number(number);
  Unname({info.reference().name()}, &next);
  *next.add_snapshot() = info;
  VRUN_TRY(PutCatalog(indexes, &next));
  catalog_ = std::move(next);
  indexes_ = std::move(indexes);
  {
    MutexLock lock(mu_);
    IncludeLocked(std::move(fresh));
  }
  Clean();
  return {};
}

// Each snapshot adds a small index, and whoever opens the vault reads them all.
Status Vault::MergeIndexes(const Packs& fresh, uint64_t* next, Indexes* indexes, v1::VaultCatalog* catalog) {
  std::vector<uint64_t> small, packs;
  for (const auto& [number, of] : *indexes) {
    if (of.size() > kPacksOfIndex / 2 || packs.size() + of.size() > kPacksOfIndex) continue;
    small.push_back(number);
    packs.insert(packs.end(), of.begin(), of.end());
  }
  if (small.size() <= kMaxSmallIndexes) return {};
  VRUN_TRY(UploadIndex(*next, packs, fresh));
  for (const uint64_t number : small) {
    indexes->erase(number);
    catalog->add_doomed(IndexName(number));
  }
  (*indexes)[(*next)++] = std::move(packs);
  return {};
}

Status Vault::Remove(const std::vector<std::string>& names, const Contents* needed) {
  VRUN_CHECK(!doubtful_);
  v1::VaultCatalog next = catalog_;
  Unname(names, &next);
  if (needed == nullptr) {
    VRUN_TRY(PutCatalog(indexes_, &next));
    catalog_ = std::move(next);
    return {};
  }
  const auto live = [&](const Piece& piece) {
    return piece.directory() ? needed->directory_set.contains(piece.id.digest) : needed->object_set.contains(piece.id);
  };
  // When less than half of a pack is needed, that part moves to a new pack.
  Packs packs;
  std::unordered_set<uint64_t> dead;
  std::vector<Piece> moved;
  for (const auto& [number, pack] : packs_) {
    uint64_t all = 0, alive = 0;
    for (const Piece& piece : pack.pieces) {
      all += piece.bytes();
      if (live(piece)) alive += piece.bytes();
    }
    if (2 * alive >= all) {
      packs[number] = pack;
      continue;
    }
    dead.insert(number);
    next.add_doomed(PackName(number));
    std::copy_if(pack.pieces.begin(), pack.pieces.end(), std::back_inserter(moved), live);
  }
  uint64_t number = catalog_.next_number();
  Indexes indexes;
  for (auto [old, of] : indexes_) {
    if (std::erase_if(of, [&](uint64_t n) { return dead.contains(n); }) == 0) {
      indexes[old] = std::move(of);
      continue;
    }
    next.add_doomed(IndexName(old));
    if (of.empty()) continue;
    VRUN_TRY(UploadIndex(number, of, {}));
    indexes[number++] = std::move(of);
  }
  VRUN_TRY(Upload(moved, &number, &indexes, &packs, nullptr));
  next.set_next_number(number);
  VRUN_TRY(PutCatalog(indexes, &next));
  Use(std::move(next), std::move(indexes), std::move(packs));
  Clean();
  return {};
}

Status Vault::Upload(const std::vector<Piece>& pieces, uint64_t* next, Indexes* indexes, Packs* packs,
                     const Progress& progress) {
  uint64_t total = 0;
  for (const Piece& piece : pieces) total += piece.bytes();
  std::atomic<uint64_t> saved = 0;
  std::vector<uint64_t> fresh;
  {
    Together uploads(&transfers_, kAtATime);
    for (size_t at = 0; at < pieces.size();) {
      const uint64_t number = (*next)++;
      fresh.push_back(number);
      Pack* const pack = &(*packs)[number];
      uint64_t bytes = 0;
      // Directories are packed separately: a store with an empty disk reads all of them, but content only on request.
      for (; at < pieces.size() && pack->pieces.size() < kMaxParts && bytes + pieces[at].bytes() <= kPackBytes &&
             (pack->pieces.empty() || pack->pieces.front().directory() == pieces[at].directory());
           ++at) {
        bytes += pieces[at].bytes();
        pack->pieces.push_back(pieces[at]);
      }
      const bool going = uploads.Start([this, number, pack, bytes, total, &saved, &progress]() -> Status {
        VRUN_ASSIGN(pack->salt, UploadPack(number, pack->pieces));
        if (progress && !progress(saved += bytes, total)) return Error(Code::kAborted, "snapshot: home has gone");
        return {};
      });
      if (!going) break;
    }
    VRUN_TRY(uploads.Wait());
  }
  for (size_t at = 0; at < fresh.size(); at += kPacksOfIndex) {
    const auto begin = fresh.begin() + static_cast<ptrdiff_t>(at);
    const std::vector<uint64_t> some(begin, begin + static_cast<ptrdiff_t>(std::min(kPacksOfIndex, fresh.size() - at)));
    VRUN_TRY(UploadIndex(*next, some, *packs));
    (*indexes)[(*next)++] = some;
  }
  return {};
}

Result<std::string> Vault::UploadPack(uint64_t number, const std::vector<Piece>& pieces) {
  std::vector<std::string> data;
  std::vector<std::string_view> parts;
  data.reserve(pieces.size());
  for (const Piece& piece : pieces) {
    VRUN_ASSIGN(std::string bytes, ReadPiece(piece));
    data.push_back(std::move(bytes));
    parts.push_back(data.back());
  }
  return objects_.PutParts(PackName(number), parts);
}

Status Vault::UploadIndex(uint64_t number, const std::vector<uint64_t>& numbers, const Packs& fresh) {
  v1::VaultIndex index;
  for (const uint64_t pack : numbers) {
    v1::VaultPack* listed = index.add_pack();
    listed->set_number(pack);
    const auto it = fresh.find(pack);
    const Pack& what = it != fresh.end() ? it->second : packs_.at(pack);
    listed->set_salt(what.salt);
    for (const Piece& piece : what.pieces) {
      v1::VaultPiece* p = listed->add_piece();
      p->set_id(piece.directory() ? std::string(piece.id.digest.view()) : piece.id.Encode());
      p->set_size(piece.size);
      p->set_index(piece.index);
    }
  }
  return objects_.Put(IndexName(number), index.SerializeAsString());
}

// From the disk; pieces that move to another pack may have to be fetched from the bucket first.
Result<std::string> Vault::ReadPiece(const Piece& piece) {
  if (piece.directory()) {
    auto bytes = store_->GetBlob(piece.id.digest);
    if (!bytes) {
      VRUN_TRY(FetchDirectory(piece.id.digest));
      bytes = store_->GetBlob(piece.id.digest);
    }
    if (!bytes) return std::move(bytes).error();
    return bytes->substr(piece.offset(), piece.bytes());
  }
  VRUN_ASSIGN(const std::shared_ptr<store::Object> object, store_->Acquire(piece.id, piece.size));
  std::string bytes(piece.bytes(), '\0');
  for (int turn = 0;; ++turn) {
    const auto read = object->Read(piece.offset(), bytes.data(), bytes.size());
    if (read && *read == bytes.size()) return bytes;
    if (turn > 0 || (!read && read.error().code() != Code::kNotFound))
      return read ? Error(Code::kCorrupt, "the snapshot store: content on its disk is truncated") : read.error();
    uint64_t pack;
    {
      MutexLock lock(mu_);
      const auto it = where_.find(piece);
      if (it == where_.end()) return Error(Code::kCorrupt, "the snapshot store: content is missing on its disk");
      pack = it->second;
    }
    VRUN_TRY(Restore(pack));
  }
}

// --- reading

bool Vault::Has(const store::ObjectId& id, uint64_t size) const {
  MutexLock lock(mu_);
  for (uint32_t i = 0; i < PiecesOf(size); ++i) {
    if (!where_.contains(Piece{id, size, i})) return false;
  }
  return true;
}

Status Vault::Fetch(const store::ObjectId& id, uint64_t size, uint64_t offset, uint64_t length) {
  if (offset >= size || length == 0) return {};
  const uint64_t end = length > size - offset ? size : offset + length;
  const PieceRange wanted{static_cast<uint32_t>(offset / kPartBytes), PiecesOf(end)};
  for (const PieceRange& ahead : ReadOn(id, size, wanted)) {
    ahead_.Post([this, id, size, ahead] { (void)FetchPieces(id, size, ahead); });
  }
  return FetchPieces(id, size, wanted);
}

std::vector<Vault::PieceRange> Vault::ReadOn(const store::ObjectId& id, uint64_t size, PieceRange pieces) {
  MutexLock lock(mu_);
  if (readers_.size() >= kReaders) readers_.clear();
  Reader& reader = readers_[id];
  // The rest of a pack came with its piece.
  const bool reads_on = pieces.first > 0 && pieces.first + reader.window + kPackPieces >= reader.next &&
                        pieces.first <= reader.next + kPackPieces;
  reader.window = reads_on ? std::clamp(2 * reader.window, kPackPieces, kMostAhead) : 0;
  reader.next = std::min(pieces.end + reader.window, PiecesOf(size));
  std::vector<PieceRange> ahead;
  uint64_t last = 0;
  for (uint32_t i = pieces.end; i < reader.next; ++i) {
    const auto it = where_.find(Piece{id, size, i});
    if (it == where_.end()) break;
    if (!ahead.empty() && it->second == last)
      ahead.back().end = i + 1;
    else
      ahead.push_back({i, i + 1});
    last = it->second;
  }
  return ahead;
}

bool Vault::OnDisk(const store::ObjectId& id, uint64_t size, PieceRange pieces) const {
  const auto object = store_->Acquire(id, size);
  return object && (*object)->Has(pieces.first * kPartBytes, (pieces.end - pieces.first) * kPartBytes);
}

Status Vault::FetchPieces(const store::ObjectId& id, uint64_t size, PieceRange pieces) {
  // Twice: a pack may be removed during the request, with its needed pieces moved to another.
  Status fetched;
  for (int turn = 0; turn < 2; ++turn) {
    std::vector<std::pair<uint64_t, PieceRange>> packs;
    {
      MutexLock lock(mu_);
      for (uint32_t i = pieces.first; i < pieces.end; ++i) {
        if (OnDisk(id, size, {i, i + 1})) continue;
        const auto it = where_.find(Piece{id, size, i});
        if (it == where_.end()) return NotThere();
        if (packs.empty() || packs.back().first != it->second) packs.push_back({it->second, {i, i}});
        packs.back().second.end = i + 1;
      }
    }
    Together reads(&transfers_, kAtATime);
    for (const auto& [pack, range] : packs) {
      const auto needed = [this, id, size, range = range] { return !OnDisk(id, size, range); };
      if (!reads.Start([this, pack = pack, needed] { return Restore(pack, needed); })) break;
    }
    fetched = reads.Wait();
    if (fetched && OnDisk(id, size, pieces)) return {};
  }
  if (!fetched) return fetched;
  return Lost("content does not match its digest");
}

Status Vault::FetchDirectory(const Digest& blob) {
  const store::ObjectId id = DirectoryId(blob);
  std::vector<uint64_t> packs;
  std::string bytes;
  {
    MutexLock lock(mu_);
    const auto size = directory_sizes_.find(id);
    if (size == directory_sizes_.end()) return NotThere();
    for (uint32_t i = 0; i < PiecesOf(size->second); ++i) {
      const auto it = where_.find(Piece{id, size->second, i});
      if (it == where_.end()) return NotThere();
      if (packs.empty() || packs.back() != it->second) packs.push_back(it->second);
    }
    bytes.resize(size->second);
  }
  for (const uint64_t pack : packs) {
    VRUN_TRY(Restore(pack, nullptr, [&](const Piece& piece, const std::string& data) {
      if (piece.id == id) bytes.replace(piece.offset(), data.size(), data);
    }));
  }
  if (Sha256(bytes) != blob) return Lost("a directory does not match its digest");
  return store_->PutBlob(blob, bytes);
}

void Vault::FetchDirectories() {
  Packs packs;
  {
    MutexLock lock(mu_);
    packs = packs_;
  }
  Together reads(&transfers_, kAtATime);
  for (const auto& [number, pack] : packs) {
    const bool lacks = std::any_of(pack.pieces.begin(), pack.pieces.end(), [&](const Piece& piece) {
      return piece.directory() && !store_->GetBlob(piece.id.digest);
    });
    if (lacks && !reads.Start([this, number = number] { return Restore(number); })) return;
  }
}

Status Vault::Restore(uint64_t number, const std::function<bool()>& needed, const PieceCome& piece_come) {
  Pack pack;
  {
    MutexLock lock(mu_);
    if (restoring_.contains(number) && !piece_come) {
      restored_.wait(lock, [&]() VRUN_REQUIRES(mu_) { return !restoring_.contains(number); });
      return {};
    }
    const auto it = packs_.find(number);
    if (it == packs_.end()) return NotThere();
    pack = it->second;
    restoring_.insert(number);
  }
  const Status restored = [&]() -> Status {
    if (needed && !needed()) return {};
    std::vector<uint64_t> lengths;
    for (const Piece& piece : pack.pieces) lengths.push_back(piece.bytes());
    VRUN_ASSIGN(const std::vector<std::string> parts, objects_.GetParts(PackName(number), pack.salt, lengths));
    for (size_t i = 0; i < pack.pieces.size(); ++i) {
      Status kept = Keep(pack.pieces[i], parts[i]);
      for (int turn = 0; turn < 2 && !kept && kept.error().code() == Code::kExhausted && make_room_(); ++turn) {
        kept = Keep(pack.pieces[i], parts[i]);
      }
      if (!kept) return std::move(kept).error().With("the snapshot store's disk");
      if (piece_come) piece_come(pack.pieces[i], parts[i]);
    }
    return {};
  }();
  MutexLock lock(mu_);
  restoring_.erase(number);
  restored_.notify_all();
  return restored;
}

Status Vault::Keep(const Piece& piece, const std::string& data) {
  if (piece.directory()) {
    // Content of several pieces is assembled by whoever needs it.
    if (piece.bytes() < piece.size || Sha256(data) != piece.id.digest) return {};
    return store_->PutBlob(piece.id.digest, data);
  }
  VRUN_ASSIGN(const std::shared_ptr<store::Object> object, store_->Acquire(piece.id, piece.size));
  if (object->Has(piece.offset(), piece.bytes())) return {};
  const uint64_t unit = store::UnitBytes(piece.size);
  std::vector<store::PutUnit> units;
  for (uint64_t at = 0; at < data.size(); at += unit) {
    const std::string_view bytes = std::string_view(data).substr(at, unit);
    units.push_back({store::UnitDigest(bytes), bytes});
  }
  return object->Put(piece.offset() / unit, units, true);
}

}  // namespace vrun::snapshots
