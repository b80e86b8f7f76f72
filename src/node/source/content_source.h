// SPDX-License-Identifier: Apache-2.0
// A vfs::Source over home's content stream (proto/content.proto): the node asks and home answers, many requests at a
// time.
//
// Requests survive streams: what was in progress when a stream broke is sent again on the next one, until the deadline.
// Nothing that arrives is trusted: sizes, order and digests are checked first. A home that breaks the protocol loses
// its stream; the request with which it did so fails the third time.
//
// Memory: at most Options::window_bytes of ranges are requested at a time (a larger single range goes alone). Further
// ranges wait here.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/secrets/hidden_names.h"
#include "base/thread/mutex.h"
#include "node/source/link_meter.h"
#include "node/source/unit_exchange.h"
#include "rpc/rpc.h"
#include "vfs/content/directory_cache.h"
#include "vfs/content/source.h"

namespace vrun::v1 {
class ContentReply;
class ContentRequest;
class Hello;
class LiveAck;
class Peers;
class TraceFrame;
}  // namespace vrun::v1

namespace vrun::node {

struct ContentSourceOptions {
  std::string home_id;
  int64_t home_deadline_micros = 60'000'000;  // how long a request waits while home is away
  uint64_t window_bytes = 64u << 20;
};

struct ContentSourceStats {
  uint64_t wire_bytes = 0;  // received in replies
  uint64_t units = 0;
  int64_t busy_micros = 0;  // time that the link was busy (link_meter.h)
};

// What arrived during a run, for all runs of this home on the node, by source.
struct RunTraffic {
  uint64_t home_bytes = 0;  // as sent over the wire
  uint64_t peer_bytes = 0;
  uint64_t s3_bytes = 0;
  int64_t link_busy_micros = 0;  // time that home's link was busy
};

// Any thread. Callbacks run on the stream's thread without locks. Requests pending at destruction get kUnavailable.
class ContentSource final : public vfs::Source {
 public:
  // `on_connected`: home proved itself on a new stream. Runs on any thread without locks.
  explicit ContentSource(ContentSourceOptions options, std::function<void()> on_connected = {});
  ~ContentSource() override;

  // A new stream, whose certificate was checked. It becomes the active one, replacing the previous one, once its Hello
  // contains an allowed token.
  Result<rpc::Stream::Handler*> Accept(std::unique_ptr<rpc::Stream> stream);
  // Hello may arrive before this call; it waits a few seconds for it.
  void AllowToken(const std::string& home_id, const std::string& token, uint64_t job, uint32_t attempt);
  // Call about once a second: fails requests past their deadline, destroys ended streams.
  void Tick(int64_t now_micros);
  bool connected() const;

  void FetchRoot(const Digest& tree, std::function<void(Result<tree::Entry>)> done) override;
  void FetchDirectory(const Digest& tree, const std::string& path, const Digest& digest,
                      std::function<void(Result<vfs::FetchedDirectory>)> done) override;
  void FetchRange(const Digest& tree, const std::string& path, const tree::FileVersion& version, uint64_t offset,
                  uint64_t length, vfs::Urgency urgency, std::function<void(Result<vfs::FetchedRange>)> done) override;
  void Borrow(const Digest& tree, const std::string& path, const tree::FileVersion& version,
              std::function<void()> done) override;
  void FetchResident(const Digest& tree, const std::string& path, const tree::FileVersion& version, bool siblings,
                     std::function<void(Result<std::vector<vfs::ResidentFile>>)> done) override;
  void FetchExtents(const Digest& tree, const std::string& path, const tree::FileVersion& version,
                    std::function<void(Result<vfs::Extents>)> done) override;
  // Delivers the directory objects of `tree` that are not below `have` (zero: all) as they arrive, then calls `done`.
  // kNotFound: home does not know `have` (an older home then sends all).
  void FetchTree(const Digest& tree, const Digest& have,
                 std::function<void(std::vector<vfs::FetchedDirectory>)> arrived, std::function<void(Status)> done);

  void FetchTrace(const vfs::RunId& run, const std::vector<Digest>& have,
                  std::function<void(Result<vfs::TraceTable>)> done) override;
  void FetchFrames(const vfs::RunId& run, std::shared_ptr<const vfs::TraceTable> table, std::vector<uint32_t> frames,
                   std::function<void(const vfs::TraceFrame&)> arrived, std::function<void(Status)> done) override;
  // Sends home the record of a run. Does not wait for home to process it.
  void PutTrace(const vfs::RunId& run, const vfs::Recording& recording, const RunTraffic& traffic);

  // Like FetchRange, with home's signatures.
  void FetchSigned(const UnitPlace& place, uint64_t first, uint64_t count, vfs::Urgency urgency,
                   std::function<void(Result<SignedRange>)> done);
  // Fetches only home's signed statements, for units whose data is here.
  void FetchStatements(const UnitPlace& place, uint64_t first, uint64_t count,
                       std::function<void(Result<std::vector<SignedUnitsPtr>>)> done);
  // Fetches one frame of a table that this run has, as home sent it. The content is not checked yet.
  void FetchSignedFrame(const vfs::RunId& run, const Digest& table, uint32_t frame,
                        std::function<void(Result<std::shared_ptr<const v1::TraceFrame>>)> done);
  // Joins the sharing of content. `changed` gets the list of members now and whenever it changes, one call at a time,
  // until `over`: home cannot tell, or was away too long.
  void WatchPeers(const std::string& name, const std::string& address, const std::string& pool,
                  std::function<void(const v1::Peers&)> changed, std::function<void()> over);

