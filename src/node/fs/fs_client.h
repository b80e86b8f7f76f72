// SPDX-License-Identifier: Apache-2.0
// The agent's side of one file system server (`vrund fs`, one per tenant): its keeper's process and its requests
// (proto/fsctl.proto). When a server dies, its keeper restarts it (node/fs/fs_keeper.h). Unanswered requests are sent
// again, so callers only see a delay.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/hash/digest.h"
#include "base/io/event_loop.h"
#include "base/io/message_socket.h"
#include "base/result.h"
#include "node/attempt_key.h"
#include "node/child_process.h"
#include "proto/task.pb.h"

namespace vrun::v1 {
class CacheEvent;
class CacheRequest;
class FsReply;
class FsRequest;
class PresignReply;
class PresignRequest;
}  // namespace vrun::v1

namespace vrun::node {

struct FsServerSettings {
  std::string home_id;
  std::string tenant;            // FsServerOptions::tenant
  std::string socket_directory;  // the socket is TENANT.sock there
  uint32_t uid_base = 0;
  std::string uid_ranges;  // the file of node/uid_ranges.h
  std::string store_directory;
  std::string views_directory;
  std::string listen_host;
  std::string pki_directory;
  std::string node_name;
  std::string pool;
  uint64_t cache_bytes = 0;  // 0: the server's default; the same for the next two
  uint64_t cache_min_free_bytes = 0;
  uint32_t cache_min_free_percent = 0;
  std::vector<std::string> fuse;  // parsed by ParseViewFeatures
  bool s3 = false;
};

// A running command, as passed to AllowToken.
struct FsRun {
  std::string home_id, token;
  AttemptKey key;
};

// Loop thread only. Callbacks of requests get kUnavailable when both the server and its keeper are gone or gave up.
class FsClient {
 public:
  struct Events {
    // A file of these views changed at home before it was fetched.
    std::function<void(const std::string& path, const std::string& reason, const std::vector<uint64_t>& leases)>
        on_content_lost;
    // The server needs URLs of the pool's S3 store; reply with Presigned.
    std::function<void(const v1::PresignRequest&)> on_presign;
    std::function<void()> on_closed;  // last call; the server is gone for good
  };

  static Result<std::unique_ptr<FsClient>> Start(EventLoop* loop, const FsServerSettings& settings, Events events);
  // Connects to a server that an earlier agent started. `leases` and `runs` are those that continue; all others are
  // over. kUnavailable when there is no server.
  static Result<std::unique_ptr<FsClient>> Adopt(EventLoop* loop, const std::string& socket_path,
                                                 const std::set<uint64_t>& leases, const std::vector<FsRun>& runs,
                                                 Events events);
  static std::string SocketPath(const std::string& socket_directory, const std::string& tenant) {
    return socket_directory + "/" + tenant + ".sock";
  }
  ~FsClient();

  // Calls back with the host:port addresses where home opens the content stream, at once if they are known.
  void WhenListening(std::function<void(const std::vector<std::string>& addresses)> callback);
  void AllowToken(const std::string& home_id, const std::string& token, const AttemptKey& key);
  // The command of a run passed to AllowToken has ended. The pods of an attempt on this node are one run for the
  // server: it ends with the last of them.
  void EndRun(const AttemptKey& key);
  // Returns detached, read-only mounts of the tree and, if `apart` is not empty, of its apart view. `lease` identifies
  // this use until CloseView.
  void OpenView(const std::string& tree, const std::string& apart, uint64_t lease,
                std::function<void(Result<std::vector<UniqueFd>>)> done);
  // The same for the tenant's live view, at home's state `serial` or later. Returns its id and the mount.
  void OpenLiveView(const std::string& tree, uint64_t serial, uint64_t lease,
                    std::function<void(Result<uint64_t> view, std::vector<UniqueFd>)> done);
  // Calls back when all writes to the live view of that lease are in the series for home.
  void PublishView(uint64_t lease, std::function<void(Result<v1::FsReply>)> done);
  void CloseView(uint64_t lease);
  // `done` may run with progress first, then once with a report or an error. Returns the id for CancelCache, after
  // which `done` is not called any more.
  uint64_t Cache(const v1::CacheRequest& request, std::function<void(const v1::CacheEvent&)> done);
  void CancelCache(uint64_t id);
  void SetCacheLimit(uint64_t bytes);
  void Presigned(const v1::PresignReply& reply);
  void Stop();  // stops for good: users of its views get ENOTCONN
  bool alive() const { return static_cast<bool>(socket_); }

 private:
  using Callback = std::function<void(Result<v1::FsReply>, std::vector<UniqueFd>)>;
  struct Waiting {
    std::string request;
    Callback done;
  };
  FsClient(EventLoop* loop, std::string path, Events events)
      : loop_(loop), path_(std::move(path)), events_(std::move(events)) {}
  Status Connect();  // also sends the known state and repeats unanswered requests
  void Send(v1::FsRequest request, Callback done);
  void SendOneWay(v1::FsRequest request);
  void OnReady(uint32_t events);
  void OnFrame(Frame frame);
  void Close();

  EventLoop* loop_;
  const std::string path_;
  UniqueFd socket_;
  Events events_;
  std::set<uint64_t> leases_;  // granted
  std::map<AttemptKey, FsRun> runs_;
  std::optional<uint64_t> cache_limit_;
  std::unique_ptr<ChildProcess> child_;
  FrameReader reader_;
  FrameWriter writer_;
  bool writing_ = false;
  uint64_t next_id_ = 1;
  std::map<uint64_t, Waiting> waiting_;  // in order of sending
  std::optional<Error> failure_;         // why the server could not start
  std::vector<std::string> addresses_;
  std::vector<std::function<void(const std::vector<std::string>&)>> when_listening_;
};

}  // namespace vrun::node
