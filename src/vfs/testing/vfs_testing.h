// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of this module: hand-made trees, and a home that answers when and how a test wants.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/hash/digest.h"
#include "base/thread/mutex.h"
#include "tree/tree.h"
#include "vfs/content/source.h"

namespace vrun::vfs {

// A hand-made tree. Paths are absolute; parents are created as needed.
class TreeMaker {
 public:
  TreeMaker& File(const std::string& path, std::string content, uint32_t mode = 0644);
  TreeMaker& Symlink(const std::string& path, std::string target);
  TreeMaker& Dir(const std::string& path, uint32_t mode = 0755);
  TreeMaker& HardLink(const std::string& path, const std::string& to);
  TreeMaker& Remove(const std::string& path);
  // For entries that the other methods cannot express. The name comes from the path.
  TreeMaker& Put(const std::string& path, tree::Entry entry);
  tree::Entry& At(const std::string& path) { return nodes_.at(path); }
  // A write at home: new content, new ctime.
  TreeMaker& Edit(const std::string& path, std::string content);

  tree::TreePtr Make() const;
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

  void Add(const tree::TreePtr& snapshot);
  // Everything of a TreeMaker: its tree and its contents. Returns the tree's id.
  Digest Add(const TreeMaker& maker);
  // Content that the test does not keep in memory: reads a range of a file if it is that version.
  using Reader = std::function<Result<std::string>(const std::string& path, const tree::FileVersion& version,
                                                   uint64_t offset, uint64_t length)>;
  void SetReader(Reader reader);

  // Answers wait until Release (n: that many; default all).
  void Hold(bool on);
  void Release(size_t n = SIZE_MAX);
  // Waits until this many answers are held.
  bool WaitHeld(size_t n, int timeout_ms = 10'000);
  // Called before each answer; an error it returns becomes the answer.
  void FailWith(std::function<std::optional<Error>(const Asked&)> fail);
  // Modifies a good answer.
  void Tamper(std::function<void(FetchedRange*)> tamper);
  // Whether answers with content and directories contain the object ids of files.
  void TellIds(bool on);
  void DelayMicros(int64_t micros);
  // The answer to FetchResident for the touched path; without one it is kUnsupported.
  void SetResident(const std::string& path, std::vector<ResidentFile> files);
  // The answer to FetchTrace; without one it is kUnsupported. Frames are filled from this source's content.
  void SetTrace(TraceTable table);
  // Denies the first `times` requests: says that this is no run of the asker.
  void DenyTrace(int times);
  // Answers in the caller's thread, before the call returns.
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

  Mutex mutex_;
  CondVar changed_;
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

// The final object id of a content.
// Bytes without repetition, the same for the same seed.
std::string Noise(size_t size, uint64_t seed);

// A directory for one test below $TMPDIR or /var/tmp; deleted at the end.
class TestDirectory {
 public:
  TestDirectory();
  ~TestDirectory();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace vrun::vfs
