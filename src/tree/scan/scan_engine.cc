// SPDX-License-Identifier: Apache-2.0
#include "tree/scan/scan_engine.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "base/escape.h"
#include "base/files.h"
#include "base/thread/mutex.h"
#include "tree/scan/listing.h"

namespace vrun::tree {
namespace {

constexpr size_t kSliceNames = 4096;  // larger directories are split between the threads
constexpr size_t kHelpAtTasks = 24;   // with less work, threads would start too late to help

}  // namespace

Result<ScanContext> ScanContext::Open(const ScanOptions& options) {
  VRUN_ASSIGN(UniqueFd root, OpenFile(options.root, O_RDONLY | O_DIRECTORY));
  // Mount points are known by their real paths.
  char* real = ::realpath(options.root.c_str(), nullptr);
  if (real == nullptr) return ErrnoError("resolve " + Escape(options.root));
  const std::string path(real);
  ::free(real);
  VRUN_ASSIGN(MountTable mounts, MountTable::Read(path));
  unsigned threads = options.threads;
  if (threads == 0) threads = std::max(2u, std::thread::hardware_concurrency());
  return ScanContext{std::move(root), PathRules(options.hollow, options.hidden), std::move(mounts), threads,
                     options.stop};
}

ScanContext::Kind ScanContext::ReadName(int dir_fd, const std::string& directory, const char* name, uint64_t ino,
                                        AttributeReader& reader, Entry* entry) const {
  if (rules.IsHidden(directory, name)) return Kind::kAbsent;
  const auto* excluded = mounts.ExcludedIn(directory);
  if (excluded != nullptr && excluded->contains(name)) {
    *entry = Entry{};
    entry->name = name;
    entry->mode = S_IFDIR | 0755;
    entry->nlink = 0;
    entry->ino = ino;
    return Kind::kHollow;
  }
  if (reader.Read(dir_fd, name, entry) != 0) return Kind::kAbsent;
  if (!entry->is_directory()) return Kind::kLeaf;
  if (!rules.IsHollow(JoinPath(directory, name))) return Kind::kDirectory;
  entry->mtime_ns = 0;
  return Kind::kHollow;
}

// Lives until its listing, its slices and its sub-directories are done (pending). Then its Directory is built and
// handed to its parent, which lives at least as long.
struct ScanEngine::Node {
  Node* parent;
  std::string path;
  std::string name;
  std::atomic<size_t> pending = 1;
  UniqueFd fd;  // open while it is being listed
  Names names;
  std::atomic<size_t> slices = 0;

  void Close() {
    fd.Reset();
    names = Names();
  }

  Mutex mutex;  // guards the members below
  DirectoryBuilder builder VRUN_GUARDED_BY(mutex);
  std::vector<DirectoryBuilder::NamedDirectory> children VRUN_GUARDED_BY(mutex);
  std::vector<std::string> gone VRUN_GUARDED_BY(mutex);  // sub-directories that vanished after the listing
  bool vanished VRUN_GUARDED_BY(mutex) = false;
};

Result<DirectoryPtr> ScanEngine::Run(const std::string& path) {
  {
    MutexLock lock(mutex_);
    done_ = root_gone_ = failed_ = false;
    result_ = nullptr;
    error_ = nullptr;
    stack_.push_back({new Node{nullptr, path, {}}, 0, 0});
  }
  Work();
  for (std::thread& helper : helpers_) helper.join();
  helpers_.clear();
  MutexLock lock(mutex_);
  if (error_) return *error_;
  if (root_gone_) return Error(Code::kNotFound, Escape(path) + ": no such directory");
  return std::move(result_);
}

void ScanEngine::Work() {
  AttributeReader reader;
  MutexLock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this]() VRUN_REQUIRES(mutex_) { return done_ || !stack_.empty(); });
    if (stack_.empty()) return;
    const Task task = stack_.back();
    stack_.pop_back();
    lock.unlock();
    Do(task, reader);
    lock.lock();
  }
}

void ScanEngine::Do(const Task& task, AttributeReader& reader) {
  if (task.end == 0) {
    List(task.node, reader);
  } else {
    if (!failed_) StatSlice(task.node, task.begin, task.end, reader);
    if (--task.node->slices == 0) task.node->Close();
  }
  Release(task.node);
}

