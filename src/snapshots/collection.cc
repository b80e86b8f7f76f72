// SPDX-License-Identifier: Apache-2.0
#include "snapshots/collection.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <unordered_set>

#include "base/clock.h"
#include "base/escape.h"
#include "base/files.h"
#include "base/log.h"
#include "base/thread/mutex.h"
#include "store/format/durable.h"
#include "tree/codec.h"

namespace vrun::snapshots {
namespace {

constexpr size_t kMaxNameBytes = 128;
constexpr size_t kMaxUnreadable = 100;
constexpr int64_t kTellMicros = 200'000;
constexpr std::chrono::milliseconds kUseTurn{10};
constexpr int kUseTurns = 100;

bool IsNameByte(char c, bool first) {
  if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')) return true;
  return !first && (c == '.' || c == '_' || c == '-');
}

Error NoSuch(const std::string& name) {
  return Error(Code::kNotFound,
               "snapshot " + Escape(name) + ": no such snapshot: `vctl snapshot list` shows all names");
}

Error Exists(const std::string& name) {
  return Error(Code::kExists, "snapshot " + Escape(name) + ": there is one already: delete it or choose another name");
}

std::string IdOf(const v1::SnapshotInfo& info) { return std::string(Sha256(info.root() + info.manifest()).view()); }

// Of a snapshot that somebody chose the name of, or of an unnamed one.
bool IsStored(const std::string& name) { return CheckName(name).has_value() || IsUnnamed(name); }

}  // namespace

bool IsUnnamed(const std::string& name) { return name.starts_with(".") && CheckName(name.substr(1)).has_value(); }

Status CheckName(const std::string& name) {
  bool fine = !name.empty() && name.size() <= kMaxNameBytes;
  for (size_t i = 0; i < name.size(); ++i) fine = fine && IsNameByte(name[i], i == 0);
  if (fine) return {};
  return Error(Code::kInvalid, "snapshot " + Escape(name.substr(0, kMaxNameBytes)) +
                                   ": not a name: use letters, digits, '.', '_' and '-', a letter or digit first, at "
                                   "most " +
                                   std::to_string(kMaxNameBytes));
}

Collection::Collection(EventLoop* loop, std::string directory, std::string store_id, rpc::Credentials mine)
    : loop_(loop), directory_(std::move(directory)), mine_(std::move(mine)), store_id_(std::move(store_id)) {}

Collection::~Collection() {
  std::map<std::string, SnapshotPtr> snapshots;
  std::map<std::string, std::unique_ptr<Realm>> realms;
  {
    MutexLock lock(mu_);
    reconciled_ = false;  // stops MakeRoom
    snapshots.swap(snapshots_);
    announced_.clear();
    realms.swap(realms_);
  }
  // First the readers, then what fetches for them.
  snapshots.clear();
  realms.clear();
  vault_.reset();
}

Result<std::unique_ptr<Collection>> Collection::Open(EventLoop* loop, const std::string& directory,
                                                     const std::string& store_id, const rpc::Credentials& mine,
                                                     std::optional<VaultPlace> vault) {
  auto collection = std::unique_ptr<Collection>(new Collection(loop, directory, store_id, mine));
  VRUN_TRY(MakeDirs(directory + "/snapshots", 0700));
  VRUN_TRY(MakeDirs(directory + "/store", 0700));
  store::Options options{.directory = directory + "/store"};
  options.never_evict = true;
  VRUN_ASSIGN(collection->store_, store::Store::Open(options));
  if (vault) {
    collection->disk_bytes_ = vault->disk_bytes;
    collection->vault_ = std::make_unique<Vault>(collection->store_.get(), std::move(vault->bucket),
                                                 std::move(vault->presign), std::move(vault->owner), store_id,
                                                 [raw = collection.get()] { return raw->MakeRoom(); });
    const MutexLock lock(collection->mu_);
    if (auto adopted = ReadFile(collection->StoreIdFile(), 4096)) collection->store_id_ = *std::move(adopted);
  }
  return collection;
}

Status Collection::Load() {
  DIR* dir = ::opendir((directory_ + "/snapshots").c_str());
  if (dir == nullptr) return ErrnoError("list " + Escape(directory_) + "/snapshots");
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(dir)) {
    if (IsStored(entry->d_name)) names.push_back(entry->d_name);
  }
  ::closedir(dir);
  // First: this provides what the disk has lost of the others.
  const Status opened = vault_ ? OpenVault() : Status();
  if (!opened) LogWarning("snapshots in the S3 store: {}: asked for again", opened.error().message());
  for (const std::string& name : names) {
    const Status loaded = LoadOne(name);
    if (loaded) continue;
    LogError("snapshot {}: {}", name, loaded.error().message());
    MutexLock lock(mu_);
    damaged_.insert(name);
  }
  if (Status same = vault_ && opened ? Reconcile() : Status(); !same)
    LogWarning("snapshots in the S3 store: {}: tried again", same.error().message());
  return {};
}

