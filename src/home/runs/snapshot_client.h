// SPDX-License-Identifier: Apache-2.0
// Home's side of the snapshot store (proto/snapshots.proto): the requests of `vctl snapshot`, and runs in a snapshot,
// whose content comes from the store instead of home.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/io/event_loop.h"
#include "base/io/work_queue.h"
#include "base/result.h"
#include "home/ahead/trace.h"
#include "home/links/message_stream.h"
#include "home/links/node_links.h"
#include "home/root/root_tree.h"
#include "home/root/tree_table.h"
#include "home/streams/client_connection.h"
#include "proto/snapshots.pb.h"

namespace vrun::home {

class Traces;

// Loop thread only, callbacks too; none runs after destruction.
class SnapshotClient {
 public:
  // None is owned; all outlive it.
  SnapshotClient(EventLoop* loop, ContentServer* content, RootTree* tree, TreeTable* trees, const std::string& home_id);
  ~SnapshotClient();

  // Sets the address of the store; "": the cluster has none.
  void Use(const std::string& address, const rpc::Credentials& credentials);

  // Answers a request of the command line completely, errors included.
  void Answer(const std::shared_ptr<ClientConnection>& client, const v1::SnapshotRequest& request);

  // An unnamed snapshot of `tree` that is being made for an away job. Goes on until it is complete, over lost
  // connections; stops when it is destroyed.
  class Sending {
   public:
    struct Events {
      // The job may run in it from now on. Once.
      std::function<void(v1::SnapshotReference)> on_announced;
      std::function<void()> on_change;  // of state()
    };
    struct State {
      v1::SnapshotProgress progress;
      std::string problem;            // why it does not go on at the moment, for people; "": it does
      std::vector<std::string> lost;  // files that changed at home before they were sent
      bool complete = false;
    };
    virtual ~Sending() = default;
    virtual void SetEvents(Events events) = 0;
    virtual const State& state() const = 0;
    virtual const std::string& name() const = 0;
  };
  // `first`: absolute paths whose files are sent first, in this order.
  std::unique_ptr<Sending> Send(const std::string& name, const tree::TreePtr& tree,
                                const std::vector<std::string>& exposed, const std::vector<std::string>& first,
                                Sending::Events events);
  // One that does not exist is deleted already.
  void Delete(const std::string& name, std::function<void(Status)> done);

  // Finds the snapshot that has that name now.
  void Find(const std::string& name, std::function<void(Result<v1::SnapshotReference>)> done);

  // Makes the store serve that file system server for a job in a snapshot, while the result is held and a moment longer
  // for the final report of the job's node. The store gets what is known of similar runs, and returns what this run
  // touched to home's traces, which expect it. `on_problem` (a line for the user) may be called several times while it
  // is held.
  std::unique_ptr<NodeLinks::ContentUse> Serve(const v1::SnapshotReference& snapshot,
                                               const std::vector<std::string>& addresses,
                                               const v1::Placement& placement, const std::optional<TraceSubject>& trace,
                                               std::function<void(const Error&)> on_problem);

 private:
  class Question;
  class Creation;
  class UnnamedSending;
  class Served;
  class ServedUse;
  using Stream = MessageStream<v1::SnapshotRequest, v1::SnapshotEvent>;
  Result<std::unique_ptr<Stream>> Ask(const v1::SnapshotRequest& request, Stream::Events events);
  // Asks once; `answer` gets the first event that is an answer, or an error.
  void AskOnce(const v1::SnapshotRequest& request, std::function<void(Result<v1::SnapshotEvent>)> answer);
  void AwaitTrace(std::unique_ptr<Served> served);
  void Forget(const Served* served);

  EventLoop* const loop_;
  Traces* const traces_;
  RootTree* const tree_;
  TreeTable* const trees_;
  const std::string home_id_;
  NodeLinks links_;  // to the store, which sends requests as a node does
  std::string address_;
  // The trees of the last snapshots made here: the store requests differences from one of them.
  std::deque<TreeTable::Pin> last_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::set<std::unique_ptr<Served>> awaiting_;  // of jobs that have ended
  WorkQueue keeping_{"snapshot-traces"};
};

}  // namespace vrun::home
