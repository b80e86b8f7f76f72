// SPDX-License-Identifier: Apache-2.0
#include "node/agent/kept_server.h"

#include <utility>
#include <vector>

#include "base/escape.h"
#include "node/carry/kept_series.h"
#include "node/tenant.h"

namespace vrun::node {
namespace {

// Limit of sent content that home has not written yet: enough for a long link, and home's memory use stays small.
constexpr uint64_t kWindow = 16u << 20;
constexpr uint64_t kBatchBytes = 2u << 20;
constexpr int64_t kExpireMicros = 600'000'000;

v1::KeptEvent Failed(const Error& error) {
  v1::KeptEvent event;
  event.mutable_error()->set_code(static_cast<int>(error.code()));
  event.mutable_error()->set_message(error.message());
  return event;
}

const char* Became(v1::Handover state) {
  switch (state) {
    case v1::KEPT_PULLED: return "it was pulled already";
    case v1::KEPT_DROPPED: return "it was dropped";
    default: return "it has expired";
  }
}

Error NotThere(uint64_t job, const std::vector<v1::Kept>& known, uint32_t attempt) {
  const std::string what = "what job " + std::to_string(job) + " wrote: ";
  for (const v1::Kept& kept : known) {
    if (kept.attempt() == attempt) return Error(Code::kNotFound, what + Became(kept.state()));
  }
  return Error(Code::kNotFound, what + "this node does not have it");
}

}  // namespace

// Sends one series home. Held by the stream and by the work in progress.
class KeptServer::Sending : public std::enable_shared_from_this<Sending> {
 public:
  Sending(KeptServer* server, const std::shared_ptr<HomeStream>& stream) : server_(server), stream_(stream) {}

  // On the disk thread, before anything else.
  void Open(std::unique_ptr<KeptReader> reader) { reader_ = std::move(reader); }

  void Taken(uint64_t bytes) {
    taken_ = bytes;
    GoOn();
  }

  void GoOn() {
    if (!reader_ || reading_ || ended_ || sent_ > taken_ + kWindow) return;
    reading_ = true;
    server_->work_.Post([self = shared_from_this(), loop = server_->loop_, alive = server_->alive_] {
      auto batch = std::make_shared<Batch>();
      self->Read(batch.get());
      loop->Post([self, batch, alive] {
        if (*alive) self->Send(*batch);
      });
    });
  }

 private:
  struct Batch {
    std::vector<std::string> frames;
    uint64_t bytes = 0;  // size of the WriteBack messages
    bool last = false;
  };

  void Read(Batch* batch) {
    while (batch->bytes < kBatchBytes) {
      auto write = reader_->Next();
      v1::KeptEvent event;
      if (!write) {
        event = Failed(write.error());
      } else if (!*write) {
        event.mutable_end()->set_sequence(sequence_);
      } else {
        sequence_ = (**write).sequence();
        batch->bytes += (**write).ByteSizeLong();
        *event.mutable_write() = *std::move(*write);
      }
      batch->frames.push_back(event.SerializeAsString());
      batch->last = !event.has_write();
      if (batch->last) return;
    }
  }

  void Send(const Batch& batch) {
    reading_ = false;
    sent_ += batch.bytes;
    ended_ = batch.last;
    auto stream = stream_.lock();
    if (!stream || !stream->open()) return;
    for (const std::string& frame : batch.frames) stream->Send(frame);
    if (ended_) return stream->Close();
    GoOn();
  }

  KeptServer* const server_;
  const std::weak_ptr<HomeStream> stream_;
  std::unique_ptr<KeptReader> reader_;  // used by the disk thread
  uint64_t sequence_ = 0;               // used by the disk thread
  bool reading_ = false, ended_ = false;
  uint64_t sent_ = 0, taken_ = 0;
};

KeptServer::KeptServer(EventLoop* loop, KeptStore* store, std::string node)
    : loop_(loop), store_(store), node_(std::move(node)) {
  Expire();
}

KeptServer::~KeptServer() {
  *alive_ = false;
  loop_->Cancel(timer_);
  work_.Stop();
}

void KeptServer::Expire() {
  work_.Post([store = store_] { store->Expire(); });
  loop_->Cancel(timer_);
  timer_ = loop_->After(kExpireMicros, [this] { Expire(); });
}

void KeptServer::Serve(const std::shared_ptr<HomeStream>& stream) {
  // The stream holds these callbacks.
  stream->SetEvents({.on_frame =
                         [this, alive = alive_, weak = std::weak_ptr(stream)](const std::string& frame) {
                           auto home = weak.lock();
                           if (!*alive || !home) return;
                           v1::KeptRequest request;
                           if (request.ParseFromString(frame)) return Answer(home, request);
                           home->Send(Failed(Error(Code::kInvalid, "the request does not parse")).SerializeAsString());
                           home->Close();
                         },
                     .on_closed = {}});
}

void KeptServer::Answer(const std::shared_ptr<HomeStream>& stream, const v1::KeptRequest& request) {
  const std::string tenant = Tenant{stream->peer().name, request.home_id()}.Key();
  if (request.has_pull()) {
    auto sending = std::make_shared<Sending>(this, stream);
    stream->SetEvents({.on_frame =
                           [sending](const std::string& frame) {
                             v1::KeptRequest next;
                             if (next.ParseFromString(frame) && next.has_taken()) sending->Taken(next.taken().bytes());
                           },
                       .on_closed = {}});
    work_.Post([this, sending, tenant, pull = request.pull(), alive = alive_, weak = std::weak_ptr(stream)] {
      auto reader = KeptReader::Open(store_->PathOf(tenant, AttemptKey::Of(pull)),
                                     {pull.paths().begin(), pull.paths().end()}, pull.names_only());
      std::vector<v1::Kept> known;
      if (reader) {
        sending->Open(*std::move(reader));
      } else {
        known = store_->Of(tenant, pull.job());
      }
      loop_->Post(
          [sending, alive, weak, known, job = pull.job(), attempt = pull.attempt(), there = reader.has_value()] {
            auto home = weak.lock();
            if (!*alive || !home) return;
            if (there) return sending->GoOn();
            home->Send(Failed(NotThere(job, known, attempt)).SerializeAsString());
            home->Close();
          });
    });
    return;
  }
  work_.Post([this, tenant, request, alive = alive_, weak = std::weak_ptr(stream)] {
    v1::KeptEvent event;
    const uint64_t job = request.has_drop() ? request.drop().job() : request.describe().job();
    if (request.has_drop()) {
      const Status dropped = store_->Drop(tenant, AttemptKey::Of(request.drop()), request.drop().state());
      if (!dropped) event = Failed(dropped.error());
    } else if (!request.has_describe()) {
      event = Failed(Error(Code::kUnsupported, "the node does not know this request: update vrun on the node"));
    }
    if (!event.has_error()) {
      event.mutable_list();
      for (v1::Kept& kept : store_->Of(tenant, job)) {
        kept.set_node(node_);
        *event.mutable_list()->add_kept() = std::move(kept);
      }
    }
    loop_->Post([alive, weak, event] {
      auto home = weak.lock();
      if (!*alive || !home) return;
      home->Send(event.SerializeAsString());
      home->Close();
    });
  });
}

}  // namespace vrun::node
