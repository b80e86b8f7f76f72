// SPDX-License-Identifier: Apache-2.0
#include "home/root/root_tree.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "tree/rules.h"

namespace vrun::home {
namespace {

constexpr std::chrono::milliseconds kBarrierTimeout{2000};
// How long to rescan a constantly changing root, in search of a moment without changes.
constexpr int64_t kOneMomentMicros = 10'000;

// Marks the names that are in exactly one of the lists.
void MarkDifferences(std::vector<std::string> a, std::vector<std::string> b, tree::DirtySet* dirty) {
  std::sort(a.begin(), a.end());
  std::sort(b.begin(), b.end());
  std::vector<std::string> different;
  std::set_symmetric_difference(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(different));
  for (const std::string& path : different) {
    size_t slash = path.rfind('/');
    if (slash == std::string::npos || slash + 1 == path.size()) continue;
    dirty->names[slash == 0 ? "/" : path.substr(0, slash)].insert(path.substr(slash + 1));
  }
}

}  // namespace

RootTree::RootTree(EventLoop* loop, Options options, TreeTable* table)
    : loop_(loop), options_(std::move(options)), table_(table), deny_(options_.deny) {
  // After a restart home serves content and applies the writes of running jobs before the first scan.
  table_->SetRules(deny_.Current());
}

RootTree::~RootTree() {
  *alive_ = false;
  worker_.Stop();
}

void RootTree::Start() {
  worker_.Post([this] {
    Status scanned = FirstScan();
    if (!scanned) LogError("scan of the root: {}", scanned.error().message());
  });
}

void RootTree::Listen(std::function<void()> changed) {
  worker_.Post([this, changed = std::move(changed)]() mutable {
    changed_ = std::move(changed);
    ListenToWatcher();
  });
}

void RootTree::Attend(bool attend) {
  worker_.Post([this, attend] {
    attended_ = attend;
    ListenToWatcher();
  });
}

void RootTree::DenyOwn(std::vector<std::string> own) {
  worker_.Post([this, own = std::move(own)]() mutable {
    if (!deny_.SetOwn(std::move(own))) return;
    denied_anew_ = true;
    if (attended_ && changed_) changed_();
  });
}

void RootTree::LookAt(const std::string& path) {
  worker_.Post([this, path] {
    const size_t slash = path.rfind('/');
    if (slash == std::string::npos || slash + 1 == path.size()) return;
    doubted_.names[slash == 0 ? "/" : path.substr(0, slash)].insert(path.substr(slash + 1));
    if (attended_ && changed_) changed_();
  });
}

void RootTree::ListenToWatcher() {
  if (watcher_) watcher_->Listen(attended_ ? changed_ : nullptr);
}

RootTree::Facts RootTree::facts() const {
  MutexLock lock(mutex_);
  return facts_;
}

void RootTree::Current(std::vector<std::string> exposed, std::function<void(Result<tree::TreePtr>)> done) {
  for (std::string& path : exposed) path = tree::CleanPath(path);
  bool first;
  {
    MutexLock lock(mutex_);
    first = waiters_.empty();
    waiters_.push_back({std::move(exposed), std::move(done)});
  }
  // Callers that arrive before the posted refresh begins share its barrier.
  if (first) worker_.Post([this] { Refresh(); });
}

void RootTree::Answer(Waiter waiter, Result<tree::TreePtr> result) {
  loop_->Post([alive = alive_, done = std::move(waiter.done), result = std::move(result)]() mutable {
    if (*alive) done(std::move(result));
  });
}

void RootTree::Refresh() {
  std::vector<Waiter> waiters;
  {
    MutexLock lock(mutex_);
    waiters.swap(waiters_);
  }
  Status current = MakeCurrent();
  for (Waiter& waiter : waiters) {
    if (!current) {
      Answer(std::move(waiter), current.error());
    } else if (waiter.exposed.empty()) {
      Answer(std::move(waiter), snapshot_);
    } else {
      auto exposed = Expose(waiter.exposed);
      Answer(std::move(waiter), std::move(exposed));
    }
  }
}

tree::ScanOptions RootTree::ScanFor(const std::vector<std::string>& exposed) const {
  tree::ScanOptions scan;
  scan.root = options_.root;
  scan.hidden = rules_->Hidden(exposed);
  return scan;
}

Status RootTree::FirstScan() {
  rules_ = deny_.Current();
  if (!watcher_) {
    WatchOptions watch;
    watch.scan = ScanFor({});
    watch.cookie_directory = options_.cookie_directory;
    watch.backend = options_.backend;
    auto watcher = Watcher::Start(std::move(watch));
    if (watcher) {
      watcher_ = std::move(*watcher);
      ListenToWatcher();
    } else {
      LogWarning("cannot watch the root, every command scans it: {}", watcher.error().message());
    }
  }
  tree::ScanStats stats;
  auto snapshot = tree::Scan(ScanFor({}), &stats);
  MutexLock lock(mutex_);
  if (watcher_) {
    facts_.watch = watcher_->kind();
    facts_.watch_reason = watcher_->reason();
  } else {
    facts_.watch = "rescan";
  }
  if (!snapshot) {
    facts_.error = snapshot.error().message();
    return snapshot.error().With("scan the root");
  }
  snapshot_ = std::move(*snapshot);
  table_->SetCurrent(snapshot_, rules_);
  facts_.scanned = true;
  facts_.error.clear();
  facts_.scan_seconds = stats.seconds;
  LogInfo("root scanned: {} entries, {} bytes, {:.2f} s, {} unreadable directories, watched by {}{}{}",
          snapshot_->entries, snapshot_->bytes, stats.seconds, stats.unreadable_directories, facts_.watch,
          facts_.watch_reason.empty() ? "" : ": ", facts_.watch_reason);
  return {};
}

Status RootTree::MakeCurrent() {
  if (!snapshot_) VRUN_TRY(FirstScan());
  if (options_.mappings) options_.mappings->Look();
  tree::DirtySet dirty = Changes();
  if (options_.mappings) options_.mappings->AddChanged(&dirty);
  for (auto& [directory, names] : std::exchange(doubted_, {}).names) dirty.names[directory].merge(names);
  bool denied_anew = std::exchange(denied_anew_, false);
  if (dirty.empty() && !denied_anew) return {};
  // Names are examined one by one, so something renamed meanwhile may be missing under both names. If names have
  // changed, we rescan what has changed since, until no names change: that is a state that the root really had.
  const int64_t enough = MonotonicMicros() + kOneMomentMicros;
  for (bool again = true; again;) {
    bool names = false;
    VRUN_TRY(Look(std::move(dirty), denied_anew, &names));
    denied_anew = again = false;
    if (!names || !watcher_ || watcher_->kind() == "rescan" || MonotonicMicros() > enough) break;
    dirty = Changes();
    again = !dirty.empty();
  }
  table_->SetCurrent(snapshot_, rules_);
  return {};
}

tree::DirtySet RootTree::Changes() {
  if (watcher_) {
    auto changed = watcher_->Barrier(kBarrierTimeout);
    if (changed) return *std::move(changed);
    LogWarning("watcher: {}: scanning everything", changed.error().message());
  }
  tree::DirtySet everything;
  everything.recursive.insert("/");
  return everything;
}

Status RootTree::Look(tree::DirtySet dirty, bool denied_anew, bool* names) {
  std::shared_ptr<const DenyRules> rules = rules_;
  if (denied_anew || deny_.Concerns(dirty)) {
    rules = deny_.Current();
    MarkDifferences(rules_->Hidden(), rules->Hidden(), &dirty);
  }
  if (dirty.empty()) return {};
  rules_ = rules;
  auto next = tree::Rescan(snapshot_, dirty, ScanFor({}), names);
  if (!next) {
    // The dirty set is lost: the next refresh scans everything.
    snapshot_.reset();
    return next.error().With("scan the root");
  }
  snapshot_ = std::move(*next);
  return {};
}

Result<tree::TreePtr> RootTree::Expose(const std::vector<std::string>& exposed) {
  tree::ScanOptions scan = ScanFor(exposed);
  tree::DirtySet dirty;
  MarkDifferences(rules_->Hidden(), scan.hidden, &dirty);
  if (dirty.empty()) return snapshot_;
  return tree::Rescan(snapshot_, dirty, scan);
}

}  // namespace vrun::home
