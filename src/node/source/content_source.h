// SPDX-License-Identifier: Apache-2.0
// vfs::Source over home's content stream (proto/content.proto): the node asks, home answers, many requests at a time.
//
// Streams come and go, requests stay: what was under way when a stream broke is asked again on the next one, for as
// long as the deadline allows. Nothing that arrives is believed: sizes, order and digests are checked before anything
// is handed on. A home that breaks the rules loses its stream, and the request that it broke them with fails at the
// third time.
//
// Memory: at most Options::window_bytes of ranges are asked for at a time (one larger range goes alone); further ones
// wait here.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

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
  int64_t home_deadline_micros = 60'000'000;  // how long a request waits for a home that is away
  uint64_t window_bytes = 64u << 20;
};

struct ContentSourceStats {
  uint64_t wire_bytes = 0;  // of replies
  uint64_t units = 0;
  int64_t busy_micros = 0;  // of the link (link_meter.h)
};

// What came during a run, for all runs of this home on the node, and from where.
struct RunTraffic {
  uint64_t home_bytes = 0;  // as they crossed the wire
  uint64_t peer_bytes = 0;
  uint64_t s3_bytes = 0;
  int64_t link_busy_micros = 0;  // of home's link
};

// Any thread. Callbacks run on the stream's thread, no lock held; those of requests that are still there at destruction
// get kUnavailable.
class ContentSource final : public vfs::Source {
 public:
  // `on_connected`: home proved itself on a new stream. Any thread, no lock held.
  explicit ContentSource(ContentSourceOptions options, std::function<void()> on_connected = {});
  ~ContentSource() override;

  // A new stream; the certificate has been looked at. It becomes the one in use once its Hello names a token that is
  // allowed, and replaces the one before.
  Result<rpc::Stream::Handler*> Accept(std::unique_ptr<rpc::Stream> stream);
  // Hello may come before the agent's word; it waits for it a few seconds.
  void AllowToken(const std::string& home_id, const std::string& token, uint64_t job, uint32_t attempt);
  // To be called about once a second: ends what is past its deadline, destroys streams that have ended.
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
  // The directory objects of `tree` that are not below `have` (zero: all), as they come, then `done`. kNotFound: home
  // does not know `have` (an older one then sends all).
  void FetchTree(const Digest& tree, const Digest& have,
                 std::function<void(std::vector<vfs::FetchedDirectory>)> arrived, std::function<void(Status)> done);

  void FetchTrace(const vfs::RunId& run, const std::vector<Digest>& have,
                  std::function<void(Result<vfs::TraceTable>)> done) override;
  void FetchFrames(const vfs::RunId& run, std::shared_ptr<const vfs::TraceTable> table, std::vector<uint32_t> frames,
                   std::function<void(const vfs::TraceFrame&)> arrived, std::function<void(Status)> done) override;
  // Tells home what a run did. What home makes of it is not waited for.
  void PutTrace(const vfs::RunId& run, const vfs::Recording& recording, const RunTraffic& traffic);

  // As FetchRange, with home's signatures.
  void FetchSigned(const UnitPlace& place, uint64_t first, uint64_t count, vfs::Urgency urgency,
                   std::function<void(Result<SignedRange>)> done);
  // Only what home signs of units whose data is here.
  void FetchStatements(const UnitPlace& place, uint64_t first, uint64_t count,
                       std::function<void(Result<std::vector<SignedUnitsPtr>>)> done);
  // One frame as home sent it, of a table that this run has; its content is not looked at yet.
  void FetchSignedFrame(const vfs::RunId& run, const Digest& table, uint32_t frame,
                        std::function<void(Result<std::shared_ptr<const v1::TraceFrame>>)> done);
  // Takes part in passing content on: `changed` gets the list of those who do, one call at a time, now and whenever it
  // changes, until `over`: home cannot tell, or is away for too long.
  void WatchPeers(const std::string& name, const std::string& address, const std::string& pool,
                  std::function<void(const v1::Peers&)> changed, std::function<void()> over);