Status Collection::OpenVault() {
  VRUN_TRY(vault_->Open());
  const std::string& theirs = vault_->catalog().store_id();
  {
    MutexLock lock(mu_);
    // Nodes know the snapshots' content by this id. It cannot change under snapshots in use.
    if (!theirs.empty() && theirs != store_id_ && realms_.empty()) {
      store_id_ = theirs;
      if (Status kept = WriteFileAtomic(StoreIdFile(), theirs, 0600); !kept)
        LogWarning("snapshots: {}", kept.error().message());
    }
  }
  vault_->FetchDirectories();
  return {};
}

Status Collection::NeedVault() {
  if (!vault_ || (reconciled_ && !vault_->doubtful())) return {};
  reconciled_ = false;
  Status done = vault_->is_open() && !vault_->doubtful() ? Status() : OpenVault();
  if (done) done = Reconcile();
  if (!done) return std::move(done).error().With("the S3 store that keeps the snapshots");
  return {};
}

Status Collection::Reconcile() {
  std::set<std::string> there;
  const auto catalog = vault_->catalog().snapshot();
  for (const v1::SnapshotInfo& info : catalog) {
    const std::string& name = info.reference().name();
    if (!IsStored(name)) continue;
    there.insert(name);
    SnapshotPtr ours;
    {
      MutexLock lock(mu_);
      if (const auto it = snapshots_.find(name); it != snapshots_.end()) ours = it->second;
    }
    const bool same = ours && ours->info.reference().id() == info.reference().id();
    if (ours && !same && ours->info.bucket().empty()) {
      LogError("snapshot {}: the S3 store has a different snapshot of this name: this one is on this disk only", name);
      continue;
    }
    if (same && !ours->info.bucket().empty()) continue;
    v1::SnapshotInfo record = info;
    record.set_bucket(vault_->bucket());
    VRUN_TRY(WriteFileAtomic(PathOf(name), record.SerializeAsString(), 0600));
    ours.reset();
    if (Status loaded = LoadOne(name); !loaded) {
      LogError("snapshot {}: {}", name, loaded.error().message());
      MutexLock lock(mu_);
      damaged_.insert(name);
      continue;
    }
    MutexLock lock(mu_);
    damaged_.erase(name);
  }
  std::vector<SnapshotPtr> only_here;
  {
    MutexLock lock(mu_);
    for (const auto& [name, snapshot] : snapshots_) {
      if (!there.contains(name)) only_here.push_back(snapshot);
    }
  }
  for (SnapshotPtr& snapshot : only_here) {
    v1::SnapshotInfo info = snapshot->info;
    const std::string& name = info.reference().name();
    if (!info.bucket().empty()) {
      LogInfo("snapshot {}: it is in the S3 store no more", name);
      if (::unlink(PathOf(name).c_str()) != 0) return ErrnoError("remove " + Escape(PathOf(name)));
      MutexLock lock(mu_);
      snapshots_.erase(name);
      continue;
    }
    VRUN_TRY(SaveInVault(&info, snapshot->tree->directory, nullptr, snapshot->realm, nullptr));
    VRUN_TRY(WriteFileAtomic(PathOf(name), info.SerializeAsString(), 0600));
    LogInfo("snapshot {}: now in the S3 store as well", name);
    tree::TreePtr tree = snapshot->tree;
    Realm* realm = snapshot->realm;
    snapshot.reset();
    Add(std::move(info), std::move(tree), realm);
  }
  reconciled_ = true;
  return {};
}

Status Collection::SaveInVault(v1::SnapshotInfo* info, const tree::DirectoryPtr& tree, const tree::DirectoryPtr& base,
                               Realm* realm, const Capture::Progress& progress) {
  Contents contents;
  realm->manifest().Need(tree, base, &contents);
  info->set_bucket(vault_->bucket());
  Mutex mutex;
  int64_t told VRUN_GUARDED_BY(mutex) = 0;
  return vault_->Add(*info, contents, [&](uint64_t saved, uint64_t total) {
    MutexLock lock(mutex);
    const int64_t now = MonotonicMicros();
    if (!progress || now - told < kTellMicros) return true;
    told = now;
    v1::SnapshotProgress p;
    p.set_saved_bytes(saved);
    p.set_total_saved_bytes(total);
    return progress(p);
  });
}

