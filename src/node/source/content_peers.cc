// SPDX-License-Identifier: Apache-2.0
// The requests of ContentSource about other nodes: the member list, and content to be passed on to them.
#include <optional>
#include <utility>

#include "base/escape.h"
#include "base/log.h"
#include "node/source/content_decode.h"
#include "node/source/content_request.h"
#include "node/source/content_source.h"
#include "proto/content.pb.h"

namespace vrun::node {
namespace {

uint64_t UnitsIn(const v1::Units& units) {
  uint64_t count = 0;
  for (const v1::Piece& piece : units.piece()) count += piece.digests().size() / sizeof(Digest::bytes);
  return count;
}

std::shared_ptr<SignedUnits> StatementIn(const v1::Units& units) {
  auto statement = std::make_shared<SignedUnits>();
  statement->offset = units.offset();
  for (const v1::Piece& piece : units.piece()) statement->digests += piece.digests();
  statement->object_id = units.object_id();
  statement->signature = units.signature();
  return statement;
}

v1::ContentRequest::GetRange GetSigned(const UnitPlace& place, uint64_t first, uint64_t count) {
  const uint64_t unit = store::UnitBytes(place.version.size);
  v1::ContentRequest::GetRange get;
  get.set_tree(std::string(place.tree.view()));
  get.set_path(place.path);
  get.mutable_version()->set_dev(place.version.dev);
  get.mutable_version()->set_ino(place.version.ino);
  get.mutable_version()->set_ctime_ns(place.version.ctime_ns);
  get.mutable_version()->set_size(place.version.size);
  get.set_offset(first * unit);
  get.set_length(std::min(count * unit, place.version.size - first * unit));
  get.set_sign(true);
  get.set_for_peer(place.for_peer);
  return get;
}

}  // namespace

void ContentSource::FetchSigned(const UnitPlace& place, uint64_t first, uint64_t count, vfs::Urgency urgency,
                                std::function<void(Result<SignedRange>)> done) {
  class SignedAnswer final : public Answer {
   public:
    SignedAnswer(uint64_t size, uint64_t offset, uint64_t length, std::function<void(Result<SignedRange>)> done)
        : parts_(size, offset, length), done_(std::move(done)) {}
    Status Take(const v1::ContentReply& reply) override {
      if (!reply.has_units()) return CorruptFromHome("an unexpected reply instead of content");
      VRUN_TRY(parts_.Add(reply.units()));
      const SignedUnitsPtr statement = reply.units().signature().empty() ? nullptr : StatementIn(reply.units());
      statements_.insert(statements_.end(), UnitsIn(reply.units()), statement);
      return {};
    }
    bool whole() const override { return parts_.complete(); }
    void Deliver() override {
      vfs::FetchedRange fetched = parts_.Take();
      SignedRange range{fetched.offset, {}};
      for (size_t i = 0; i < fetched.units.size(); ++i) {
        range.units.push_back({fetched.units[i].digest,
                               std::make_shared<const std::string>(std::move(fetched.units[i].data)), statements_[i]});
      }
      done_(std::move(range));
    }

   private:
    RangeAssembler parts_;
    std::vector<SignedUnitsPtr> statements_;  // for each unit
    std::function<void(Result<SignedRange>)> done_;
  };
  auto request = std::make_shared<Request>();
  auto* get = request->message.mutable_get_range();
  *get = GetSigned(place, first, count);
  get->set_ahead(urgency == vfs::Urgency::kAhead);
  request->bytes = get->length();
  request->begin = [size = place.version.size, offset = get->offset(), length = get->length(), done] {
    return std::make_unique<SignedAnswer>(size, offset, length, done);
  };
  request->fail = [done](Error error) { done(std::move(error)); };
  Add(std::move(request));
}

void ContentSource::FetchStatements(const UnitPlace& place, uint64_t first, uint64_t count,
                                    std::function<void(Result<std::vector<SignedUnitsPtr>>)> done) {
  class StatementsAnswer final : public Answer {
   public:
    StatementsAnswer(uint64_t next, uint64_t count, uint64_t unit_bytes,
                     std::function<void(Result<std::vector<SignedUnitsPtr>>)> done)
        : next_(next), end_(next + count), unit_bytes_(unit_bytes), done_(std::move(done)) {}
    Status Take(const v1::ContentReply& reply) override {
      const v1::Units& units = reply.units();
      const uint64_t count = UnitsIn(units);
      if (!reply.has_units() || units.signature().empty() || units.offset() != next_ * unit_bytes_ ||
          count > end_ - next_) {
        return CorruptFromHome("an unexpected reply instead of statements");
      }
      for (const v1::Piece& piece : units.piece()) {
        if (piece.digests().size() % sizeof(Digest::bytes) != 0) return CorruptFromHome("units without digests");
      }
      next_ += count;
      statements_.push_back(StatementIn(units));
      return {};
    }
    bool whole() const override { return next_ == end_; }
    void Deliver() override { done_(std::move(statements_)); }

   private:
    uint64_t next_;
    const uint64_t end_, unit_bytes_;
    std::vector<SignedUnitsPtr> statements_;
    std::function<void(Result<std::vector<SignedUnitsPtr>>)> done_;
  };
  auto request = std::make_shared<Request>();
  *request->message.mutable_get_range() = GetSigned(place, first, count);
  request->message.mutable_get_range()->set_digests_only(true);
  request->begin = [first, count, unit = store::UnitBytes(place.version.size), done] {
    return std::make_unique<StatementsAnswer>(first, count, unit, done);
  };
  request->fail = [done](Error error) { done(std::move(error)); };
  Add(std::move(request));
}

void ContentSource::FetchSignedFrame(const vfs::RunId& run, const Digest& table, uint32_t frame,
                                     std::function<void(Result<std::shared_ptr<const v1::TraceFrame>>)> done) {
  class FrameAnswer final : public Answer {
   public:
    explicit FrameAnswer(uint32_t index, std::function<void(Result<std::shared_ptr<const v1::TraceFrame>>)> done)
        : index_(index), done_(std::move(done)) {}
    Status Take(const v1::ContentReply& reply) override {
      if (!reply.has_frame() || frame_ || reply.frame().index() != index_)
        return CorruptFromHome("an unexpected reply instead of a frame");
      frame_ = std::make_shared<const v1::TraceFrame>(reply.frame());
      return {};
    }
    bool whole() const override { return frame_ != nullptr; }
    void Deliver() override { done_(std::move(frame_)); }

   private:
    const uint32_t index_;
    std::shared_ptr<const v1::TraceFrame> frame_;
    std::function<void(Result<std::shared_ptr<const v1::TraceFrame>>)> done_;
  };
  auto request = std::make_shared<Request>();
  auto* get = request->message.mutable_get_frames();
  get->set_job(run.job);
  get->set_attempt(run.attempt);
  get->set_token(run.token);
  get->set_table(std::string(table.view()));
  get->add_frame(frame);
  get->set_sign(true);
  request->begin = [frame, done] { return std::make_unique<FrameAnswer>(frame, done); };
  request->fail = [done](Error error) { done(std::move(error)); };
  Add(std::move(request));
}

void ContentSource::WatchPeers(const std::string& name, const std::string& address, const std::string& pool,
                               std::function<void(const v1::Peers&)> changed, std::function<void()> over) {
  class PeersAnswer final : public Answer {
   public:
    explicit PeersAnswer(std::function<void(const v1::Peers&)> changed) : changed_(std::move(changed)) {}
    Status Take(const v1::ContentReply& reply) override {
      if (!reply.has_peers()) return CorruptFromHome("an unexpected reply instead of a list of peers");
      changed_(reply.peers());
      return {};
    }
    bool whole() const override { return false; }
    void Deliver() override {}

   private:
    std::function<void(const v1::Peers&)> changed_;
  };
  auto request = std::make_shared<Request>();
  auto* watch = request->message.mutable_watch_peers();
  watch->set_name(name);
  watch->add_addresses(address);
  watch->set_pool(pool);
  request->begin = [changed] { return std::make_unique<PeersAnswer>(changed); };
  request->fail = [over](const Error& error) {
    LogInfo("no list of peers: {}", Escape(error.message()));
    over();
  };
  Add(std::move(request));
}

}  // namespace vrun::node
