// SPDX-License-Identifier: Apache-2.0
// Connections to the nodes: one per address, kept open, with the content streams on which home answers.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/io/event_loop.h"
#include "base/result.h"
#include "home/links/message_stream.h"
#include "home/serve/requests/content_session.h"
#include "proto/cache.pb.h"
#include "proto/content.pb.h"
#include "proto/control.pb.h"
#include "proto/kept.pb.h"
#include "proto/snapshots.pb.h"
#include "proto/task.pb.h"
#include "rpc/rpc.h"

namespace vrun::home {

class ContentServer;
using TaskStream = MessageStream<v1::TaskUp, v1::TaskDown>;
using CacheStream = MessageStream<v1::CacheRequest, v1::CacheEvent>;
using KeptStream = MessageStream<v1::KeptRequest, v1::KeptEvent>;
using SnapshotStream = MessageStream<v1::SnapshotRequest, v1::SnapshotEvent>;

// Loop thread only. Must not outlive the content server.
class NodeLinks {
 public:
  // `role`: the role that the peers' certificates must have (rpc::Channel::Dial).
  NodeLinks(EventLoop* loop, ContentServer* content, std::string home_id, std::string role = "node");
  ~NodeLinks();

  const std::string& home_id() const { return home_id_; }
  // A certificate that replaces one of the same key is for new connections; with another key, all are made anew.
  void UseCredentials(const rpc::Credentials& credentials);
  bool connected() const { return !channels_.empty(); }
  // Connections to nodes that were shut out (people/members.h, beside the certificate) end, and no others are made.
  void EndShutOut();

  // Opens /vrun.v1.Node/Task to one address of `node`. Whoever answers there with another node's certificate is
  // refused.
  Result<std::unique_ptr<TaskStream>> OpenTask(const std::string& node, const std::string& address,
                                               TaskStream::Events events);

  // The same for /vrun.v1.Node/Cache.
  Result<std::unique_ptr<CacheStream>> OpenCache(const std::string& node, const std::string& address,
                                                 CacheStream::Events events);

  // The same for /vrun.v1.Node/Kept.
  Result<std::unique_ptr<KeptStream>> OpenKept(const std::string& node, const std::string& address,
                                               KeptStream::Events events);

  // The same for /vrun.v1.Snapshots/Ask: to the snapshot store, not to a node.
  Result<std::unique_ptr<SnapshotStream>> OpenSnapshots(const std::string& address, SnapshotStream::Events events);

  // What a job needs at its node.
  struct ContentJob {
    v1::Placement placement;
    // Of home's root (Serves). By default every tree: for servers that have nothing else.
    Serves serves{.any = true, .all = true, .live = true, .trees = {}};
    // A file was refused to the node as private. Called on the loop while the use is held.
    std::function<void(const std::string& path)> withheld = nullptr;
  };
  // While held, a content stream to the file system server at `addresses` is reopened when it breaks, and the node gets
  // what this job has. A working stream stays open even without a job, so that the node remains a peer of others, but
  // nothing is served on it until there is another one. docs/decisions/0060.
  class ContentUse {
   public:
    virtual ~ContentUse() = default;
    // The job is over, and home has all that it wrote: with the last such use writes are taken no more. After one
    // without this call they are taken for a minute, because they may be what is left.
    virtual void AllHome() {}
    // Bytes sent to that file system server since this use began, for all jobs.
    virtual uint64_t sent_bytes() const = 0;
    virtual bool connected() const = 0;
    // As ContentSession::shown_micros, over all streams to that server.
    virtual int64_t shown_micros() const = 0;
  };
  std::unique_ptr<ContentUse> UseContent(const std::vector<std::string>& addresses, ContentJob job);
  // A job is about to run at a node, whose file system server may ask at once, on a stream that it has already. Null:
  // there is none.
  std::unique_ptr<ContentUse> ExpectContent(ContentJob job);

 private:
  class ContentLink;
  class Use;
  // `node`: whose certificate the other side must have; "": any of the role.
  Result<rpc::Channel*> ChannelTo(const std::string& node, const std::string& address);
  void DropIdleChannels();

  EventLoop* const loop_;
  ContentServer* const content_;
  const std::string home_id_;
  const std::string role_;
  rpc::Credentials credentials_;
  struct Connection {
    std::unique_ptr<rpc::Channel> channel;
    int64_t used_us = 0;
  };
  std::map<std::string, Connection> channels_;  // by KeyOf(node, address)
  struct Met;
  const std::shared_ptr<Met> met_;  // the names in the certificates of the other sides
  std::map<std::string, std::unique_ptr<ContentLink>> content_links_;  // by the node and the joined addresses
};

}  // namespace vrun::home
