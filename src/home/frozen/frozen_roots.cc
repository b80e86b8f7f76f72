// SPDX-License-Identifier: Apache-2.0
#include "home/frozen/frozen_roots.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
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
      enabled_(FreezeWanted()) {}

// Pending writes are completed: the next home needs them.
FrozenRoots::~FrozenRoots() {
  *alive_ = false;
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

Status FrozenRoots::Write(uint64_t job, const tree::Tree& tree, const std::string& record) {
  VRUN_TRY(OpenStore());
  VRUN_TRY(PutDirectories(*tree.directory, store_.get(), &stored_));
  VRUN_TRY(store::MakeDurable(directory_ + "/store", {}));
  return WriteFileAtomic(PathOf(job), record, 0600);
}

void FrozenRoots::Sweep(const std::vector<tree::DirectoryPtr>& needed) {
  if (needed.empty()) {
    store_.reset();
    stored_.clear();
    (void)RemoveTree(directory_ + "/store");
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
  kept.tree = std::move(tree);
}

void FrozenRoots::Begin(uint64_t job) {
  Status made = MakeDirs(directory_ + "/jobs", 0700);
  auto begun = made ? OpenFile(PathOf(job), O_WRONLY | O_CREAT, 0600) : Result<UniqueFd>(made.error());
  if (!begun)
    LogWarning("the root of job {} as it is now will not survive the end of home: {}", job, begun.error().message());
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
  kept.tree = std::move(tree);
  After(kHeldMicros, job, [this, job, tree = kept.tree] { Hold(job, tree); });
  After(kWrittenMicros, job, [this, job] { WriteLater(job, nullptr); });
}

void FrozenRoots::Share(uint64_t job, uint64_t from) {
  const Job& shared = jobs_.at(from);
  Job& kept = jobs_[job];
  kept.exposed = shared.exposed;
  kept.first = shared.first;
  kept.tree = shared.tree;
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
  writer_.Post([this, job, tree = kept.tree, record = RecordOf(*kept.tree, kept.exposed, kept.first),
                durable = std::move(durable)] {
    if (Status written = Write(job, *tree, record); !written) {
      LogWarning("the root of job {} as it is now will not survive the end of home: {}", job,
                 written.error().message());
    }
    if (!durable) return;
    loop_->Post([alive = alive_, durable] {
      if (*alive) durable();
    });
  });
}

Result<FrozenRoots::Found> FrozenRoots::Find(uint64_t job) const {
  const auto it = jobs_.find(job);
  if (it == jobs_.end()) return NoTree(job);
  return Found{it->second.tree, it->second.exposed};
}

std::function<void(const std::string&)> FrozenRoots::Recorder(uint64_t job) {
  (void)MakeDirs(directory_ + "/jobs", 0700);
  auto opened = OpenFile(PathOf(job) + ".wrote", O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (!opened) {
    LogWarning("the next attempt of job {} will not see its writes: {}", job, opened.error().message());
    return nullptr;
  }
  return [fd = std::make_shared<UniqueFd>(*std::move(opened)), job](const std::string& path) {
    if (Status written = WriteAll(fd->get(), path + '\0'); !written) {
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
  tree_->Current(it->second.exposed, [this, job, taken, paths = std::move(paths),
                                      done = std::move(done)](Result<tree::TreePtr> now) {
    const auto it = jobs_.find(job);
    if (it == jobs_.end()) return done(NoTree(job));
    if (!now) return done(std::move(now));
    auto next = tree::Graft(it->second.tree, **now, paths);
    if (!next) return done(std::move(next));
    Hold(job, *next);
    // Remove the list before anything is added to it; otherwise later changes of home to these names would be included
    // too.
    writer_.Post([this, job, tree = *next, taken, record = RecordOf(**next, it->second.exposed, it->second.first),
                  done = std::move(done)]() mutable {
      if (Status written = Write(job, *tree, record); written) {
        ::unlink(taken.c_str());
      } else {
        LogWarning("the next attempt of job {} will not see its writes if home restarts: {}", job,
                   written.error().message());
      }
      loop_->Post([alive = alive_, done = std::move(done), tree = std::move(tree)] {
        if (*alive) done(tree);
      });
    });
  });
}

void FrozenRoots::Forget(uint64_t job) {
  const bool known = jobs_.erase(job) > 0;
  std::vector<tree::DirectoryPtr> needed;
  for (const auto& [other, kept] : jobs_) needed.push_back(kept.tree->directory);
  writer_.Post([this, job, needed = std::move(needed)] {
    for (const char* suffix : {"", ".wrote", ".wrote.taken"}) ::unlink((PathOf(job) + suffix).c_str());
    Sweep(needed);
  });
  if (known) files_->DropUnclaimed();
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
