// SPDX-License-Identifier: Apache-2.0
// An owner's snapshots in the pool's S3 store: everything that they need, so that a snapshot store with an empty disk
// has all of them. Its own disk is a cache then (docs/decisions/0030).
//
// In the bucket (proto/vault.proto): packs, each of up to 256 pieces and 4 MiB of content and directories; indexes,
// which say what is in which pack; and the catalog, which names the snapshots and the indexes that count. Only the
// catalog is ever overwritten, and last: until then nothing has happened. What an attempt that failed has left has
// numbers that the next one uses again.
//
// A piece is believed when it opens under the owner's key, the name of its pack and the salt that the index has of it:
// a part of a content is served before the rest is here. What is whole is checked against its own name by the disk
// store besides.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/hash/digest.h"
#include "base/io/work_queue.h"
#include "base/result.h"
#include "proto/vault.pb.h"
#include "snapshots/manifest.h"
#include "snapshots/sealed_objects.h"
#include "store/format/object_id.h"
#include "store/store.h"

namespace vrun::snapshots {

class Vault {
 public:
  // Bytes of content on their way, and of all. False: nobody waits any more.
  using Progress = std::function<bool(uint64_t saved, uint64_t total)>;

  // `store` outlives it. `bucket`: for people.
  // `make_room`: the disk is full; true: something that is in the bucket has gone from it. Any thread.
  Vault(store::Store* store, std::string bucket, SealedObjects::Presign presign, std::string owner,
        std::string store_id, std::function<bool()> make_room);
  ~Vault();

  // One thread at a time, all five. Blocking.
  // Reads what there is; again after an error, and nothing else but that may be called before. A bucket that has
  // nothing of this owner is fine.
  Status Open();
  // The answer to a change of the catalog was lost: it may be another one. Whoever goes by what it was opens it again.
  bool doubtful() const { return doubtful_; }
  const v1::VaultCatalog& catalog() const { return catalog_; }
  // Not while it is doubtful:
  // Saves what is not there yet, then names the snapshot in the catalog, instead of one of that name. After an error
  // nothing has changed, unless it is doubtful: then it may be whole there.
  Status Add(const v1::SnapshotInfo& info, const Contents& contents, const Progress& progress);
  // Takes these out of the catalog, then removes what the others do not need; nullptr: that is not known, and all
  // stays.
  Status Remove(const std::vector<std::string>& names, const Contents* needed);

  // Any thread.
  bool is_open() const;
  const std::string& bucket() const { return bucket_; }
  // All of it is there.
  bool Has(const store::ObjectId& id, uint64_t size) const;
  // Brings what the disk lacks of bytes [offset, offset+length) of it to the disk, with what is packed beside it, and
  // for who reads on from there what follows, ahead of him. Blocks. kNotFound: it is not there.
  Status Fetch(const store::ObjectId& id, uint64_t size, uint64_t offset, uint64_t length);
  Status FetchDirectory(const Digest& blob);
  // All directories that the disk lacks, several at a time. Those that do not come are asked for again one by one.
  void FetchDirectories();

 private:
  struct Piece {
    store::ObjectId id;  // of a directory: provisional, which no content here ever is
    uint64_t size = 0;
    uint32_t index = 0;
    bool operator==(const Piece&) const = default;
    uint64_t offset() const { return index * kPartBytes; }
    uint64_t bytes() const { return std::min(kPartBytes, size - offset()); }
    bool directory() const { return id.algorithm == store::IdAlgorithm::kProvisional; }
  };
  struct PieceHash {
    size_t operator()(const Piece& p) const { return store::ObjectIdHash()(p.id) + p.index * 0x9e3779b97f4a7c15u; }
  };
  struct Pack {
    std::string salt;  // of the object; empty: it was written before salts were noted
    std::vector<Piece> pieces;
  };
  using Packs = std::map<uint64_t, Pack>;                     // by number
  using Indexes = std::map<uint64_t, std::vector<uint64_t>>;  // the packs of each
  using PieceCome = std::function<void(const Piece&, const std::string& data)>;

  // Who reads one content from front to back.
  struct Reader {
    uint32_t next = 0;    // piece after all that was asked for
    uint32_t window = 0;  // pieces of that nobody waited for
  };
  struct PieceRange {
    uint32_t first, end;
  };

  static uint32_t PiecesOf(uint64_t size) { return static_cast<uint32_t>((size + kPartBytes - 1) / kPartBytes); }
  static store::ObjectId DirectoryId(const Digest& blob) { return {store::IdAlgorithm::kProvisional, blob}; }

  Status ReadIndexes(const v1::VaultCatalog& catalog, Indexes* indexes, Packs* packs);
  // All that counts from now on.
  void Use(v1::VaultCatalog catalog, Indexes indexes, Packs packs);
  void IncludeLocked(Packs fresh);
  Status PutCatalog(const Indexes& indexes, v1::VaultCatalog* next);
  Status MergeIndexes(const Packs& fresh, uint64_t* next, Indexes* indexes, v1::VaultCatalog* catalog);
  // Removes the doomed.
  void Clean();

  // Uploads these in new packs, and the indexes of those, and adds both; numbers from *next on.
  Status Upload(const std::vector<Piece>& pieces, uint64_t* next, Indexes* indexes, Packs* packs,
                const Progress& progress);
  Result<std::string> UploadPack(uint64_t number, const std::vector<Piece>& pieces);  // the salt
  // Of packs that are in `fresh`, or in use.
  Status UploadIndex(uint64_t number, const std::vector<uint64_t>& numbers, const Packs& fresh);
  Result<std::string> ReadPiece(const Piece& piece);

  // No object is held here while there may be no room for it: then it may have to give way itself.
  bool OnDisk(const store::ObjectId& id, uint64_t size, PieceRange pieces) const;
  Status FetchPieces(const store::ObjectId& id, uint64_t size, PieceRange pieces);
  // Somebody waits for these. What is brought ahead of him: one range a pack.
  std::vector<PieceRange> ReadOn(const store::ObjectId& id, uint64_t size, PieceRange pieces);

  // All that is in the pack to the disk, but for directories of several pieces; `piece_come` gets those too. `needed`:
  // asked when nobody else is doing it (or has just done it).
  Status Restore(uint64_t number, const std::function<bool()>& needed = nullptr, const PieceCome& piece_come = nullptr);
  Status Keep(const Piece& piece, const std::string& data);

  store::Store* const store_;
  const std::string bucket_, store_id_;
  SealedObjects objects_;
  const std::function<bool()> make_room_;
  v1::VaultCatalog catalog_;  // of the one thread, as the next
  Indexes indexes_;
  bool doubtful_ = false;  // whether the catalog is the one that is there
  mutable std::mutex mu_;
  std::condition_variable restored_;
  bool open_ = false;                                     // guarded by mu_, as all below
  Packs packs_;                                           // changed on the one thread only
  std::unordered_map<Piece, uint64_t, PieceHash> where_;  // pack of each
  std::unordered_map<store::ObjectId, uint64_t, store::ObjectIdHash> directory_sizes_;
  std::unordered_set<uint64_t> restoring_;
  std::unordered_map<store::ObjectId, Reader, store::ObjectIdHash> readers_;
  WorkQueue transfers_{"vault", 6};
  WorkQueue ahead_{"vault-ahead", 3};
};

}  // namespace vrun::snapshots
