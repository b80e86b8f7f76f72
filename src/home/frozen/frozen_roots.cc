// SPDX-License-Identifier: Apache-2.0
#include "home/frozen/frozen_roots.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "base/escape.h"
#include "base/files.h"
#include "base/log.h"
#include "home/root/root_tree.h"
#include "proto/frozen.pb.h"
#include "store/format/durable.h"
#include "tree/codec.h"
#include "tree/directory_builder.h"
#include "tree/graft.h"

namespace vrun::home {
namespace {

constexpr int kMaxDepth = 4096;
constexpr size_t kMaxWrote = 256u << 20;  // bytes of paths
constexpr size_t kSweepAbove = 1000;      // directories

Error NoTree(uint64_t job) {
  return Error(Code::kNotFound, "job " + std::to_string(job) +
                                    ": home stopped before it had stored the root of the job: submit it again");
}

bool FreezeWanted() {
  const char* wish = ::getenv("VRUN_FREEZE");
  return wish == nullptr || std::string_view(wish) != "0";
}

std::string RecordOf(const tree::Tree& tree, const std::vector<std::string>& exposed,
                     const std::vector<std::string>& first) {
  v1::FrozenRoot record;
  record.set_root(tree::EncodeRoot(tree.root));
  for (const std::string& path : exposed) record.add_expose(path);
  for (const std::string& path : first) record.add_first(path);
  return record.SerializeAsString();
}

void AddPaths(const std::string& bytes, std::set<std::string>* paths) {
  // A path without its NUL was not written completely: its operation was not acknowledged and will be repeated.
  for (size_t from = 0, end; (end = bytes.find('\0', from)) != std::string::npos; from = end + 1) {
    paths->insert(bytes.substr(from, end - from));
  }
}

void AddDigests(const tree::Directory& directory, std::set<Digest>* digests) {
  if (!digests->insert(directory.digest()).second) return;
  for (size_t i = 0; i < directory.size(); ++i) {
    if (const tree::DirectoryPtr child = directory.Child(i)) AddDigests(*child, digests);
  }
}

// Stores missing directories, children first, so that a stored directory always has everything below it.
Status PutDirectories(const tree::Directory& directory, store::Store* store, std::set<Digest>* stored) {
  if (stored->contains(directory.digest())) return {};
  for (size_t i = 0; i < directory.size(); ++i) {
    if (const tree::DirectoryPtr child = directory.Child(i)) VRUN_TRY(PutDirectories(*child, store, stored));
  }
  VRUN_TRY(store->PutBlob(directory.digest(), directory.encoded()));
  stored->insert(directory.digest());
  return {};
}

}  // namespace

std::string ProjectOf(const tree::Tree& tree, const std::string& directory) {
  for (std::string at = directory; at.size() > 1; at = at.substr(0, at.rfind('/'))) {
    const auto found = tree::LookupDirectory(tree, at);
    if (found && (*found)->Find(".git") != (*found)->size()) return at;
  }
  return directory;
}

FrozenRoots::FrozenRoots(EventLoop* loop, RootTree* tree, TreeTable* table, FrozenFiles* files, std::string directory)
    : loop_(loop),
      tree_(tree),
      table_(table),
      files_(files),
      directory_(std::move(directory)),
      enabled_(FreezeWanted()),
      records_(directory_ + "/jobs", directory_ + "/common") {}

// Pending writes are completed: the next home needs them.
FrozenRoots::~FrozenRoots() {
  *alive_ = false;
  loop_->Cancel(sweep_);
  if (jobs_.empty()) {
    writer_.Post([this] {
      latest_.reset();
      Sweep();
    });
  }
  writer_.Drain();
}

// --- the disk ---

Status FrozenRoots::OpenStore() {
  if (store_) return {};
  VRUN_TRY(MakeDirs(directory_ + "/jobs", 0700));
  store::Options options;
  options.directory = directory_ + "/store";
  options.never_evict = true;
  VRUN_ASSIGN(store_, store::Store::Open(options));
  return {};
}

Status FrozenRoots::PutTree(const tree::Tree& tree) {
  VRUN_TRY(OpenStore());
  latest_ = tree.directory;
  if (stored_.contains(tree.directory->digest())) return {};
  synced_ = false;
  return PutDirectories(*tree.directory, store_.get(), &stored_);
}

void FrozenRoots::Write(Unwritten unwritten) {
  bool first;
  {
    MutexLock lock(mutex_);
    first = unwritten_.empty();
    unwritten_.push_back(std::move(unwritten));
  }
  if (first) writer_.Post([this] { WriteAllUnwritten(); });
}

// A record is written after its tree is on disk.
void FrozenRoots::WriteAllUnwritten() {
  std::vector<Unwritten> all;
  {
    MutexLock lock(mutex_);
    all.swap(unwritten_);
  }
  std::vector<Status> written;
  for (const Unwritten& one : all) written.push_back(PutTree(*one.tree));
  Status synced;
  if (store_ && !synced_) synced = store::MakeDurable(directory_ + "/store", {});
  if (store_) synced_ = synced.has_value();
  for (size_t i = 0; i < all.size(); ++i) {
    if (!written[i]) continue;
    const Unwritten& one = all[i];
    if (!synced) {
      written[i] = synced;
    } else {
      written[i] = one.job == 0 ? records_.Prepare(one.record) : records_.Put(std::to_string(one.job), one.record);
    }
  }
  if (synced) synced = records_.Sync();
  std::vector<std::function<void()>> done;
  for (size_t i = 0; i < all.size(); ++i) {
    if (written[i] && !synced) written[i] = synced;
    if (all[i].written) {
      all[i].written(written[i]);
    } else if (!written[i] && all[i].job != 0) {
      LogWarning("the root of job {} as it is now will not survive the end of home: {}", all[i].job,
                 written[i].error().message());
    }
    if (all[i].done) done.push_back(std::move(all[i].done));
  }
  if (done.empty()) return;
  loop_->Post([alive = alive_, done = std::move(done)] {
    for (const auto& call : done) {
      if (*alive) call();
    }
  });
}

void FrozenRoots::Sweep() {
  std::set<tree::DirectoryPtr> needed;
  {
    MutexLock lock(mutex_);
    for (const auto& [job, directory] : live_) needed.insert(directory);
  }
  if (latest_) needed.insert(latest_);
  if (needed.empty()) {
    store_.reset();
    stored_.clear();
    synced_ = false;
    (void)RemoveTree(directory_ + "/store");
    for (const char* name : {"/common", "/begun"}) ::unlink((directory_ + name).c_str());
    return;
  }
  std::set<Digest> digests;
  for (const tree::DirectoryPtr& directory : needed) AddDigests(*directory, &digests);
  if (!store_ || stored_.size() < 2 * digests.size() + kSweepAbove) return;
  auto swept = store_->Sweep([](const store::ObjectId&) { return false; },
                             [&](const Digest& digest) { return digests.contains(digest); });
  if (!swept) LogWarning("cannot remove the trees of ended jobs: {}", swept.error().message());
  stored_ = std::move(digests);
}

Result<tree::DirectoryPtr> FrozenRoots::LoadDirectory(const Digest& digest, int depth) {
  if (depth > kMaxDepth) return Error(Code::kCorrupt, "the stored tree is nested too deeply");
  if (const auto it = loaded_.find(digest); it != loaded_.end()) return it->second;
  VRUN_ASSIGN(std::string bytes, store_->GetBlob(digest));
  VRUN_ASSIGN(const tree::DirectoryPtr parsed, tree::Directory::Parse(std::move(bytes)));
  tree::DirectoryBuilder builder;
  std::vector<tree::DirectoryBuilder::NamedDirectory> children;
  for (size_t i = 0; i < parsed->size(); ++i) {
    const tree::Entry entry = parsed->At(i);
    if (!builder.AddEncoded(parsed->EncodedAt(i))) return Error(Code::kCorrupt, "a directory is too large");
    if (!entry.is_directory()) continue;
    VRUN_ASSIGN(tree::DirectoryPtr child, LoadDirectory(entry.child, depth + 1));
    children.emplace_back(entry.name, std::move(child));
  }
  tree::DirectoryPtr complete = std::move(builder).Finish(std::move(children));
  if (complete->digest() != digest) return Error(Code::kCorrupt, "a stored directory does not match its digest");
  stored_.insert(digest);
  loaded_.emplace(digest, complete);
  return complete;
}

Status FrozenRoots::RecallOne(uint64_t job) {
  VRUN_ASSIGN(const std::string bytes, ReadFile(PathOf(job)));
  v1::FrozenRoot record;
  if (bytes.empty()) return Error(Code::kNotFound, "home stopped before the tree was on the disk");
  if (!record.ParseFromString(bytes)) return Error(Code::kCorrupt, "its record does not parse");
  VRUN_TRY(OpenStore());
  VRUN_ASSIGN(tree::Entry root, tree::DecodeRoot(record.root(), Sha256(record.root())));
  VRUN_ASSIGN(tree::DirectoryPtr directory, LoadDirectory(root.child, 0));
  Job& kept = jobs_[job];
  kept.exposed.assign(record.expose().begin(), record.expose().end());
  kept.first.assign(record.first().begin(), record.first().end());
  kept.recalled = true;
  Hold(job, tree::AssembleTree(std::move(root), std::move(directory)));
  return {};
}

void FrozenRoots::Recall() {
  std::error_code ignored;
  for (const auto& file : std::filesystem::directory_iterator(directory_ + "/jobs", ignored)) {
    const std::string name = file.path().filename();
    char* end;
    const uint64_t job = std::strtoull(name.c_str(), &end, 10);
    if (*end != '\0' || job == 0) continue;
    if (Status recalled = RecallOne(job); !recalled) {
      LogWarning("the root of job {} as it was at its submission is lost: {}", job, recalled.error().message());
      lost_.push_back(job);
    }
  }
  loaded_.clear();
  // Keeps an empty record, which says that there was a tree.
  for (const uint64_t job : lost_) (void)WriteFileAtomic(PathOf(job), "", 0600);
  files_->DropUnclaimed();
}

void FrozenRoots::Retain(const std::set<uint64_t>& jobs) {
  std::vector<uint64_t> over;
  for (const auto& [job, kept] : jobs_) {
    if (kept.recalled && !jobs.contains(job)) over.push_back(job);
  }
  for (const uint64_t job : lost_) {
    if (!jobs.contains(job)) over.push_back(job);
  }
  for (const uint64_t job : over) Forget(job);
}

// --- jobs ---

void FrozenRoots::Hold(uint64_t job, tree::TreePtr tree) {
  Job& kept = jobs_[job];
  // Make the new claims before dropping the old ones, since they share most files.
  kept.pin = table_->Add(tree, kept.exposed);
  kept.hold = files_->Freeze(tree, kept.first, std::move(kept.hold));
  SetTree(job, std::move(tree));
}

void FrozenRoots::SetTree(uint64_t job, tree::TreePtr tree) {
  MutexLock lock(mutex_);
  live_[job] = tree->directory;
  jobs_[job].tree = std::move(tree);
}

void FrozenRoots::Begin(uint64_t job) {
  // A further name of an empty file: a file of its own would be replaced soon.
  const std::string path = PathOf(job), begun = directory_ + "/begun";
  const auto link = [&] { return ::link(begun.c_str(), path.c_str()) == 0 || errno == EEXIST; };
  if (link()) return;
  Status made = MakeDirs(directory_ + "/jobs", 0700);
  if (made && OpenFile(begun, O_WRONLY | O_CREAT, 0600) && link()) return;
  auto opened = made ? OpenFile(path, O_WRONLY | O_CREAT, 0600) : Result<UniqueFd>(made.error());
  if (!opened)
    LogWarning("the root of job {} as it is now will not survive the end of home: {}", job, opened.error().message());
}

bool FrozenRoots::Begun(uint64_t job) const { return Has(job) || PathExists(PathOf(job)); }

void FrozenRoots::Add(uint64_t job, tree::TreePtr tree, std::vector<std::string> exposed,
                      std::vector<std::string> first, std::function<void()> durable) {
  Job& kept = jobs_[job];
  kept.exposed = std::move(exposed);
  kept.first = std::move(first);
  Hold(job, std::move(tree));
  WriteLater(job, std::move(durable));
}

void FrozenRoots::AddShort(uint64_t job, tree::TreePtr tree, std::vector<std::string> exposed,
                           std::vector<std::string> first) {
  Job& kept = jobs_[job];
  kept.exposed = std::move(exposed);
  kept.first = std::move(first);
  kept.pin = table_->Add(tree, kept.exposed);
  kept.hold = files_->FreezeFirst(tree, kept.first);
  SetTree(job, std::move(tree));
  After(kHeldMicros, job, [this, job, tree = kept.tree] { Hold(job, tree); });
  After(kWrittenMicros, job, [this, job] { WriteLater(job, nullptr); });
}

void FrozenRoots::Share(uint64_t job, uint64_t from) {
  const Job& shared = jobs_.at(from);
  Job& kept = jobs_[job];
  kept.exposed = shared.exposed;
  kept.first = shared.first;
  SetTree(job, shared.tree);
  kept.hold = shared.hold;
  kept.pin = table_->Add(kept.tree, kept.exposed);
  // After the tree of `from` was written. A later record replaces the name only.
  writer_.Post([this, job, from] {
    if (::link(PathOf(from).c_str(), PathOf(job).c_str()) == 0 || errno == EEXIST) return;
    LogWarning("the root of job {} as it is now will not survive the end of home: {}", job,
               ErrnoError(Escape(PathOf(job))).message());
  });
}

void FrozenRoots::After(int64_t micros, uint64_t job, std::function<void()> done) {
  loop_->After(micros, [this, alive = alive_, job, tree = jobs_.at(job).tree, done = std::move(done)] {
    if (!*alive) return;
    const auto it = jobs_.find(job);
    if (it != jobs_.end() && it->second.tree == tree) done();
  });
}

void FrozenRoots::WriteLater(uint64_t job, std::function<void()> durable) {
  const Job& kept = jobs_.at(job);
  Write({job, kept.tree, RecordOf(*kept.tree, kept.exposed, kept.first), nullptr, std::move(durable)});
}

void FrozenRoots::Prepare(tree::TreePtr tree, const std::vector<std::string>& exposed,
                          const std::vector<std::string>& first) {
  std::string record = RecordOf(*tree, exposed, first);
  Write({0, std::move(tree), std::move(record), nullptr, nullptr});
}

Result<FrozenRoots::Found> FrozenRoots::Find(uint64_t job) const {
  const auto it = jobs_.find(job);
  if (it == jobs_.end()) return NoTree(job);
  return Found{it->second.tree, it->second.exposed};
}

std::function<void(const std::string&)> FrozenRoots::Recorder(uint64_t job) {
  struct List {
    Mutex mutex;
    std::optional<Result<UniqueFd>> file VRUN_GUARDED_BY(mutex);
  };
  return [list = std::make_shared<List>(), job, name = PathOf(job) + ".wrote"](const std::string& path) {
    MutexLock lock(list->mutex);
    if (!list->file) {  // many jobs write nothing
      (void)MakeDirs(name.substr(0, name.rfind('/')), 0700);
      list->file = OpenFile(name, O_WRONLY | O_CREAT | O_APPEND, 0600);
    }
    const Result<UniqueFd>& file = *list->file;
    if (Status written = file ? WriteAll(file->get(), path + '\0') : Status(file.error()); !written) {
      LogWarning("job {}: {} will not be seen by its next attempt: {}", job, Escape(path), written.error().message());
    }
  };
}

void FrozenRoots::Next(uint64_t job, std::function<void(Result<tree::TreePtr>)> done) {
  const auto it = jobs_.find(job);
  if (it == jobs_.end()) return done(NoTree(job));
  // Set aside until the new tree is on disk: the next attempt writes a new list.
  const std::string list = PathOf(job) + ".wrote", taken = list + ".taken";
  std::set<std::string> paths;
  AddPaths(ReadFile(taken, kMaxWrote).value_or(""), &paths);
  AddPaths(ReadFile(list, kMaxWrote).value_or(""), &paths);
  if (paths.empty()) return done(it->second.tree);
  std::string all;
  for (const std::string& path : paths) all += path + '\0';
  if (Status moved = WriteFileAtomic(taken, all, 0600); moved) ::unlink(list.c_str());
  tree_->Current(it->second.exposed,
                 [this, job, taken, paths = std::move(paths), done = std::move(done)](Result<tree::TreePtr> now) {
                   const auto it = jobs_.find(job);
                   if (it == jobs_.end()) return done(NoTree(job));
                   if (!now) return done(std::move(now));
                   auto next = tree::Graft(it->second.tree, **now, paths);
                   if (!next) return done(std::move(next));
                   Hold(job, *next);
                   // Remove the list before anything is added to it; otherwise later changes of home to these names
                   // would be included too.
                   const auto written = [job, taken](const Status& status) {
                     if (status) {
                       ::unlink(taken.c_str());
                     } else {
                       LogWarning("the next attempt of job {} will not see its writes if home restarts: {}", job,
                                  status.error().message());
                     }
                   };
                   Write({job, *next, RecordOf(**next, it->second.exposed, it->second.first), written,
                          [done = std::move(done), tree = *next] { done(tree); }});
                 });
}

void FrozenRoots::Forget(uint64_t job) {
  const bool known = jobs_.erase(job) > 0;
  if (known) {
    MutexLock lock(mutex_);
    live_.erase(job);
  }
  writer_.Post([this, job] {
    for (const char* suffix : {"", ".wrote", ".wrote.taken"}) ::unlink((PathOf(job) + suffix).c_str());
  });
  SweepLater();
  if (known) files_->DropUnclaimed();
}

// Not at the end of each job: all directories are looked at.
void FrozenRoots::SweepLater() {
  if (sweep_ != 0) return;
  sweep_ = loop_->After(kSweepMicros, [this] {
    sweep_ = 0;
    writer_.Post([this] { Sweep(); });
  });
}

std::string FrozenRoots::Describe(uint64_t job) const {
  const auto it = jobs_.find(job);
  if (it == jobs_.end()) return "";
  const FrozenFiles::Hold& hold = *it->second.hold;
  if (!hold.complete()) return "its files are being held";
  std::string text = std::to_string(hold.files() - hold.left_out()) + " files held";
  if (hold.left_out() > 0) text += ", " + std::to_string(hold.left_out()) + " not: changes of these are seen as errors";
  return text;
}

}  // namespace vrun::home
