// SPDX-License-Identifier: Apache-2.0
// The requests of one node's content stream, in the order in which they deserve an answer.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/unique_fd.h"
#include "home/compression_policy.h"
#include "proto/content.pb.h"
#include "rpc/rpc.h"
#include "tree/diff.h"
#include "tree/tree.h"

namespace vrun::home {

class ContentServer;

// Any thread. Work is done on the server's threads in pieces of at most 1 MiB, and what somebody waits for overtakes in
// the stream what is sent ahead, so that a later, more urgent request waits for no more than a piece. While the stream
// has more than rpc::Stream::kHighWater queued nothing is read ahead, with twice that nothing but directory objects is
// read.
class ContentSession : public std::enable_shared_from_this<ContentSession> {
 public:
  static constexpr size_t kMaxWaiting = 65536;      // requests; more ends the stream
  static constexpr uint64_t kMaxRange = 64u << 20;  // of one request
  static constexpr uint64_t kMaxPart = 1u << 20;    // of content or of one directory object in one reply

  explicit ContentSession(ContentServer* server) : server_(server) {}

  // Before the first request. The stream must live until Close.
  void Start(rpc::Stream* stream);
  // A serialized ContentRequest.
  void OnMessage(const std::string& message);
  void OnWritable();
  // Drops what waits; when it returns the stream is not touched any more.
  void Close();
  // Bytes of all answers so far.
  uint64_t sent_bytes() const { return sent_bytes_.load(std::memory_order_relaxed); }
  // When the node's live view was known last to show what home has; monotonic, 0: never, or there is none.
  int64_t shown_micros() const { return shown_micros_.load(std::memory_order_relaxed); }

 private:
  // Of a request that takes more than one piece.
  struct Work {
    v1::ContentRequest request;
    uint64_t done = 0;                     // bytes of the range, or of the current directory; frames
    std::vector<tree::NewDirectory> tree;  // of GetTree
    size_t next = 0;
    bool listed = false;
    // Of WatchTree:
    bool deltas = false;         // directories may come as what they differ in, and edited files with them
    tree::SnapshotPtr snapshot;  // what the node is being told of
    uint64_t serial = 0;         // its TreeNow.serial and included
    uint64_t included = 0;
    struct Edited {
      std::string path;
      tree::FileVersion version;
    };
    std::vector<Edited> edited;
  };
  using WorkPtr = std::unique_ptr<Work>;
  enum Urgency { kDirectories, kRanges, kTrees, kAhead, kUrgencies };

