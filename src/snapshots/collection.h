// SPDX-License-Identifier: Apache-2.0
// All snapshots of one owner. Its directory contains:
//   store/               content and directories (src/store), never evicted
//   snapshots/NAME       a SnapshotInfo; appears by rename when everything it refers to is durable
//   store_id             the id of the snapshot store from which the S3 store's snapshots were taken over
// With a vault (vault.h) the S3 store also holds all of it and is authoritative: a lost disk is refilled from there on
// use, and the disk may be smaller than the vault's content.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/io/event_loop.h"
#include "base/result.h"
#include "base/thread/mutex.h"
#include "proto/snapshots.pb.h"
#include "rpc/credentials.h"
#include "snapshots/capture.h"
#include "snapshots/realm.h"
#include "snapshots/vault.h"
#include "store/store.h"

namespace vrun::snapshots {

// Checks a name: letters, digits, '.', '_' and '-', at most 128, starting with a letter or digit (the rules for image
// tags).
Status CheckName(const std::string& name);
// The names of snapshots that were made for one job, which nobody chose: ".", then as above. They are in no list.
bool IsUnnamed(const std::string& name);

// The S3 store that holds an owner's snapshots.
struct VaultPlace {
  std::string bucket;
  std::string owner;
  SealedObjects::Presign presign;
  uint64_t disk_bytes = 0;  // how much of it stays on the disk; 0: no limit
};

class Collection {
 public:
  // A snapshot in use; it cannot be deleted meanwhile.
  struct Snapshot {
    v1::SnapshotInfo info;
    tree::TreePtr tree;
    Realm* realm = nullptr;
    home::TreeTable::Pin pin;  // serves the snapshot while it exists
  };
  using SnapshotPtr = std::shared_ptr<const Snapshot>;

  // Creates the directory. `store_id`: of the whole snapshot store. Does not read snapshots yet.
  static Result<std::unique_ptr<Collection>> Open(EventLoop* loop, const std::string& directory,
                                                  const std::string& store_id, const rpc::Credentials& mine,
                                                  std::optional<VaultPlace> vault = std::nullopt);

  // Reads all snapshots. Call once, before anything except RealmOf and Tick. A damaged snapshot can only be deleted;
  // while there is one, no content is removed. An unreachable vault is left to Housekeep.
  Status Load();
  // Deferred work: retries a vault that was unreachable, and shrinks the disk to its limit. Same thread rules as Create
  // and Delete.
  void Housekeep();

  // Any thread. Creates the realm if needed.
  Realm* RealmOf(const std::string& home_id);
  void Tick(int64_t now_micros);

  // Any thread, after Load.
  std::vector<v1::SnapshotInfo> List() const;
  // kUnavailable: the S3 store was not reached yet and may hold other snapshots.
  Status Readable() const;
  Result<SnapshotPtr> Find(const std::string& name) const;
  // Finds it by identity; kNotFound when the name now refers to another snapshot.
  Result<SnapshotPtr> Find(const v1::SnapshotReference& reference) const;

  // Create and Delete: one thread at a time. Holds either the new snapshot, or the files that changed while they were
  // read.
  struct Created {
    v1::SnapshotInfo info;
    std::vector<std::string> changed;  // of an unnamed one: left out, and it is complete without them
  };
  // Makes an unnamed snapshot usable before it exists: home serves what has not come. Any thread; blocks until the
  // names of the tree are here. Needs a vault. The reference has no id before the snapshot is complete.
  Result<v1::SnapshotInfo> Announce(const v1::CreateSnapshot& request);
  Result<Created> Create(const v1::CreateSnapshot& request, const Capture::Progress& progress);
  // Deletes all or none. kAborted: one of them is in use. Returns the bytes freed.
  Result<uint64_t> Delete(const std::vector<std::string>& names);

  ~Collection();

 private:
  Collection(EventLoop* loop, std::string directory, std::string store_id, rpc::Credentials mine);
  Status OpenVault();
  // Makes the vault and the disk contain the same snapshots.
  Status Reconcile();
  // Opens and reconciles the vault unless that is done. On error nothing may be changed.
  Status NeedVault();
  // `base` (null: none) is already there.
  Status SaveInVault(v1::SnapshotInfo* info, const tree::DirectoryPtr& tree, const tree::DirectoryPtr& base,
                     Realm* realm, const Capture::Progress& progress);
  std::string PathOf(const std::string& name) const { return directory_ + "/snapshots/" + name; }
  std::string StoreIdFile() const { return directory_ + "/store_id"; }
  Status LoadOne(const std::string& name);
  // Null: there is none.
  SnapshotPtr BaseFor(const v1::CreateSnapshot& request, const Realm* realm) const;
  struct Announced {
    SnapshotPtr snapshot;
    std::shared_ptr<const Capture::Names> names;
  };
  std::shared_ptr<const Capture::Names> AnnouncedNames(const std::string& name, const Digest& tree) const;
  void NotAnnouncedLocked(const std::string& name) VRUN_REQUIRES(mu_);
  // Registers a loaded snapshot.
  void Add(v1::SnapshotInfo info, tree::TreePtr tree, Realm* realm);
  // Whether the disk is only a cache of the bucket's content. mu_ held.
  bool AllInBucketLocked() const VRUN_REQUIRES(mu_);
  // Frees space on a full disk by removing what the bucket also has. False: nothing was removed. Any thread.
  bool MakeRoom();
  // What all snapshots need; false: unknown, because one is damaged.
  bool Needed(Contents* needed);
  Result<uint64_t> Sweep();

  EventLoop* const loop_;
  const std::string directory_;
  const rpc::Credentials mine_;
  uint64_t disk_bytes_ = 0;
  // Objects that were stored but may not be durable yet. Create's thread.
  std::vector<store::ObjectId> unsynced_;
  // Set if an earlier process or a failed capture left unknown objects, or some of unsynced_ may be gone.
  std::atomic<bool> sync_all_ = true;
  std::unique_ptr<store::Store> store_;
  std::unique_ptr<Vault> vault_;  // null: none
  // Written by Create's thread.
  std::atomic<bool> reconciled_ = false;
  std::atomic<bool> capturing_ = false;  // content being captured exists only on the disk
  mutable Mutex mu_;
  std::string store_id_ VRUN_GUARDED_BY(mu_);
  std::map<std::string, std::unique_ptr<Realm>> realms_ VRUN_GUARDED_BY(mu_);  // by home id
  std::map<std::string, SnapshotPtr> snapshots_ VRUN_GUARDED_BY(mu_);          // by name
  std::map<std::string, Announced> announced_ VRUN_GUARDED_BY(mu_);            // by name
  std::set<std::string> damaged_ VRUN_GUARDED_BY(mu_);
};

}  // namespace vrun::snapshots