void Collection::Housekeep() {
  if (!vault_) return;
  if (!reconciled_ || vault_->doubtful()) {
    if (NeedVault()) LogInfo("snapshots: the S3 store has what is here, and the other way round");
    return;
  }
  if (disk_bytes_ == 0 || store_->stats().bytes <= disk_bytes_) return;
  {
    MutexLock lock(mu_);
    if (!AllInBucketLocked()) return;
  }
  // Some content of a failed capture is not synced yet and may be lost later.
  if (!unsynced_.empty()) sync_all_ = true;
  unsynced_.clear();
  if (const auto left = store_->Prune(disk_bytes_ / 10 * 9); !left) LogWarning("snapshots: {}", left.error().message());
}

bool Collection::AllInBucketLocked() const {
  return std::none_of(snapshots_.begin(), snapshots_.end(),
                      [](const auto& named) { return named.second->info.bucket().empty(); });
}

bool Collection::MakeRoom() {
  {
    MutexLock lock(mu_);
    if (!reconciled_ || capturing_ || !AllInBucketLocked()) return false;
  }
  sync_all_ = true;  // as in Housekeep
  const uint64_t before = store_->stats().bytes;
  const auto left = store_->Prune(before / 2);
  LogWarning("snapshots: the disk is full: removed {} MiB that the S3 store has too",
             left ? (before - std::min(before, *left)) >> 20 : 0);
  return left && *left < before;
}

Status Collection::LoadOne(const std::string& name) {
  VRUN_ASSIGN(const std::string bytes, ReadFile(PathOf(name)));
  v1::SnapshotInfo info;
  const bool parsed = info.ParseFromString(bytes);
  const auto manifest = Digest::FromBytes(info.manifest());
  if (!parsed || !manifest || info.reference().name() != name || info.reference().id() != IdOf(info)) {
    return Error(Code::kCorrupt, "its record is damaged");
  }
  Realm* realm = RealmOf(info.home_id());
  info.mutable_reference()->set_content_home_id(realm->content_home_id());
  VRUN_ASSIGN(const tree::DirectoryPtr directory, realm->manifest().Load(*manifest));
  const auto id = Digest::FromBytes(info.reference().tree());
  if (!id) return Error(Code::kCorrupt, "its record is damaged");
  VRUN_ASSIGN(tree::Entry root, tree::DecodeRoot(info.root(), *id));
  tree::TreePtr tree = tree::AssembleTree(std::move(root), directory);
  if (tree->id != *id) return Error(Code::kCorrupt, "its directories do not match its record");
  Add(std::move(info), std::move(tree), realm);
  return {};
}

Realm* Collection::RealmOf(const std::string& home_id) {
  MutexLock lock(mu_);
  auto& realm = realms_[home_id];
  if (!realm) {
    const std::string content = Sha256("snapshots of " + store_id_ + " " + home_id).Hex().substr(0, 32);
    realm = std::make_unique<Realm>(loop_, store_.get(), vault_.get(), mine_, home_id, content);
  }
  return realm.get();
}

void Collection::Tick(int64_t now_micros) {
  std::vector<Realm*> realms;
  {
    MutexLock lock(mu_);
    for (const auto& [id, realm] : realms_) realms.push_back(realm.get());
  }
  for (Realm* realm : realms) realm->source().Tick(now_micros);
}

void Collection::Add(v1::SnapshotInfo info, tree::TreePtr tree, Realm* realm) {
  auto snapshot = std::make_shared<Snapshot>();
  snapshot->pin = realm->trees().Add(tree, {});
  snapshot->info = std::move(info);
  snapshot->tree = std::move(tree);
  snapshot->realm = realm;
  MutexLock lock(mu_);
  snapshots_[snapshot->info.reference().name()] = std::move(snapshot);
}

Status Collection::Readable() const {
  if (!vault_ || reconciled_) return {};
  return Error(Code::kUnavailable,
               "the S3 store that keeps the snapshots cannot be read at the moment: see the log of "
               "the snapshot store, or try a change, which says why");
}