  // Every state of home's root: `arrived` gets the directory objects that are new in a tree, and `edited` what some
  // small files hold that have changed, before `now` gets the tree; `now` comes about once a second also when nothing
  // has changed. One call at a time, until `over` (home cannot tell, or is away for too long) or Unwatch. `have`: a
  // tree of which everything is here.
  struct TreeNow {
    Digest tree;
    tree::Entry root;
    uint64_t serial = 0;    // of this state of the root; grows
    uint64_t included = 0;  // sequence of the view's writes up to which all are in it
  };
  struct TreeWatch {
    // A directory that is here, with which home may say how one differs from it; null: it is not.
    std::function<vfs::LoadedDirectoryPtr(const Digest&)> find;
    std::function<void(std::vector<vfs::FetchedDirectory>)> arrived;
    std::function<void(const tree::FileVersion&, vfs::FetchedRange)> edited;  // all of its units
    std::function<void(const TreeNow&)> now;
    std::function<void()> ping;  // about once a second, whatever home is busy with
    std::function<void(const Error&)> over;
  };
  uint64_t WatchTree(const Digest& have, uint64_t view, TreeWatch watch);
  // As v1::ContentRequest.Heard; home has to have sent a ping.
  void SendHeard(bool shown, bool look);
  // Also of BeginWrites. A call that is under way may still come to its end. An id that is over, or 0, is fine.
  void Unwatch(uint64_t id);

  // What is written in a live view goes home: `heard` gets home's acknowledgements, one call at a time, until `over` or
  // Unwatch. On each new stream home says anew where to begin.
  struct Writes {
    std::function<void(const v1::LiveAck&)> heard;
    std::function<void(const Error&)> over;
  };
  uint64_t BeginWrites(uint64_t view, Writes writes);
  enum class Sent { kSent, kFull, kAway };
  // kFull: what home asked for shall not wait behind more of this; try again in a moment. kAway: home will say where to
  // begin when it is back. `id`: of BeginWrites. `write`: a serialized ContentRequest.
  Sent SendWrite(uint64_t id, const std::string& write);
  // Home may forget about the view.
  void EndWrites(uint64_t view);

  ContentSourceStats stats() const;

 private:
  class Session;
  class Answer;
  struct Request;
  using RequestPtr = std::shared_ptr<Request>;
  using SessionPtr = std::shared_ptr<Session>;
  // What is left to do once the lock is released: callbacks of the requests' owners.
  using Calls = std::vector<std::function<void()>>;

  uint64_t Add(RequestPtr request);
  void SendCancelLocked(uint64_t id);
  Sent SendDirectLocked(const std::string& message, size_t most_queued);
  void SendLocked(const RequestPtr& request);
  void SendWaitingLocked();
  // Out of the table; null when it is over already. Then the window may have room.
  RequestPtr RemoveLocked(uint64_t id);
  void FailLocked(uint64_t id, Error error, Calls* calls);
  void OnMessage(Session* session, const std::string& bytes);
  void OnClosed(Session* session, const Error& reason);
  void HelloLocked(Session* session, const v1::Hello& hello, Calls* calls);
  bool AllowedLocked(const v1::Hello& hello) const;
  void ActivateLocked(Session* session, Calls* calls);
  void DropActiveLocked(int64_t now);
  void OnAnswer(Session* session, const RequestPtr& request, const v1::ContentReply& reply);
  void Broken(Session* session, const RequestPtr& request, const Error& error);
  void BrokenLocked(Session* session, const RequestPtr& request, const Error& error, Calls* calls);

  const ContentSourceOptions options_;
  const std::function<void()> on_connected_;

  mutable std::mutex mu_;
  std::vector<SessionPtr> sessions_;  // all that live, dead ones until Tick
  Session* active_ = nullptr;
  uint64_t next_id_ = 1;
  std::map<uint64_t, RequestPtr> requests_;  // by id, in order of asking
  std::deque<RequestPtr> waiting_;           // for room in the window
  uint64_t window_used_ = 0;
  struct Token;
  std::deque<Token> tokens_;
  ContentSourceStats stats_;
  LinkMeter meter_;
  bool closing_ = false;
};

}  // namespace vrun::node