  // What home hides from jobs by its name: `changed` gets the list now and whenever it changes, one call at a time,
  // until `over`: home cannot tell, or was away too long.
  void WatchHidden(std::function<void(HiddenNames)> changed, std::function<void()> over);
  // A program has asked for such a path.
  void SendMissed(const std::string& path);

  // Follows every state of home's root. Before `now` gets a tree, `arrived` gets its new directory objects, and
  // `edited` the content of some small changed files. `now` runs about once a second even without changes. One call at
  // a time, until `over` (home cannot tell, or was away too long) or Unwatch. `have`: a tree that is completely here.
  struct TreeNow {
    Digest tree;
    tree::Entry root;
    uint64_t serial = 0;    // number of this state of the root; grows
    uint64_t included = 0;  // the tree contains the view's writes up to this sequence
  };
  struct TreeWatch {
    // Returns a directory that is here, on which home may base a delta; null: it is not here.
    std::function<vfs::LoadedDirectoryPtr(const Digest&)> find;
    std::function<void(std::vector<vfs::FetchedDirectory>)> arrived;
    std::function<void(const tree::FileVersion&, vfs::FetchedRange)> edited;  // all of the file's units
    std::function<void(const TreeNow&)> now;
    std::function<void()> ping;  // about once a second, even while home is busy
    std::function<void(const Error&)> over;
  };
  uint64_t WatchTree(const Digest& have, uint64_t view, TreeWatch watch);
  // See v1::ContentRequest.Heard. Allowed only after a ping from home.
  void SendHeard(bool shown, bool look);
  // Also stops BeginWrites. A call in progress may still finish. An ended id, or 0, is allowed.
  void Unwatch(uint64_t id);

  // Sends the writes of a live view home. `heard` gets home's acknowledgements, one call at a time, until `over` or
  // Unwatch. On each new stream home says again where to begin.
  struct Writes {
    std::function<void(const v1::LiveAck&)> heard;
    std::function<void(const Error&)> over;
  };
  uint64_t BeginWrites(uint64_t view, Writes writes);
  enum class Sent { kSent, kFull, kAway };
  // kFull: try again soon, so that home's requests do not queue behind more writes. kAway: home will say where to begin
  // when it is back. `id`: from BeginWrites. `write`: a serialized ContentRequest.
  Sent SendWrite(uint64_t id, const std::string& write);
  // Tells home that it may forget the view.
  void EndWrites(uint64_t view);

  ContentSourceStats stats() const;

 private:
  class Session;
  class Answer;
  struct Request;
  using RequestPtr = std::shared_ptr<Request>;
  using SessionPtr = std::shared_ptr<Session>;
  // Callbacks of requests' owners, to run after the lock is released.
  using Calls = std::vector<std::function<void()>>;

  uint64_t Add(RequestPtr request);
  void SendCancelLocked(uint64_t id) VRUN_REQUIRES(mu_);
  Sent SendDirectLocked(const std::string& message, size_t most_queued) VRUN_REQUIRES(mu_);
  void SendLocked(const RequestPtr& request) VRUN_REQUIRES(mu_);
  void SendWaitingLocked() VRUN_REQUIRES(mu_);
  // Removes it from the table; null if it is already over. Afterwards the window may have room.
  RequestPtr RemoveLocked(uint64_t id) VRUN_REQUIRES(mu_);
  void FailLocked(uint64_t id, Error error, Calls* calls) VRUN_REQUIRES(mu_);
  void OnMessage(Session* session, const std::string& bytes);
  void OnClosed(Session* session, const Error& reason);
  void HelloLocked(Session* session, const v1::Hello& hello, Calls* calls) VRUN_REQUIRES(mu_);
  bool AllowedLocked(const v1::Hello& hello) const VRUN_REQUIRES(mu_);
  void ActivateLocked(Session* session, Calls* calls) VRUN_REQUIRES(mu_);
  void DropActiveLocked(int64_t now) VRUN_REQUIRES(mu_);
  void OnAnswer(Session* session, const RequestPtr& request, const v1::ContentReply& reply);
  void Broken(Session* session, const RequestPtr& request, const Error& error);
  void BrokenLocked(Session* session, const RequestPtr& request, const Error& error, Calls* calls) VRUN_REQUIRES(mu_);

  const ContentSourceOptions options_;
  const std::function<void()> on_connected_;

  mutable Mutex mu_;
  std::vector<SessionPtr> sessions_ VRUN_GUARDED_BY(mu_);  // all live sessions, and dead ones until Tick
  Session* active_ VRUN_GUARDED_BY(mu_) = nullptr;
  uint64_t next_id_ VRUN_GUARDED_BY(mu_) = 1;
  std::map<uint64_t, RequestPtr> requests_ VRUN_GUARDED_BY(mu_);  // by id, in order of asking
  std::deque<RequestPtr> waiting_ VRUN_GUARDED_BY(mu_);           // wait for room in the window
  uint64_t window_used_ VRUN_GUARDED_BY(mu_) = 0;
  struct Token;
  std::deque<Token> tokens_ VRUN_GUARDED_BY(mu_);
  ContentSourceStats stats_ VRUN_GUARDED_BY(mu_);
  LinkMeter meter_ VRUN_GUARDED_BY(mu_);
  bool closing_ VRUN_GUARDED_BY(mu_) = false;
};

}  // namespace vrun::node
