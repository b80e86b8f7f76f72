// SPDX-License-Identifier: Apache-2.0
// The agent's end of one file system server (`vrund fs`, one per home): its keeper's process and its requests
// (proto/fsctl.proto). A server that dies is replaced by its keeper (node/fs/fs_keeper.h); the requests that it did not
// answer are asked again, so that nobody here sees more of it than a delay.
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
#include "base/io/frame_socket.h"
#include "base/result.h"
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
  std::string socket_directory;  // its socket is TENANT.sock there
  uint32_t uid_base = 0;
  std::string uid_ranges;  // the file of node/uid_ranges.h
  std::string store_directory;
  std::string views_directory;
  std::string listen_host;
  std::string pki_directory;
  std::string node_name;
  std::string pool;
  uint64_t cache_bytes = 0;  // 0: the server's default; so below
  uint64_t cache_min_free_bytes = 0;
  uint32_t cache_min_free_percent = 0;
  std::vector<std::string> fuse;  // as ParseViewFeatures reads it
  bool s3 = false;
};

// A command that runs, as AllowToken tells of it.
struct FsRun {
  std::string home_id, token;
  uint64_t job = 0;
  uint32_t attempt = 0;
};

// Loop thread only. Callbacks of requests get kUnavailable when the server is gone and its keeper too, or gave up.
class FsClient {
 public:
  struct Events {
    // A file of these views changed at home before it was fetched.
    std::function<void(const std::string& path, const std::string& reason, const std::vector<uint64_t>& leases)>
        on_content_lost;
    // It wants URLs of the pool's S3 store; the answer goes to Presigned.
    std::function<void(const v1::PresignRequest&)> on_presign;
    std::function<void()> on_closed;  // the server is gone, for good; last
  };

  static Result<std::unique_ptr<FsClient>> Start(EventLoop* loop, const FsServerSettings& settings, Events events);
  // One that an earlier agent started, by its socket. `leases` and `runs` are those that go on; all others are over.
  // kUnavailable when nobody is there.
  static Result<std::unique_ptr<FsClient>> Adopt(EventLoop* loop, const std::string& socket_path,
                                                 const std::set<uint64_t>& leases, const std::vector<FsRun>& runs,
                                                 Events events);
  static std::string SocketPath(const std::string& socket_directory, const std::string& tenant) {
    return socket_directory + "/" + tenant + ".sock";
  }
  ~FsClient();

  // host:port where home dials the content stream; runs at once when they are known.
  void WhenListening(std::function<void(const std::vector<std::string>& addresses)> callback);
  void AllowToken(const std::string& home_id, const std::string& token, uint64_t job, uint32_t attempt);
  // The command of a run that AllowToken told of is over.
  void EndRun(uint64_t job, uint32_t attempt);
  // Mounts (detached, read-only) of the tree and, if `apart` is not empty, of that part of it; `lease` names this use
  // until CloseView.
  void OpenView(const std::string& tree, const std::string& apart, uint64_t lease,
                std::function<void(Result<std::vector<UniqueFd>>)> done);
  // The same of the tenant's live view, at the state of home with that serial or a later one: its id, and the mount.
  void OpenLiveView(const std::string& tree, uint64_t serial, uint64_t lease,
                    std::function<void(Result<uint64_t> view, std::vector<UniqueFd>)> done);
  // What was written in that lease's live view is on its way home.
  void PublishView(uint64_t lease, std::function<void(Result<v1::FsReply>)> done);
  void CloseView(uint64_t lease);
  // `done` runs with progress, perhaps, then once with a report or an error. The id is for CancelCache, after which it
  // does not run any more.
  uint64_t Cache(const v1::CacheRequest& request, std::function<void(const v1::CacheEvent&)> done);
  void CancelCache(uint64_t id);
  void SetCacheLimit(uint64_t bytes);
  void Presigned(const v1::PresignReply& reply);
  void Stop();  // for good: users of its views get ENOTCONN
  bool alive() const { return static_cast<bool>(socket_); }

 private:
  using Callback = std::function<void(Result<v1::FsReply>, std::vector<UniqueFd>)>;
  struct Waiting {
    std::string request;
    Callback done;
  };
  FsClient(EventLoop* loop, std::string path, Events events)
      : loop_(loop), path_(std::move(path)), events_(std::move(events)) {}
  Status Connect();  // and tells what is known, and asks again what was not answered
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
  std::map<std::pair<uint64_t, uint32_t>, FsRun> runs_;
  std::optional<uint64_t> cache_limit_;
  std::unique_ptr<ChildProcess> child_;
  FrameReader reader_;
  FrameWriter writer_;
  bool writing_ = false;
  uint64_t next_id_ = 1;
  std::map<uint64_t, Waiting> waiting_;  // in order of asking
  std::optional<Error> failure_;         // why it could not start
  std::vector<std::string> addresses_;
  std::vector<std::function<void(const std::vector<std::string>&)>> when_listening_;
};

}  // namespace vrun::node
