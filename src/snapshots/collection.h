// SPDX-License-Identifier: Apache-2.0
// All snapshots of one owner. On disk, below its directory:
//   store/               content and directories (src/store), of which nothing is ever evicted
//   snapshots/NAME       a SnapshotInfo; appears by rename when all that it names is durable
//   store_id             of the snapshot store whose snapshots were taken over from the S3 store
// With a vault (vault.h) the S3 store has all of it too, and what is there counts: a disk that was lost is filled again
// from there, as it is used, and may be smaller than what is there.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/io/event_loop.h"
#include "base/result.h"
#include "proto/snapshots.pb.h"
#include "rpc/credentials.h"
#include "snapshots/capture.h"
#include "snapshots/realm.h"
#include "snapshots/vault.h"
#include "store/store.h"

namespace vrun::snapshots {

// A name: letters, digits, '.', '_' and '-', at most 128, a letter or digit first (what a tag of an image may be).
Status CheckName(const std::string& name);

// The S3 store that keeps an owner's snapshots.
struct VaultPlace {
  std::string bucket;
  std::string owner;
  SealedObjects::Presign presign;
  uint64_t disk_bytes = 0;  // so much of it stays on the disk; 0: all that was ever there
};

class Collection {
 public:
  // One snapshot in use: it cannot be deleted meanwhile.
  struct Snapshot {
    v1::SnapshotInfo info;
    tree::SnapshotPtr tree;
    Realm* realm = nullptr;
    home::SnapshotTable::Pin pin;  // served for as long as it exists
  };
  using SnapshotPtr = std::shared_ptr<const Snapshot>;

  // Makes the directory. `store_id`: of the whole snapshot store. Reads no snapshots yet.
  static Result<std::unique_ptr<Collection>> Open(EventLoop* loop, const std::string& directory,
                                                  const std::string& store_id, const rpc::Credentials& mine,
                                                  std::optional<VaultPlace> vault = std::nullopt);

  // Reads all snapshots; once, before anything but RealmOf and Tick. One that is damaged can only be deleted, and as
  // long as there is one no content is removed. A vault that is not reached is for Housekeep.
  Status Load();
  // What is not done at once: asks for a vault that was not reached, and takes from the disk what is too much there. As
  // Create and Delete.
  void Housekeep();

  // Any thread. Made when it is not there.
  Realm* RealmOf(const std::string& home_id);
  void Tick(int64_t now_micros);

  // Any thread, after Load.
  std::vector<v1::SnapshotInfo> List() const;
  // kUnavailable: there may be others in the S3 store, which was not reached yet.
  Status Readable() const;
  Result<SnapshotPtr> Find(const std::string& name) const;
  // By what it is; kNotFound when that name is another one now.
  Result<SnapshotPtr> Find(const v1::SnapshotReference& reference) const;

  // One thread at a time, these two. Either the new snapshot, or the files that changed while they were read.
  struct Created {
    v1::SnapshotInfo info;
    std::vector<std::string> changed;
  };
  Result<Created> Create(const v1::CreateSnapshot& request, const Capture::Progress& progress);
  // All or none. kAborted: one of them is in use. Bytes that became free.
  Result<uint64_t> Delete(const std::vector<std::string>& names);

  ~Collection();

 private:
  Collection(EventLoop* loop, std::string directory, std::string store_id, rpc::Credentials mine);
  Status OpenVault();
  // The vault and the disk get the same snapshots.
  Status Reconcile();
  // Both, unless that is done. With its error nothing can be changed.
  Status NeedVault();
  // `base` (null: none) is there already.
  Status SaveInVault(v1::SnapshotInfo* info, const tree::DirectoryPtr& tree, const tree::DirectoryPtr& base,
                     Realm* realm, const Capture::Progress& progress);
  std::string PathOf(const std::string& name) const { return directory_ + "/snapshots/" + name; }
  std::string StoreIdFile() const { return directory_ + "/store_id"; }
  Status LoadOne(const std::string& name);
  // Null: there is none.
  SnapshotPtr BaseFor(const v1::CreateSnapshot& request, const Realm* realm) const;
  // Makes a loaded one known.
  void Add(v1::SnapshotInfo info, tree::SnapshotPtr tree, Realm* realm);
  // The disk is only a cache of what the bucket has. mu_ held.
  bool AllInBucketLocked() const;
  // Takes from a disk that is full what the bucket has as well. False: nothing. Any thread.
  bool MakeRoom();
  // What all snapshots need; false: that is not known, since one is damaged.
  bool Needed(Contents* needed);
  Result<uint64_t> Sweep();

  EventLoop* const loop_;
  const std::string directory_;
  const rpc::Credentials mine_;
  uint64_t disk_bytes_ = 0;
  // Objects that were put and are perhaps not on disk yet. Create's thread.
  std::vector<store::ObjectId> unsynced_;
  // What an earlier process, or a capture that failed, has left is not known, or some of unsynced_ may be gone.
  std::atomic<bool> sync_all_ = true;
  std::unique_ptr<store::Store> store_;
  std::unique_ptr<Vault> vault_;  // null: none
  // Written by Create's thread.
  std::atomic<bool> reconciled_ = false;
  std::atomic<bool> capturing_ = false;  // the disk alone has what is captured
  mutable std::mutex mu_;
  std::string store_id_;                                  // guarded by mu_
  std::map<std::string, std::unique_ptr<Realm>> realms_;  // guarded by mu_, as all below; by home id
  std::map<std::string, SnapshotPtr> snapshots_;          // by name
  std::set<std::string> damaged_;
};

}  // namespace vrun::snapshots