void ScanEngine::Fail(Error error) {
  MutexLock lock(mutex_);
  if (!error_) error_ = std::make_unique<Error>(std::move(error));
  failed_ = true;
}

void ScanEngine::Push(std::vector<Task> tasks) {
  if (tasks.empty()) return;
  MutexLock lock(mutex_);
  stack_.insert(stack_.end(), tasks.begin(), tasks.end());
  if (stack_.size() >= kHelpAtTasks) {
    StartHelpers();
  }
  if (!helpers_.empty()) wake_.notify_all();
}

// Reaching the limit of threads is not an error: one thread does all the work, only slower.
void ScanEngine::StartHelpers() {
  try {
    while (helpers_.size() + 1 < context_.threads) helpers_.emplace_back([this] { Work(); });
  } catch (const std::system_error&) {
  }
}

void ScanEngine::List(Node* node, AttributeReader& reader) {
  if (context_.stop != nullptr && *context_.stop) Fail(Error(Code::kAborted, "scan: stopped"));
  if (failed_) return;
  const int fd = OpenDirectory(context_.root.get(), node->path);
  int error = fd < 0 ? -fd : 0;
  if (fd >= 0) {
    node->fd.Reset(fd);
    error = node->names.Read(fd);
  }
  if (OutOfResources(error)) {
    return Fail(ErrnoError(error, "scan " + Escape(node->path)));
  } else if (error == ENOENT || error == ENOTDIR || error == ELOOP) {
    MutexLock lock(node->mutex);
    node->vanished = true;
  } else if (error != 0) {
    ++unreadable_;
  }
  if (error != 0) return node->Close();
  const size_t count = node->names.size();
  if (count <= 2 * kSliceNames) {
    StatSlice(node, 0, count, reader);
    return node->Close();
  }
  std::vector<Task> slices;
  for (size_t at = 0; at < count; at += kSliceNames) slices.push_back({node, at, std::min(at + kSliceNames, count)});
  node->pending += slices.size();
  node->slices = slices.size();
  Push(std::move(slices));
}

void ScanEngine::StatSlice(Node* node, size_t begin, size_t end, AttributeReader& reader) {
  DirectoryBuilder builder;
  std::vector<DirectoryBuilder::NamedDirectory> hollow;
  std::vector<Task> below;
  Entry entry;
  bool fits = true;
  for (size_t i = begin; i < end; ++i) {
    const char* name = node->names.at(i);
    const auto kind = context_.ReadName(node->fd.get(), node->path, name, node->names.ino(i), reader, &entry);
    if (kind == ScanContext::Kind::kAbsent) continue;
    fits = fits && builder.Add(entry);
    if (kind == ScanContext::Kind::kDirectory) {
      below.push_back({new Node{node, JoinPath(node->path, name), name}, 0, 0});
    } else if (kind == ScanContext::Kind::kHollow) {
      hollow.emplace_back(name, DirectoryBuilder().Finish({}));
    }
  }
  node->pending += below.size();
  {
    MutexLock lock(node->mutex);
    fits = node->builder.Append(std::move(builder)) && fits;
    std::move(hollow.begin(), hollow.end(), std::back_inserter(node->children));
  }
  if (!fits)
    Fail(Error(Code::kExhausted, "scan " + Escape(node->path) + ": the directory has more than 4 GiB of attributes"));
  Push(std::move(below));
}

// The thread that drops the last count has the node to itself.
void ScanEngine::Release(Node* node) VRUN_NO_THREAD_SAFETY_ANALYSIS {
  // A loop instead of recursion up the tree, which may be deep.
  while (--node->pending == 0) {
    Node* parent = node->parent;
    DirectoryPtr directory;
    const bool vanished = node->vanished;
    if (!vanished && !failed_) {
      node->builder.Remove(std::move(node->gone));
      directory = std::move(node->builder).Finish(std::move(node->children));
    }
    if (parent != nullptr) {
      MutexLock lock(parent->mutex);
      if (vanished)
        parent->gone.push_back(std::move(node->name));
      else
        parent->children.emplace_back(std::move(node->name), std::move(directory));
    }
    delete node;
    if (parent == nullptr) {
      MutexLock lock(mutex_);
      root_gone_ = vanished;
      result_ = std::move(directory);
      done_ = true;
      wake_.notify_all();
      return;
    }
    node = parent;
  }
}

}  // namespace vrun::tree
