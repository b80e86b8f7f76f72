// SPDX-License-Identifier: Apache-2.0
// The requests of ContentSource about traces (vfs/trace/trace_table.h).
#include <optional>
#include <utility>

#include "base/escape.h"
#include "base/log.h"
#include "node/source/content_decode.h"
#include "node/source/content_request.h"
#include "node/source/content_source.h"

namespace vrun::node {
namespace {

constexpr const char* kOriginNames[vfs::kOrigins] = {"cache", "trace", "ahead", "demand"};

template <typename Get>
void SetRun(const vfs::RunId& run, Get* get) {
  get->set_job(run.job);
  get->set_attempt(run.attempt);
  get->set_token(run.token);
}

void FillSpan(const vfs::Recording::Span& span, v1::IoSpan* told) {
  told->set_first_us(static_cast<uint64_t>(span.first_micros));
  told->set_last_us(static_cast<uint64_t>(span.last_micros));
}

void FillReport(const vfs::Recording& recording, v1::IoReport* report) {
  for (size_t i = 0; i < vfs::kOrigins; ++i) {
    v1::IoSource* source = report->add_source();
    source->set_name(kOriginNames[i]);
    source->set_fetched_units(recording.counts[i].fetched_units);
    source->set_fetched_bytes(recording.counts[i].fetched_bytes);
    source->set_used_units(recording.counts[i].used_units);
    source->set_unread_bytes(recording.counts[i].unread_bytes);
    if (recording.counts[i].fetched.first_micros >= 0) FillSpan(recording.counts[i].fetched, source->mutable_fetched());
  }
  report->set_files(recording.files.size());
  report->set_waits(recording.waits);
  report->set_waited_us(static_cast<uint64_t>(recording.waited_micros));
  report->set_wall_us(static_cast<uint64_t>(recording.wall_micros));
  report->set_shared(recording.shared);
  report->set_warm(recording.partial);
  for (const vfs::Recording::Wait& wait : recording.slowest) {
    v1::IoWait* told = report->add_slowest();
    told->set_path(wait.path);
    told->set_offset(wait.offset);
    told->set_waited_us(static_cast<uint64_t>(wait.micros));
    told->set_source(kOriginNames[static_cast<size_t>(wait.origin)]);
    told->set_at_us(static_cast<uint64_t>(wait.at_micros));
  }
  for (const vfs::Recording::Fetched& file : recording.largest) {
    v1::IoFile* told = report->add_largest();
    told->set_path(file.path);
    told->set_fetched_bytes(file.bytes);
    told->set_unread_bytes(file.unread_bytes);
    told->set_source(kOriginNames[static_cast<size_t>(file.origin)]);
    FillSpan(file.when, told->mutable_fetched());
  }
}

}  // namespace

void ContentSource::FetchTrace(const vfs::RunId& run, const std::vector<Digest>& have,
                               std::function<void(Result<vfs::TraceTable>)> done) {
  class TableAnswer final : public Answer {
   public:
    explicit TableAnswer(std::function<void(Result<vfs::TraceTable>)> done) : done_(std::move(done)) {}
    Status Take(const v1::ContentReply& reply) override {
      if (!reply.has_trace() || table_)
        return Error(Code::kCorrupt, "home sent an unexpected reply instead of a trace");
      VRUN_ASSIGN(table_, DecodeTraceTable(reply.trace()));
      return {};
    }
    bool whole() const override { return table_.has_value(); }
    void Deliver() override { done_(std::move(*table_)); }

   private:
    std::function<void(Result<vfs::TraceTable>)> done_;
    std::optional<vfs::TraceTable> table_;
  };
  auto request = std::make_shared<Request>();
  auto* get = request->message.mutable_get_trace();
  SetRun(run, get);
  for (const Digest& id : have) get->add_have(std::string(id.view()));
  request->begin = [done] { return std::make_unique<TableAnswer>(done); };
  request->fail = [done](Error error) { done(std::move(error)); };
  Add(std::move(request));
}

void ContentSource::FetchFrames(const vfs::RunId& run, std::shared_ptr<const vfs::TraceTable> table,
                                std::vector<uint32_t> frames, std::function<void(const vfs::TraceFrame&)> arrived,
                                std::function<void(Status)> done) {
  class FramesAnswer final : public Answer {
   public:
    FramesAnswer(std::shared_ptr<const vfs::TraceTable> table, size_t count,
                 std::function<void(const vfs::TraceFrame&)> arrived, std::function<void(Status)> done)
        : table_(std::move(table)), left_(count), arrived_(std::move(arrived)), done_(std::move(done)) {}
    Status Take(const v1::ContentReply& reply) override {
      if (!reply.has_frame() || left_ == 0)
        return Error(Code::kCorrupt, "home sent an unexpected reply instead of a frame");
      // A hundred of them of 1 MB each arrive one after the other and are not kept, so they reuse this memory.
      thread_local std::string spare;
      VRUN_ASSIGN(vfs::TraceFrame frame,
                  DecodeTraceFrame(reply.frame(), *table_, reply.frame().index(), std::exchange(spare, {})));
      --left_;
      arrived_(frame);
      spare = std::move(frame.data);
      return {};
    }
    bool whole() const override { return left_ == 0; }
    void Deliver() override { done_({}); }

   private:
    const std::shared_ptr<const vfs::TraceTable> table_;
    size_t left_;
    std::function<void(const vfs::TraceFrame&)> arrived_;
    std::function<void(Status)> done_;
  };
  auto request = std::make_shared<Request>();
  auto* get = request->message.mutable_get_frames();
  SetRun(run, get);
  get->set_table(std::string(table->id.view()));
  get->mutable_frame()->Add(frames.begin(), frames.end());
  request->begin = [table, count = frames.size(), arrived, done] {
    return std::make_unique<FramesAnswer>(table, count, arrived, done);
  };
  request->fail = [done](Error error) { done(std::move(error)); };
  Add(std::move(request));
}

void ContentSource::PutTrace(const vfs::RunId& run, const vfs::Recording& recording, const RunTraffic& traffic) {
  class Acknowledged final : public Answer {
   public:
    Status Take(const v1::ContentReply&) override { return {}; }
    bool whole() const override { return true; }
    void Deliver() override {}
  };
  auto request = std::make_shared<Request>();
  auto* put = request->message.mutable_put_trace();
  SetRun(run, put);
  v1::TraceRecord* record = put->mutable_record();
  for (const vfs::Recording::File& file : recording.files) {
    record->add_path(file.path);
    record->add_size(file.version.size);
  }
  for (const vfs::TraceRange& range : recording.ranges) {
    for (const uint64_t n : {uint64_t{range.file}, range.first, range.count}) record->add_range(n);
  }
  record->set_shared(recording.shared);
  record->set_partial(recording.partial);
  FillReport(recording, put->mutable_report());
  put->mutable_report()->set_wire_bytes(traffic.home_bytes);
  put->mutable_report()->set_peer_bytes(traffic.peer_bytes);
  put->mutable_report()->set_s3_bytes(traffic.s3_bytes);
  put->mutable_report()->set_link_busy_us(static_cast<uint64_t>(traffic.link_busy_micros));
  request->begin = [] { return std::make_unique<Acknowledged>(); };
  request->fail = [](const Error& error) { LogInfo("home does not accept a trace: {}", Escape(error.message())); };
  Add(std::move(request));
}

}  // namespace vrun::node
