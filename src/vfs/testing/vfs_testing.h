// SPDX-License-Identifier: Apache-2.0
// What the tests of this module share: trees made by hand, and a home that answers when and how a test wants it.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/hash/digest.h"
#include "tree/tree.h"
#include "vfs/content/source.h"

namespace vrun::vfs {

// A tree made by hand. Paths are absolute; parents are made on the way.
class TreeMaker {
 public:
  TreeMaker& File(const std::string& path, std::string content, uint32_t mode = 0644);
  TreeMaker& Symlink(const std::string& path, std::string target);
  TreeMaker& Dir(const std::string& path, uint32_t mode = 0755);
  TreeMaker& HardLink(const std::string& path, const std::string& to);
  TreeMaker& Remove(const std::string& path);
  // For what the others cannot say. The name is taken from the path.
  TreeMaker& Put(const std::string& path, tree::Entry entry);
  tree::Entry& At(const std::string& path) { return nodes_.at(path); }
  // A write at home: new content, new ctime.
  TreeMaker& Edit(const std::string& path, std::string content);

  tree::SnapshotPtr Make() const;
  const std::string& content(const tree::FileVersion& version) const { return contents_.at(version); }
  const std::unordered_map<tree::FileVersion, std::string, tree::FileVersionHash>& contents() const {
    return contents_;
  }

 private:
  tree::DirectoryPtr MakeDirectory(const std::string& path) const;
  tree::Entry New(uint32_t mode);
  std::map<std::string, tree::Entry> nodes_;
  std::unordered_map<tree::FileVersion, std::string, tree::FileVersionHash> contents_;
  uint64_t next_ino_ = 100;
  int64_t now_ = 1'700'000'000'000'000'000;
};

class FakeSource final : public Source {
 public:
  struct Asked {
    char what;  // 'r'oot, 'd'irectory, 'f'ile, file 'a'head, 'b'orrow, r'e'sident, 't'race, a 'p'iece of it (its index)
    std::string path;
    uint64_t offset = 0;
    uint64_t length = 0;
  };

  FakeSource();
  ~FakeSource() override;

  void Add(const tree::SnapshotPtr& snapshot);
  // Everything of a TreeMaker: its tree and its contents. Returns the tree's id.
  Digest Add(const TreeMaker& maker);
  // Content that no test keeps in memory: reads the range of a file, if it is that version.
  using Reader = std::function<Result<std::string>(const std::string& path, const tree::FileVersion& version,
                                                   uint64_t offset, uint64_t length)>;
  void SetReader(Reader reader);

  // Answers wait until Release (n: that many; default all).
  void Hold(bool on);
  void Release(size_t n = SIZE_MAX);
  // Waits until this many answers are held.
  bool WaitHeld(size_t n, int timeout_ms = 10'000);
  // Asked before each answer; an error is the answer.
  void FailWith(std::function<std::optional<Error>(const Asked&)> fail);
  // Changes a good answer.
  void Tamper(std::function<void(FetchedRange*)> tamper);
  // Object ids of files (and of no others) are told with content and directories.
  void TellIds(bool on);
  void DelayMicros(int64_t micros);
  // The answer to FetchResident, by the path that was touched; without one it is kUnsupported.
  void SetResident(const std::string& path, std::vector<ResidentFile> files);
  // The answer to FetchTrace; without one it is kUnsupported. Frames have the content that this source has.
  void SetTrace(TraceTable table);
  // So many times it says first that this is no run of the asker.
  void DenyTrace(int times);
  // In the caller's own thread, before the call returns.
  void AnswerInline(bool on);

  std::vector<Asked> asked();
  size_t CountAsked(char what);
  void ClearAsked();

  void FetchRoot(const Digest& tree, std::function<void(Result<tree::Entry>)> done) override;
  void FetchDirectory(const Digest& tree, const std::string& path, const Digest& digest,
                      std::function<void(Result<FetchedDirectory>)> done) override;
  void FetchRange(const Digest& tree, const std::string& path, const tree::FileVersion& version, uint64_t offset,
                  uint64_t length, Urgency urgency, std::function<void(Result<FetchedRange>)> done) override;
  void Borrow(const Digest& tree, const std::string& path, const tree::FileVersion& version,
              std::function<void()> done) override;
  void FetchResident(const Digest& tree, const std::string& path, const tree::FileVersion& version, bool siblings,
                     std::function<void(Result<std::vector<ResidentFile>>)> done) override;
  void FetchTrace(const RunId& run, const std::vector<Digest>& have,
                  std::function<void(Result<TraceTable>)> done) override;
  void FetchFrames(const RunId& run, std::shared_ptr<const TraceTable> table, std::vector<uint32_t> frames,
                   std::function<void(const TraceFrame&)> arrived, std::function<void(Status)> done) override;

 private:
  void Index(const tree::DirectoryPtr& directory);
  void Queue(const Asked& asked, std::function<void()> answer);
  std::optional<Error> Failure(const Asked& asked);
  void Run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::unordered_map<Digest, tree::Entry, DigestHash> roots_;
  std::unordered_map<Digest, tree::DirectoryPtr, DigestHash> directories_;
  std::unordered_map<tree::FileVersion, std::string, tree::FileVersionHash> contents_;
  Reader reader_;
  std::function<std::optional<Error>(const Asked&)> fail_;
  std::function<void(FetchedRange*)> tamper_;
  std::map<std::string, std::vector<ResidentFile>> resident_;
  std::optional<TraceTable> trace_;
  int trace_denials_ = 0;
  std::deque<std::function<void()>> queue_;
  std::vector<Asked> asked_;
  bool hold_ = false;
  bool inline_ = false;
  bool tell_ids_ = false;
  bool stopped_ = false;
  size_t released_ = 0;
  int64_t delay_micros_ = 0;
  std::thread thread_;
};

// The final id of a content.
// Bytes that differ everywhere, the same for the same seed.
std::string Noise(size_t size, uint64_t seed);

// A directory for one test below $TMPDIR or /var/tmp; gone at the end.
class TestDirectory {
 public:
  TestDirectory();
  ~TestDirectory();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace vrun::vfs