std::vector<v1::SnapshotInfo> Collection::List() const {
  MutexLock lock(mu_);
  std::vector<v1::SnapshotInfo> all;
  for (const auto& [name, snapshot] : snapshots_) all.push_back(snapshot->info);
  return all;
}

Result<Collection::SnapshotPtr> Collection::Find(const std::string& name) const {
  MutexLock lock(mu_);
  if (damaged_.contains(name)) {
    return Error(Code::kCorrupt, "snapshot " + Escape(name) + ": it is damaged: the store's log says how; delete it");
  }
  const auto it = snapshots_.find(name);
  if (it != snapshots_.end()) return it->second;
  if (Status readable = Readable(); !readable) return std::move(readable).error().With("snapshot " + Escape(name));
  return NoSuch(name);
}

Result<Collection::SnapshotPtr> Collection::Find(const v1::SnapshotReference& reference) const {
  MutexLock lock(mu_);
  const auto it = snapshots_.find(reference.name());
  if (it != snapshots_.end() && it->second->info.reference().id() == reference.id()) return it->second;
  // The same snapshot under another name is fine: the job was submitted with it.
  for (const auto& [name, snapshot] : snapshots_) {
    if (snapshot->info.reference().id() == reference.id()) return snapshot;
  }
  // A job was submitted with it before it was complete.
  const bool same = it != snapshots_.end() && it->second->info.reference().tree() == reference.tree();
  if (same && IsUnnamed(reference.name())) return it->second;
  if (const auto early = announced_.find(reference.name());
      early != announced_.end() && early->second.snapshot->info.reference().tree() == reference.tree()) {
    return early->second.snapshot;
  }
  return Error(Code::kNotFound,
               "snapshot " + Escape(reference.name()) + ": it was deleted after the job was submitted");
}

// The snapshot most similar to the current root: this home's last one, preferably of the same paths.
Collection::SnapshotPtr Collection::BaseFor(const v1::CreateSnapshot& request, const Realm* realm) const {
  const auto rank = [&](const SnapshotPtr& snapshot) {
    const auto& paths = snapshot->info.path();
    const bool same = std::equal(paths.begin(), paths.end(), request.path().begin(), request.path().end());
    return std::pair(same, snapshot->info.created_us());
  };
  SnapshotPtr base;
  MutexLock lock(mu_);
  for (const auto& [name, snapshot] : snapshots_) {
    if (snapshot->realm == realm && (!base || rank(snapshot) > rank(base))) base = snapshot;
  }
  return base;
}

Result<v1::SnapshotInfo> Collection::Announce(const v1::CreateSnapshot& request) {
  if (!vault_) {
    return Error(Code::kUnsupported,
                 "--away: the pool has no S3 store for what the job reads: write s3_bucket and `s3_snapshots = \"on\"` "
                 "into the configuration where you run `vctl up`, and run it again");
  }
  const std::string& name = request.name();
  const auto wanted = Digest::FromBytes(request.tree());
  if (!wanted || request.home_id().empty() || !IsUnnamed(name)) {
    return Error(Code::kInvalid, "snapshot: malformed request");
  }
  v1::SnapshotReference reference;
  reference.set_name(name);
  reference.set_tree(request.tree());
  if (auto there = Find(reference)) return (*there)->info;
  // The S3 store says under which id nodes know the content.
  if (!vault_->is_open()) VRUN_TRY(Readable());
  Realm* realm = RealmOf(request.home_id());
  const SnapshotPtr base = BaseFor(request, realm);
  auto names = std::make_shared<Capture::Names>();
  VRUN_ASSIGN(*names,
              Capture(&realm->source(), store_.get(), vault_.get(), &realm->manifest(), request.home_id(), nullptr)
                  .FetchNames(*wanted, base ? base->tree->id : Digest{}));
  std::vector<NewFile> files;
  VRUN_ASSIGN(const tree::DirectoryPtr directory, realm->manifest().Complete(names->root.child, names->fresh, &files));
  auto snapshot = std::make_shared<Snapshot>();
  snapshot->tree = tree::AssembleTree(names->root, directory);
  if (snapshot->tree->id != *wanted) return Error(Code::kCorrupt, "snapshot: home sent another tree than it named");
  snapshot->realm = realm;
  reference.set_content_home_id(realm->content_home_id());
  if (snapshot->tree->apart) reference.set_apart(std::string(snapshot->tree->apart->id.view()));
  *snapshot->info.mutable_reference() = std::move(reference);
  snapshot->info.set_home_id(request.home_id());
  snapshot->pin = realm->trees().Add(snapshot->tree, {});
  realm->late().Await(snapshot->tree);
  const v1::SnapshotInfo info = snapshot->info;
  const MutexLock lock(mu_);
  announced_[name] = {std::move(snapshot), std::move(names)};
  return info;
}

