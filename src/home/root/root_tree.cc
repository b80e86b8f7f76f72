// SPDX-License-Identifier: Apache-2.0
#include "home/root/root_tree.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/clock.h"
#include "base/files.h"
#include "base/log.h"
#include "tree/rules.h"
#include "tree/unread.h"

namespace vrun::home {
namespace {

constexpr std::chrono::milliseconds kBarrierTimeout{2000};
// How long to rescan a constantly changing root, in search of a moment without changes.
constexpr int64_t kOneMomentMicros = 10'000;
// The pieces of the first scan: the directories at this depth, or above it if they are many there.
constexpr int kPieceDepth = 2;
constexpr size_t kMostPieces = 64;
constexpr size_t kMostWanted = 20'000;  // paths of one run
constexpr int kDeepest = 200;           // deeper paths wait for their turn
// After that many pieces something is wrong: the root is scanned in one go.
constexpr uint64_t kTooManyPieces = 100'000;

// For this thread and those that it starts.
void LowerPriority() {
  constexpr int kProcess = 1, kIdle = 3 << 13;  // IOPRIO_WHO_PROCESS, IOPRIO_CLASS_IDLE
  const pid_t self = static_cast<pid_t>(::syscall(SYS_gettid));
  (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(self), 10);
  (void)::syscall(SYS_ioprio_set, kProcess, 0, kIdle);
}

void Merge(tree::DirtySet from, tree::DirtySet* to) {
  to->directories.merge(from.directories);
  to->recursive.merge(from.recursive);
  for (auto& [directory, names] : from.names) to->names[directory].merge(names);
  to->inodes.merge(from.inodes);
  to->wanted.merge(from.wanted);
}

// What of `dirty` concerns the directory `path` and everything below it.
tree::DirtySet Below(const tree::DirtySet& dirty, const std::string& path) {
  tree::DirtySet below;
  for (const std::string& directory : dirty.directories) {
    if (tree::IsBelow(directory, path)) below.directories.insert(directory);
  }
  for (const std::string& directory : dirty.recursive) {
    if (tree::IsBelow(directory, path)) below.recursive.insert(directory);
  }
  for (const auto& [directory, names] : dirty.names) {
    if (tree::IsBelow(directory, path)) below.names[directory] = names;
  }
  below.inodes = dirty.inodes;
  return below;
}

int DepthOf(const std::string& path) {
  return path == "/" ? 0 : static_cast<int>(std::count(path.begin(), path.end(), '/'));
}

void MarkName(const std::string& path, tree::DirtySet* dirty) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos || slash + 1 == path.size()) return;
  dirty->names[slash == 0 ? "/" : path.substr(0, slash)].insert(path.substr(slash + 1));
}

// Marks the names that are in exactly one of the lists.
void MarkDifferences(std::vector<std::string> a, std::vector<std::string> b, tree::DirtySet* dirty) {
  std::sort(a.begin(), a.end());
  std::sort(b.begin(), b.end());
  std::vector<std::string> different;
  std::set_symmetric_difference(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(different));
  for (const std::string& path : different) MarkName(path, dirty);
}

}  // namespace

RootTree::RootTree(EventLoop* loop, Options options, TreeTable* table)
    : loop_(loop), options_(std::move(options)), table_(table), deny_(options_.deny) {
  // After a restart home serves content and applies the writes of running jobs before the first scan.
  const auto rules = deny_.Current();
  table_->SetRules(rules);
  if (options_.on_rules) options_.on_rules(*rules, /*first=*/true);
}

RootTree::~RootTree() {
  *alive_ = false;
  stop_ = true;
  worker_.Stop();
  if (reader_.joinable()) reader_.join();
}

