// SPDX-License-Identifier: Apache-2.0
// Scans directories recursively. Internal to tree; use Scan and Rescan.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"
#include "base/thread/mutex.h"
#include "base/unique_fd.h"
#include "tree/attributes.h"
#include "tree/directory_builder.h"
#include "tree/rules.h"
#include "tree/scan/mounts.h"
#include "tree/scan/scan.h"

namespace vrun::tree {

// Shared by scan and rescan: the root, the rules, the mounts.
struct ScanContext {
  static Result<ScanContext> Open(const ScanOptions& options);

  UniqueFd root;
  PathRules rules;
  MountTable mounts;
  unsigned threads = 2;
  const std::atomic<bool>* stop = nullptr;

  enum class Kind { kAbsent, kLeaf, kDirectory, kHollow };
  // Reads `name` of `directory` as the tree shows it. kHollow: a directory that stays empty. kAbsent: hidden, gone, or
  // not accessible. Does not stat other mounts, which could wait for a server. `ino`: from the listing.
  Kind ReadName(int dir_fd, const std::string& directory, const char* name, uint64_t ino, AttributeReader& reader,
                Entry* entry) const;
};

class ScanEngine {
 public:
  explicit ScanEngine(const ScanContext& context) : context_(context) {}

  // The directory at `path` in the root. kNotFound when it is gone or not a directory, kExhausted when descriptors or
  // memory ran out. An unreadable directory is empty.
  Result<DirectoryPtr> Run(const std::string& path);

  uint64_t unreadable() const { return unreadable_; }

 private:
  struct Node;
  struct Task {
    Node* node;
    size_t begin, end;  // range of its names; both 0: list it first
  };

  void Work();
  void Do(const Task& task, AttributeReader& reader);
  void List(Node* node, AttributeReader& reader);
  void StatSlice(Node* node, size_t begin, size_t end, AttributeReader& reader);
  void Push(std::vector<Task> tasks);
  void StartHelpers();
  void Release(Node* node);
  void Fail(Error error);

  const ScanContext& context_;
  Mutex mutex_;
  CondVar wake_;
  std::vector<Task> stack_ VRUN_GUARDED_BY(mutex_);  // last in, first out: keeps the number of open directories small
  std::vector<std::thread> helpers_;
  bool done_ VRUN_GUARDED_BY(mutex_) = false;
  bool root_gone_ VRUN_GUARDED_BY(mutex_) = false;
  DirectoryPtr result_ VRUN_GUARDED_BY(mutex_);
  std::unique_ptr<Error> error_ VRUN_GUARDED_BY(mutex_);
  std::atomic<bool> failed_ = false;
  std::atomic<uint64_t> unreadable_ = 0;
};

}  // namespace vrun::tree