std::shared_ptr<const Capture::Names> Collection::AnnouncedNames(const std::string& name, const Digest& tree) const {
  const MutexLock lock(mu_);
  const auto it = announced_.find(name);
  return it != announced_.end() && it->second.snapshot->tree->id == tree ? it->second.names : nullptr;
}

void Collection::NotAnnouncedLocked(const std::string& name) {
  const auto it = announced_.find(name);
  if (it == announced_.end()) return;
  const SnapshotPtr gone = std::move(it->second.snapshot);
  announced_.erase(it);
  const bool same = std::any_of(announced_.begin(), announced_.end(),
                                [&](const auto& other) { return other.second.snapshot->tree->id == gone->tree->id; });
  if (!same) gone->realm->late().Over(gone->tree);
}

Result<Collection::Created> Collection::Create(const v1::CreateSnapshot& request, const Capture::Progress& progress) {
  const bool unnamed = IsUnnamed(request.name());
  if (!unnamed) VRUN_TRY(CheckName(request.name()));
  VRUN_TRY(NeedVault());
  if (PathExists(PathOf(request.name()))) {
    v1::SnapshotReference reference;
    reference.set_name(request.name());
    reference.set_tree(request.tree());
    if (auto there = Find(reference); unnamed && there) return Created{(*there)->info, {}};
    return Exists(request.name());
  }
  const auto wanted = Digest::FromBytes(request.tree());
  if (!wanted || request.home_id().empty()) return Error(Code::kInvalid, "snapshot: malformed request");
  Realm* realm = RealmOf(request.home_id());
  const SnapshotPtr base = BaseFor(request, realm);
  struct Capturing {
    std::atomic<bool>& now;
    explicit Capturing(std::atomic<bool>& flag) : now(flag) { now = true; }
    ~Capturing() { now = false; }
  } const capturing(capturing_);
  Created created;
  Capture::Wishes wishes;
  wishes.bear_losses = unnamed;
  if (unnamed) wishes.first.assign(request.path().begin(), request.path().end());
  const auto capture = [&]() -> Result<Capture::Result> {
    Capture capturing_now(&realm->source(), store_.get(), vault_.get(), &realm->manifest(), request.home_id(),
                          progress);
    if (const auto names = AnnouncedNames(request.name(), *wanted)) {
      auto captured = capturing_now.Run(*wanted, *names, wishes);
      // Directories that were known here when it was announced may be gone.
      if (captured || captured.error().code() != Code::kCorrupt) return captured;
    }
    VRUN_ASSIGN(const Capture::Names names, capturing_now.FetchNames(*wanted, base ? base->tree->id : Digest{}));
    return capturing_now.Run(*wanted, names, wishes);
  };
  auto run = capture();
  if (!run && run.error().code() == Code::kExhausted && vault_) {
    // Evicts what the bucket also has. Content of this attempt may be evicted too.
    capturing_ = false;
    const bool room = MakeRoom();
    capturing_ = true;
    if (room) run = capture();
  }
  if (!run) {
    sync_all_ = true;
    return std::move(run).error();
  }
  Capture::Result captured = *std::move(run);
  unsynced_.insert(unsynced_.end(), captured.stored.begin(), captured.stored.end());
  created.changed = std::move(captured.changed);
  if (!created.changed.empty() && !unnamed) return created;
  if (realm->late().TakeStored()) sync_all_ = true;
  v1::SnapshotInfo& info = created.info;
  info.set_root(tree::EncodeRoot(captured.root));
  tree::TreePtr tree = tree::AssembleTree(captured.root, captured.directory);
  if (tree->id != *wanted) return Error(Code::kCorrupt, "snapshot: the tree that home sent does not match its digest");
  VRUN_ASSIGN(const Digest manifest, realm->manifest().Write(captured.directory));
  info.set_manifest(std::string(manifest.view()));
  info.set_created_us(WallMicros());
  info.set_entries(tree->entries);
  info.set_bytes(tree->bytes);
  if (!unnamed) *info.mutable_path() = request.path();
  info.set_sent_bytes(captured.sent_bytes);
  std::vector<std::string> unreadable;
  info.set_unreadable_files(realm->manifest().Unreadable(captured.directory, kMaxUnreadable, &unreadable));
  for (std::string& path : unreadable) info.add_unreadable(std::move(path));
  info.set_architecture(request.architecture());
  info.set_home_id(request.home_id());
  v1::SnapshotReference* reference = info.mutable_reference();
  reference->set_name(request.name());
  reference->set_id(IdOf(info));
  reference->set_tree(std::string(tree->id.view()));
  if (tree->apart) reference->set_apart(std::string(tree->apart->id.view()));
  reference->set_content_home_id(realm->content_home_id());
  // Everything that the record refers to is on disk before the record: content, maps and directories.
  const std::string kept = directory_ + "/store";
  VRUN_TRY(sync_all_ ? store::MakeAllDurable(kept) : store::MakeDurable(kept, unsynced_));
  sync_all_ = false;
  unsynced_.clear();
  if (vault_) {
    const bool saved = base && !base->info.bucket().empty();
    VRUN_TRY(SaveInVault(&info, tree->directory, saved ? base->tree->directory : nullptr, realm, progress));
  }
  VRUN_TRY(WriteFileAtomic(PathOf(request.name()), info.SerializeAsString(), 0600));
  Add(info, std::move(tree), realm);
  const MutexLock lock(mu_);
  NotAnnouncedLocked(request.name());
  return created;
}