void RootTree::Start() {
  worker_.Post([this] {
    Status begun = Begin();
    if (!begun) LogError("scan of the root: {}", begun.error().message());
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
    MarkName(path, &doubted_);
    if (pieces_) doubted_.wanted.insert(path);
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
  Add({true, std::move(exposed), {}, std::move(done)});
}

void RootTree::Known(std::vector<std::string> paths, std::function<void(Result<tree::TreePtr>)> done) {
  if (paths.size() > kMostWanted) paths.resize(kMostWanted);
  for (std::string& path : paths) path = tree::CleanPath(path);
  Add({false, {}, std::move(paths), std::move(done)});
}

void RootTree::Add(Waiter waiter) {
  bool first;
  {
    MutexLock lock(mutex_);
    first = waiters_.empty();
    waiters_.push_back(std::move(waiter));
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
  for (const Waiter& waiter : waiters) doubted_.wanted.insert(waiter.paths.begin(), waiter.paths.end());
  if (WatchesLazily() && CanExamine()) Merge(tree::OutdatedNames(*snapshot_, options_.root), &doubted_);
  const Status current = MakeCurrent();
  AnswerAll(std::move(waiters), current);
  if (!current) AnswerAll(std::exchange(for_whole_, {}), current);
}

void RootTree::AnswerAll(std::vector<Waiter> waiters, const Status& current) {
  for (Waiter& waiter : waiters) {
    if (!current) {
      Answer(std::move(waiter), current.error());
    } else if (pieces_ && (waiter.whole || (WatchesLazily() && !CanExamine()))) {
      for_whole_.push_back(std::move(waiter));
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

void RootTree::Watch() {
  if (watcher_) return;
  WatchOptions watch;
  watch.scan = ScanFor({});
  watch.cookie_directory = options_.cookie_directory;
  watch.backend = options_.backend;
  watch.lazy = true;
  auto watcher = Watcher::Start(std::move(watch));
  if (watcher) {
    watcher_ = std::move(*watcher);
    ListenToWatcher();
  } else {
    LogWarning("cannot watch the root, every command scans it: {}", watcher.error().message());
  }
  MutexLock lock(mutex_);
  facts_.watch = watcher_ ? watcher_->kind() : "rescan";
  facts_.watch_reason = watcher_ ? watcher_->reason() : "";
}

// Afterwards snapshot_ is there, whole or not.
Status RootTree::Begin() {
  if (snapshot_) return {};
  rules_ = deny_.Current();
  if (options_.on_rules) options_.on_rules(*rules_, /*first=*/false);
  Watch();
  const int64_t began = MonotonicMicros();
  const bool watched = watcher_ && watcher_->kind() != "rescan";
  auto snapshot = watched ? tree::FirstLook(ScanFor({})) : tree::Scan(ScanFor({}));
  {
    MutexLock lock(mutex_);
    facts_.error = snapshot ? "" : snapshot.error().message();
    facts_.known = snapshot.has_value();
    facts_.entries_before =
        std::strtoull(ReadFile(options_.cookie_directory + "/entries", 32).value_or("0").c_str(), nullptr, 10);
  }
  if (!snapshot) return snapshot.error().With("scan the root");
  snapshot_ = std::move(*snapshot);
  pieces_ = std::make_unique<Pieces>();
  pieces_->began = began;
  if (!watched) {
    HaveAll();
    return {};
  }
  pieces_->todo.push_back("/");
  table_->SetCurrent(snapshot_, rules_, false);
  worker_.Post([this] { NextPiece(); });
  return {};
}

// Continues the first scan. Other work of this thread comes in between.
void RootTree::NextPiece() {
  if (!pieces_ || pieces_->piece) return;
  if (pieces_->todo.empty()) {
    // A directory may have been replaced before its turn.
    std::string left = tree::AnyUnread(snapshot_->directory, "/");
    if (left.empty() && WatchesLazily() && !pieces_->examined) return ExamineAll();
    if (left.empty()) return HaveAll();
    pieces_->todo.push_back(std::move(left));
  }
  const std::string path = std::move(pieces_->todo.back());
  pieces_->todo.pop_back();
  if (++pieces_begun_ > kTooManyPieces) {
    doubted_.recursive.insert("/");
    if (const Status current = MakeCurrent(); !current) Fail(current.error());
    return;
  }
  const auto known = tree::LookupDirectory(*snapshot_, path);
  if (known && tree::AnyUnread(*known, path).empty()) return worker_.Post([this] { NextPiece(); });
  if (DepthOf(path) >= kPieceDepth) return ReadAt(path);
  if (!known) {
    doubted_.wanted.insert(path);
    if (const Status current = MakeCurrent(); !current) return Fail(current.error());
    if (!pieces_) return;
  }
  const auto listed = tree::LookupDirectory(*snapshot_, path);
  std::vector<std::string> below;
  for (size_t i = 0; listed && i < (*listed)->size(); ++i) {
    if ((*listed)->At(i).is_directory()) below.push_back(tree::JoinPath(path, (*listed)->NameAt(i)));
  }
  if (path != "/" && below.size() > kMostPieces) return ReadAt(path);
  pieces_->todo.insert(pieces_->todo.end(), below.rbegin(), below.rend());
  worker_.Post([this] { NextPiece(); });
}

// Reads this directory and everything below it, on another thread.
void RootTree::ReadAt(const std::string& path) {
  auto piece = tree::PieceAt(*snapshot_, path);
  if (!piece) return worker_.Post([this] { NextPiece(); });
  if (reader_.joinable()) reader_.join();
  pieces_->piece = *piece;
  pieces_->rules = rules_;
  pieces_->meanwhile = {};
  pieces_->examined = false;
  tree::ScanOptions scan = ScanFor({});
  scan.stop = &stop_;
  const bool low = for_whole_.empty();
  reader_ =
      std::thread([this, piece = *std::move(piece), scan = std::move(scan), low, number = pieces_begun_]() mutable {
        if (low) LowerPriority();
        for (auto left = options_.pause; left.count() > 0 && !stop_; left -= std::chrono::milliseconds(10)) {
          std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
        watcher_->Cover(piece.path, true);
        const Status read = tree::ReadPiece(scan, &piece);
        worker_.Post([this, number, piece = read ? Result<tree::Piece>(std::move(piece)) : read.error()]() mutable {
          HavePiece(number, std::move(piece));
        });
      });
}

// All directories are watched now. What changed before may not have been reported.
void RootTree::ExamineAll() {
  pieces_->examined = true;
  if (reader_.joinable()) reader_.join();
  reader_ = std::thread([this, snapshot = snapshot_, low = for_whole_.empty(), number = pieces_begun_] {
    if (low) LowerPriority();
    worker_.Post([this, number, outdated = tree::OutdatedNames(*snapshot, options_.root)]() mutable {
      if (!pieces_ || pieces_begun_ != number) return;  // of an earlier scan
      Merge(std::move(outdated), &doubted_);
      if (const Status current = MakeCurrent(); !current) return Fail(current.error());
      NextPiece();
    });
  });
}

void RootTree::HavePiece(uint64_t number, Result<tree::Piece> piece) {
  if (!pieces_ || pieces_begun_ != number || !pieces_->piece) return;  // of an earlier scan
  const std::string path = std::exchange(pieces_->piece, std::nullopt)->path;
  Status done = piece ? Status() : piece.error();
  if (piece) {
    auto next = tree::PutPiece(snapshot_, *piece);
    if (next && *next) snapshot_ = *std::move(next);
    if (!next) done = next.error();
    if (pieces_->rules != rules_) MarkDifferences(pieces_->rules->Hidden(), rules_->Hidden(), &pieces_->meanwhile);
    Merge(std::exchange(pieces_->meanwhile, {}), &doubted_);
    MarkName(path, &doubted_);  // a change of its own times may not have been reported
    if (done) done = MakeCurrent();
  } else if (piece.error().code() == Code::kNotFound) {
    done = {};
    MarkName(path, &doubted_);
    done = MakeCurrent();
  }
  if (!done) return Fail(done.error());
  if (!pieces_) return;
  table_->SetCurrent(snapshot_, rules_, false);
  {
    MutexLock lock(mutex_);
    facts_.entries = snapshot_->entries;
  }
  worker_.Post([this] { NextPiece(); });
}

void RootTree::Fail(const Error& error) {
  if (stop_) return;
  LogError("scan of the root: {}", error.message());
  snapshot_.reset();
  pieces_.reset();
  AnswerAll(std::exchange(for_whole_, {}), error);
}

void RootTree::HaveAll() {
  const double seconds = static_cast<double>(MonotonicMicros() - pieces_->began) / 1e6;
  pieces_.reset();
  table_->SetCurrent(snapshot_, rules_);
  std::string watch;
  {
    MutexLock lock(mutex_);
    facts_.scanned = true;
    facts_.scan_seconds = seconds;
    facts_.entries = snapshot_->entries;
    if (watcher_) facts_.watch = watcher_->kind();
    if (watcher_) facts_.watch_reason = watcher_->reason();
    watch = facts_.watch + (facts_.watch_reason.empty() ? "" : ": " + facts_.watch_reason);
  }
  LogInfo("root scanned: {} entries, {} bytes, {:.2f} s, watched by {}", snapshot_->entries, snapshot_->bytes, seconds,
          watch);
  // Only to say how far the next first scan is.
  (void)WriteFileAtomic(options_.cookie_directory + "/entries", std::to_string(snapshot_->entries), 0600);
  if (for_whole_.empty()) return;
  // With a barrier of their own.
  for (Waiter& waiter : std::exchange(for_whole_, {})) Add(std::move(waiter));
}

void RootTree::AddLinked(tree::DirtySet* dirty) const {
  for (const auto& [directory, names] : dirty->names) {
    if (tree::UnreadAbove(*snapshot_, directory).empty()) continue;
    for (const std::string& name : names) {
      struct stat st;
      const std::string path = options_.root + tree::JoinPath(directory, name);
      if (::lstat(path.c_str(), &st) == 0 && !S_ISDIR(st.st_mode) && st.st_nlink > 1) dirty->inodes.insert(st.st_ino);
    }
  }
  for (const std::string& directory : dirty->directories) {
    if (!tree::UnreadAbove(*snapshot_, directory).empty()) dirty->wanted.insert(directory);
  }
}

Status RootTree::MakeCurrent() {
  if (!snapshot_) VRUN_TRY(Begin());
  if (options_.mappings) options_.mappings->Look();
  tree::DirtySet dirty = Changes();
  if (options_.mappings) options_.mappings->AddChanged(&dirty);
  Merge(std::exchange(doubted_, {}), &dirty);
  std::erase_if(dirty.wanted, [this](const std::string& path) {
    return !pieces_ || DepthOf(path) > kDeepest || tree::UnreadAbove(*snapshot_, path).empty();
  });
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
  table_->SetCurrent(snapshot_, rules_, !pieces_);
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
    if (options_.on_rules) options_.on_rules(*rules, /*first=*/false);
    MarkDifferences(rules_->Hidden(), rules->Hidden(), &dirty);
  }
  if (pieces_ && dirty.everything()) watcher_->Cover("/", true);
  if (pieces_ && !dirty.everything()) {
    AddLinked(&dirty);
    for (const std::string& path : dirty.wanted) watcher_->Cover(path, false);
  }
  if (dirty.empty()) return {};
  if (pieces_ && pieces_->piece) Merge(Below(dirty, pieces_->piece->path), &pieces_->meanwhile);
  rules_ = rules;
  auto next = tree::Rescan(snapshot_, dirty, ScanFor({}), names);
  if (!next) {
    // The dirty set is lost: the next refresh scans everything.
    snapshot_.reset();
    pieces_.reset();
    return next.error().With("scan the root");
  }
  snapshot_ = std::move(*next);
  if (pieces_ && dirty.everything()) HaveAll();
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
