// SPDX-License-Identifier: Apache-2.0
// An owner's snapshots in the pool's S3 store, with everything that they need, so that a snapshot store with an empty
// disk has all of them. The local disk is then a cache (docs/decisions/0030).
//
// The bucket (proto/vault.proto) holds packs of up to 256 pieces and 4 MiB of content and directories, indexes that
// list the packs' contents, and the catalog, which names the snapshots and the valid indexes. Only the catalog is
// overwritten, and it is written last: that write commits the change. The next attempt reuses the object numbers of a
// failed one.
//
// A piece is valid if it opens under the owner's key, its pack's name and the salt in the index. So part of a content
// can be served before the rest arrives. The disk store also checks complete content against its own name.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/hash/digest.h"
#include "base/io/work_queue.h"
#include "base/result.h"
#include "base/thread/mutex.h"
#include "proto/vault.pb.h"
#include "snapshots/manifest.h"
#include "snapshots/sealed_objects.h"
#include "store/format/object_id.h"
#include "store/store.h"

namespace vrun::snapshots {

class Vault {
 public:
  // Content bytes saved, and the total. Return false to stop, because the caller is gone.
  using Progress = std::function<bool(uint64_t saved, uint64_t total)>;

  // `store` must outlive it. `bucket`: for messages. `make_room` is called on any thread when the disk is full; true:
  // something that the bucket also has was removed.
  Vault(store::Store* store, std::string bucket, SealedObjects::Presign presign, std::string owner,
        std::string store_id, std::function<bool()> make_room);
  ~Vault();

  // All five methods: one thread at a time, blocking. Open reads the catalog. After an error call it again; no other
  // method may be called before it succeeds. An empty bucket is allowed.
  Status Open();
  // The answer to a catalog write was lost, so the catalog may have changed. Call Open again before relying on it.
  bool doubtful() const { return doubtful_; }
  const v1::VaultCatalog& catalog() const { return catalog_; }
  // Not allowed while doubtful. Uploads what is missing, then adds the snapshot to the catalog, replacing one of that
  // name. After an error nothing has changed, unless the vault is doubtful: then the snapshot may be completely there.
  Status Add(const v1::SnapshotInfo& info, const Contents& contents, const Progress& progress);
  // Removes these from the catalog, then deletes what the others do not need. `needed` nullptr: unknown, so nothing is
  // deleted.
  Status Remove(const std::vector<std::string>& names, const Contents* needed);

  // Any thread.
  bool is_open() const;
  const std::string& bucket() const { return bucket_; }
  // Whether all of it is in the vault.
  bool Has(const store::ObjectId& id, uint64_t size) const;
  // Brings what the disk lacks of bytes [offset, offset+length) to the disk, together with the rest of its packs, and
  // reads ahead for sequential readers. Blocks. kNotFound: it is not in the vault.
  Status Fetch(const store::ObjectId& id, uint64_t size, uint64_t offset, uint64_t length);
  Status FetchDirectory(const Digest& blob);
  // Fetches all directories that the disk lacks, several at a time. Failed ones are fetched again individually later.
  void FetchDirectories();

 private:
  struct Piece {
    store::ObjectId id;  // for a directory: a provisional id, which content never has here
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
    std::string salt;  // salt of the object; empty: written before salts were recorded
    std::vector<Piece> pieces;
  };
  using Packs = std::map<uint64_t, Pack>;                     // by number
  using Indexes = std::map<uint64_t, std::vector<uint64_t>>;  // index number -> its packs
  using PieceCome = std::function<void(const Piece&, const std::string& data)>;

  // A sequential reader of one content.
  struct Reader {
    uint32_t next = 0;    // the piece after the last requested one
    uint32_t window = 0;  // read-ahead, in pieces
  };
  struct PieceRange {
    uint32_t first, end;
  };

  static uint32_t PiecesOf(uint64_t size) { return static_cast<uint32_t>((size + kPartBytes - 1) / kPartBytes); }
  static store::ObjectId DirectoryId(const Digest& blob) { return {store::IdAlgorithm::kProvisional, blob}; }

  Status ReadIndexes(const v1::VaultCatalog& catalog, Indexes* indexes, Packs* packs);
  // Replaces the current state.
  void Use(v1::VaultCatalog catalog, Indexes indexes, Packs packs);
  void IncludeLocked(Packs fresh) VRUN_REQUIRES(mu_);
  Status PutCatalog(const Indexes& indexes, v1::VaultCatalog* next);
  Status MergeIndexes(const Packs& fresh, uint64_t* next, Indexes* indexes, v1::VaultCatalog* catalog);
  // Deletes the doomed objects.
  void Clean();

  // Uploads these pieces in new packs, with indexes, and adds both; numbers start at *next.
  Status Upload(const std::vector<Piece>& pieces, uint64_t* next, Indexes* indexes, Packs* packs,
                const Progress& progress);
  Result<std::string> UploadPack(uint64_t number, const std::vector<Piece>& pieces);  // returns the salt
  // For packs in `fresh` or in use.
  Status UploadIndex(uint64_t number, const std::vector<uint64_t>& numbers, const Packs& fresh);
  Result<std::string> ReadPiece(const Piece& piece);

  // Holds no Object while the disk may be full, because that Object may have to be evicted itself.
  bool OnDisk(const store::ObjectId& id, uint64_t size, PieceRange pieces) const;
  Status FetchPieces(const store::ObjectId& id, uint64_t size, PieceRange pieces);
  // For pieces that a caller waits for: returns the read-ahead, one range per pack.
  std::vector<PieceRange> ReadOn(const store::ObjectId& id, uint64_t size, PieceRange pieces);

  // Writes everything in the pack to the disk, except directories of several pieces; `piece_come` gets those too.
  // `needed` is asked once no other thread is restoring the pack or has just done so.
  Status Restore(uint64_t number, const std::function<bool()>& needed = nullptr, const PieceCome& piece_come = nullptr);
  Status Keep(const Piece& piece, const std::string& data);

  store::Store* const store_;
  const std::string bucket_, store_id_;
  SealedObjects objects_;
  const std::function<bool()> make_room_;
  v1::VaultCatalog catalog_;  // only used by the one thread; so is the next
  Indexes indexes_;
  bool doubtful_ = false;  // whether the stored catalog may differ
  mutable Mutex mu_;
  CondVar restored_;
  bool open_ VRUN_GUARDED_BY(mu_) = false;
  Packs packs_;                                                                // changed only by the one thread
  std::unordered_map<Piece, uint64_t, PieceHash> where_ VRUN_GUARDED_BY(mu_);  // the pack of each piece
  std::unordered_map<store::ObjectId, uint64_t, store::ObjectIdHash> directory_sizes_ VRUN_GUARDED_BY(mu_);
  std::unordered_set<uint64_t> restoring_ VRUN_GUARDED_BY(mu_);
  std::unordered_map<store::ObjectId, Reader, store::ObjectIdHash> readers_ VRUN_GUARDED_BY(mu_);
  WorkQueue transfers_{"vault", 6};
  WorkQueue ahead_{"vault-ahead", 3};
};

}  // namespace vrun::snapshots