  static Urgency UrgencyOf(const Work& work);
  static size_t MostQueued(Urgency urgency);
  void Schedule();
  void Step();
  bool Do(Work* work);  // true: answered in full
  bool Range(Work* work);
  bool Directory(Work* work);
  bool Tree(Work* work);
  bool Root(Work* work);
  bool Extents(Work* work);
  bool Resident(Work* work);
  bool TraceTable(Work* work);
  bool TraceFrames(Work* work);
  bool PutTrace(Work* work);
  bool WatchPeers(Work* work);
  // content_live.cc
  bool WatchTree(Work* work);
  bool TellTree(Work* work);
  // What small files hold that are others than in the tree before.
  void FindEdited(Work* work) const;
  void SendEdited(const Work& work);
  // The next directory by what it differs in from its base; false: that would save nothing.
  bool SendDelta(Work* work);
  void TreeChanged();
  void Ping();
  void TakeHeard(const v1::ContentRequest::Heard& heard);
  void TellTreeLocked();
  void LeaveTree();
  bool BeginWrites(Work* work);
  void TakeWrite(v1::ContentRequest::LiveWrite* write);
  bool EndWrites(Work* work);
  void LeaveWrites();
  // Takes the session off the list of those that pass content on.
  void LeavePeers();
  // The file's entry in the tree, if that names this version of it and it may be served; else why not.
  struct Served {
    tree::SnapshotPtr snapshot;
    std::vector<std::string> exposed;
  };
  Result<Served> CheckServed(const std::string& tree, const std::string& path, const tree::FileVersion& version) const;
  // Of that version, or what a live view began to read of it.
  Result<UniqueFd> OpenServed(const std::string& path, const tree::FileVersion& version, uint64_t offset,
                              uint64_t length, bool* lent) const;
  Status CheckOpen(int fd, const std::string& path, const tree::FileVersion& version, bool lent) const;
  Result<v1::ContentReply> ReadPart(Work* work, uint64_t size, uint64_t* length);
  // content_live.cc. Holds a file that does not come whole, for a node that has a live view. `whole`: the request is
  // for all of it.
  void Lend(const tree::FileVersion& version, int fd, bool whole);
  // Hashes the units and compresses those for which it pays, but none of which only the digests are sent. Their
  // digests.
  std::vector<Digest> Pack(const tree::FileVersion& version, v1::Units* units, bool digests_only);
  // What is asked of an answer beside the content, or instead of it.
  void Attest(const v1::ContentRequest::GetRange& get, const tree::FileVersion& version, v1::Units* units) const;
  // One part of a directory object from work->done on; true when it was the last one.
  bool SendDirectory(Work* work, const tree::Directory& directory, bool last_of_answer);
  // Whether a directory object is small enough for a pack.
  static bool Packs(const tree::Directory& directory);
  // Whether it is worth looking at what it differs in.
  static bool HasDelta(const Work& work, const tree::NewDirectory& item);
  // Names of the contents of these entries (all of them), where home knows them.
  std::string KnownIds(const tree::Directory& directory, std::span<const size_t> entries) const;
  std::string KnownIds(const tree::Directory& directory) const;
  // Those from work->next on that go into one pack, at least one; their bytes before compression.
  uint64_t SendPack(Work* work);
  // Of the tree that was asked for: a home that has not looked at its root yet may know it in a moment.
  Error UnknownTree(const std::optional<Digest>& id = std::nullopt) const;
  bool Fail(uint64_t id, const Error& error);
  // A part of an answer. All of one go the same way: by their urgency.
  // An answer, or a part of one, that comes when nothing more urgent does.
  void Send(const v1::ContentReply& reply, const Work& work);
  void Send(const v1::ContentReply& reply) { Send(reply, kDirectories, false); }
  void Send(const v1::ContentReply& reply, Urgency urgency, bool slices);
  size_t SliceBytes() const;

  ContentServer* const server_;
  std::atomic<uint64_t> sent_bytes_{0};
  std::atomic<int64_t> shown_micros_{0};
  CompressionPolicy policy_;
  std::mutex mutex_;
  rpc::Stream* stream_ = nullptr;  // guarded by mutex_, as all below
  std::deque<WorkPtr> waiting_[kUrgencies];
  std::unordered_set<uint64_t> running_;
  std::unordered_set<uint64_t> cancelled_;  // of running_
  // What this node was told to fetch ahead, so that it is not looked at again for each that loads it.
  std::unordered_set<tree::FileVersion, tree::FileVersionHash> offered_;
  std::unordered_map<tree::FileVersion, Shrinks, tree::FileVersionHash> shrinks_;  // of files served lately
  size_t scheduled_ = 0;                                                           // pieces posted to the workers
  bool parked_ = false;                                                            // waits for OnWritable
  uint64_t peer_id_ = 0;                                                           // on the PeerBoard; 0: not on it
  uint64_t board_id_ = 0;                                                          // on the TreeBoard; 0: not on it
  uint64_t watch_id_ = 0;                                                          // of the request that put it there
  uint64_t watch_view_ = 0;                                                        // whose writes it wants to hear of
  bool pings_ = false;                                                             // it wants them
  bool watch_deltas_ = false;
  uint64_t told_included_ = 0;           // TreeNow.included of the last one
  bool telling_ = false;                 // the node is being told of a tree
  bool tell_again_ = false;              // there is a newer one, or the stream was full
  std::map<uint64_t, uint64_t> writes_;  // live views: what LiveWrites::Join returned
  tree::SnapshotPtr told_;               // of the last tree: the node has, or can ask for, all of it; null: none
};

}  // namespace vrun::home