Result<uint64_t> Collection::Delete(const std::vector<std::string>& names) {
  VRUN_TRY(NeedVault());
  std::vector<SnapshotPtr> doomed;
  std::set<std::string> damaged;
  {
    MutexLock lock(mu_);
    const auto in_use = [&](const std::string& name) VRUN_REQUIRES(mu_) {
      const auto it = snapshots_.find(name);
      return it != snapshots_.end() && it->second.use_count() > 1;
    };
    // A job that has just ended releases its snapshot in a moment.
    for (int turn = 0; turn < kUseTurns && std::any_of(names.begin(), names.end(), in_use); ++turn) {
      lock.unlock();
      std::this_thread::sleep_for(kUseTurn);
      lock.lock();
    }
    for (const std::string& name : names) NotAnnouncedLocked(name);
    for (const std::string& name : names) {
      if (!snapshots_.contains(name) && !damaged_.contains(name)) return NoSuch(name);
      if (in_use(name)) {
        return Error(Code::kAborted, "snapshot " + Escape(name) +
                                         ": it is in use: wait for the jobs that run in it, or "
                                         "cancel them");
      }
    }
    for (const std::string& name : names) {
      if (damaged_.erase(name) > 0) damaged.insert(name);
      const auto it = snapshots_.find(name);
      if (it == snapshots_.end()) continue;
      doomed.push_back(std::move(it->second));
      snapshots_.erase(it);
    }
  }
  if (vault_) {
    Contents needed;
    const bool known = Needed(&needed);
    if (Status removed = vault_->Remove(names, known ? &needed : nullptr); !removed) {
      MutexLock lock(mu_);
      for (SnapshotPtr& snapshot : doomed) snapshots_[snapshot->info.reference().name()] = std::move(snapshot);
      damaged_.merge(damaged);
      return std::move(removed).error();
    }
  }
  for (const std::string& name : names) {
    if (::unlink(PathOf(name).c_str()) != 0 && errno != ENOENT) return ErrnoError("remove " + Escape(PathOf(name)));
  }
  doomed.clear();
  return Sweep();
}

bool Collection::Needed(Contents* needed) {
  MutexLock lock(mu_);
  if (!damaged_.empty()) return false;
  for (const auto& [name, snapshot] : snapshots_)
    snapshot->realm->manifest().Need(snapshot->tree->directory, nullptr, needed);
  return true;
}

Result<uint64_t> Collection::Sweep() {
  std::map<Realm*, std::vector<tree::DirectoryPtr>> roots;
  {
    MutexLock lock(mu_);
    if (!damaged_.empty()) return 0;
    for (const auto& [id, realm] : realms_) roots[realm.get()];
    for (const auto& [name, snapshot] : snapshots_) roots[snapshot->realm].push_back(snapshot->tree->directory);
  }
  for (const auto& [realm, directories] : roots) realm->manifest().Retain(directories);
  Contents needed;
  if (!Needed(&needed)) return 0;
  return store_->Sweep([&](const store::ObjectId& id) { return needed.object_set.contains(id); },
                       [&](const Digest& blob) { return needed.directory_set.contains(blob); });
}

}  // namespace vrun::snapshots
