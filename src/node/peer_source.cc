// SPDX-License-Identifier: Apache-2.0
#include "node/peer_source.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/escape.h"
#include "base/log.h"
#include "base/secret.h"
#include "node/content_decode.h"
#include "node/rendezvous.h"
#include "proto/content.pb.h"
#include "store/statement.h"

namespace vrun::node {
namespace {

constexpr size_t kOwnersAsked = 2;

v1::PeerRequest Question(const UnitPlace& place, uint64_t first, uint64_t count, vfs::Urgency urgency) {
  v1::PeerRequest question;
  auto* get = question.mutable_get_units();
  get->set_tree(std::string(place.tree.view()));
  get->set_path(place.path);
  get->mutable_version()->set_dev(place.version.dev);
  get->mutable_version()->set_ino(place.version.ino);
  get->mutable_version()->set_ctime_ns(place.version.ctime_ns);
  get->mutable_version()->set_size(place.version.size);
  get->set_first_unit(first);
  get->set_count(static_cast<uint32_t>(count));
  get->set_ahead(urgency == vfs::Urgency::kAhead);
  return question;
}

}  // namespace

// One FetchRange, put together from its pieces.
struct PeerSource::Gather {
  std::mutex mutex;
  uint64_t first = 0;
  vfs::FetchedRange range;
  size_t missing = 0;  // units
  std::function<void(Result<vfs::FetchedRange>)> done;

  void Take(uint64_t from, Result<std::vector<HeldUnit>> units) {
    std::function<void(Result<vfs::FetchedRange>)> call;
    std::optional<Error> error;
    {
      std::lock_guard lock(mutex);
      if (!done) return;
      if (units) {
        for (size_t i = 0; i < units->size(); ++i) {
          const HeldUnit& unit = (*units)[i];
          range.units[from - first + i] = {unit.digest, *unit.data};
          if (unit.statement && !unit.statement->object_id.empty())
            range.object_id = store::ObjectId::Decode(unit.statement->object_id);
        }
        missing -= units->size();
        if (missing > 0) return;
      } else {
        error = units.error();
      }
      call = std::exchange(done, nullptr);
    }
    if (error)
      call(*std::move(error));
    else
      call(std::move(range));
  }
};

PeerSource::PeerSource(PeerSourceOptions options, ContentSource* home)
    : options_(std::move(options)),
      home_(home),
      pace_(options_.silence_micros),
      links_(options_.home_id, options_.name, options_.credentials, &timers_),
      units_([this](const UnitPlace& place, uint64_t first, uint64_t count, vfs::Urgency urgency,
                    UnitExchange::Got got) { Elsewhere(place, first, count, urgency, std::move(got)); },
             {}),
      frames_(
          [this](const vfs::RunId& run, const FrameExchange::TablePtr& table, uint32_t index,
                 FrameExchange::Done done) {
            home_->FetchSignedFrame(
                run, table->id, index,
                [this, gate = gate_, done, asked = MonotonicMicros()](Result<FrameExchange::Frame> frame) {
                  const vfs::Gate::Pass pass(gate.get());
                  if (!pass) return;
                  if (frame) pace_.HomeAnswered(MonotonicMicros() - asked);
                  done(std::move(frame));
                });
          },
          &timers_) {}

PeerSource::~PeerSource() {
  gate_->Close();
  links_.Close();
  timers_.Stop();
}

void PeerSource::HomeIsBack() {
  if (watching_.exchange(true)) return;
  home_->WatchPeers(
      options_.name, options_.address, options_.pool,
      [this, gate = gate_](const v1::Peers& peers) {
        const vfs::Gate::Pass pass(gate.get());
        if (pass) Update(peers);
      },
      [this, gate = gate_] {
        const vfs::Gate::Pass pass(gate.get());
        if (pass) watching_ = false;
      });
}

void PeerSource::Update(const v1::Peers& peers) {
  const size_t before = links_.mates();
  if (links_.Update(peers)) {
    units_.ForgetStatements();
    frames_.Forget();
  }
  if (const size_t now = links_.mates(); now != before) LogInfo("{} other nodes read from this home", now);
  if (updated_) updated_();
}

PeerStats PeerSource::stats() const {
  return {links_.mates(), pace_.fetched_bytes, pace_.served_bytes, pace_.lies, pace_.fallbacks};
}

bool PeerSource::Signed(const tree::FileVersion& version, const SignedUnits& statement) const {
  return VerifySignature(
      links_.public_key(),
      store::UnitsStatement(options_.home_id, version, statement.offset, statement.digests, statement.object_id),
      statement.signature);
}

void PeerSource::FetchRange(const Digest& tree, const std::string& path, const tree::FileVersion& version,
                            uint64_t offset, uint64_t length, vfs::Urgency urgency,
                            std::function<void(Result<vfs::FetchedRange>)> done) {
  const uint64_t unit = store::UnitBytes(version.size);
  const bool whole_units = offset % unit == 0 && length > 0 && offset < version.size &&
                           length <= version.size - offset && (length % unit == 0 || offset + length == version.size);
  if (!whole_units || links_.mates() == 0)
    return home_->FetchRange(tree, path, version, offset, length, urgency, std::move(done));

  auto gather = std::make_shared<Gather>();
  const uint64_t first = offset / unit, end = (offset + length + unit - 1) / unit;
  gather->first = first;
  gather->range.offset = offset;
  gather->range.units.resize(end - first);
  gather->missing = end - first;
  gather->done = std::move(done);
  const UnitPlace place{tree, path, version};
  const uint64_t group_units = GroupUnits(version.size);
  for (uint64_t at = first; at < end;) {
    const uint64_t next = std::min(end, (at / group_units + 1) * group_units);
    FetchPiece(gather, place, at, next - at, urgency);
    at = next;
  }
}

void PeerSource::Start(std::vector<PeerLinks::MemberPtr> owners, PeerErrand::Work work) {
  std::make_shared<PeerErrand>(PeerRoads{&links_, &pace_, &timers_, gate_}, std::move(owners), std::move(work))
      ->Start();
}

void PeerSource::FetchPiece(const std::shared_ptr<Gather>& gather, const UnitPlace& place, uint64_t first,
                            uint64_t count, vfs::Urgency urgency) {
  PeerErrand::Work work;
  work.question = Question(place, first, count, urgency);
  work.check = [this, gather, place, first, count](const v1::PeerReply& reply) -> Result<PeerErrand::Deliver> {
    VRUN_ASSIGN(SignedRange range, CheckUnits(reply, place, first, count));
    return PeerErrand::Deliver([this, gather, first, range = std::move(range), bytes = reply.units().data().size()] {
      pace_.fetched_bytes += bytes;
      gather->Take(first, range.units);
    });
  };
  work.home = [this, gate = gate_, gather, place, first, count,
               urgency](std::function<void(PeerErrand::Deliver)> came) {
    units_.Get(place, first, count, urgency, [gate, gather, first, came](Result<std::vector<HeldUnit>> units) {
      const vfs::Gate::Pass pass(gate.get());
      if (pass) came([gather, first, units = std::move(units)] { gather->Take(first, units); });
    });
  };
  Start(links_.Owners(GroupKey(place.version, first / GroupUnits(place.version.size)), kOwnersAsked), std::move(work));
}

Result<SignedRange> PeerSource::CheckUnits(const v1::PeerReply& reply, const UnitPlace& place, uint64_t first,
                                           uint64_t count) {
  if (!reply.has_units()) return Error(Code::kNotFound, "not there");
  VRUN_ASSIGN(SignedRange range,
              CheckPeerUnits(reply.units(), options_.home_id, links_.public_key(), place.version, first, count));
  for (const HeldUnit& unit : range.units) units_.Remember(place.version, unit.statement);
  return range;
}

void PeerSource::Elsewhere(const UnitPlace& place, uint64_t first, uint64_t count, vfs::Urgency urgency,
                           UnitExchange::Got got) {
  const PeerLinks::MemberPtr before =
      links_.OwnerBefore(GroupKey(place.version, first / GroupUnits(place.version.size)));
  if (!before) return FromHome(place, first, count, urgency, std::move(got));
  PeerErrand::Work work;
  work.question = Question(place, first, count, urgency);
  work.question.mutable_get_units()->set_held_only(true);
  work.only_if_held = true;
  work.check = [this, place, first, count, got](const v1::PeerReply& reply) -> Result<PeerErrand::Deliver> {
    VRUN_ASSIGN(SignedRange range, CheckUnits(reply, place, first, count));
    return PeerErrand::Deliver([this, got, range = std::move(range), bytes = reply.units().data().size()] {
      pace_.fetched_bytes += bytes;
      got(range);
    });
  };
  work.home = [this, place, first, count, urgency, got](std::function<void(PeerErrand::Deliver)> came) {
    FromHome(place, first, count, urgency,
             [got, came](Result<SignedRange> range) { came([got, range = std::move(range)] { got(range); }); });
  };
  Start({before}, std::move(work));
}

void PeerSource::FromHome(const UnitPlace& place, uint64_t first, uint64_t count, vfs::Urgency urgency,
                          UnitExchange::Got got) {
  home_->FetchSigned(
      place, first, count, urgency,
      [this, gate = gate_, version = place.version, asked = MonotonicMicros(), got](Result<SignedRange> range) {
        const vfs::Gate::Pass pass(gate.get());
        if (!pass) return;
        if (range) {
          pace_.HomeAnswered(MonotonicMicros() - asked);
          // What does not hold (home has begun anew just now) cannot be passed on.
          SignedUnitsPtr good;
          for (HeldUnit& unit : range->units) {
            if (!unit.statement || unit.statement == good) continue;
            if (Signed(version, *unit.statement))
              good = unit.statement;
            else
              unit.statement = nullptr;
          }
        }
        got(std::move(range));
      });
}

// --- frames ---

void PeerSource::FetchTrace(const vfs::RunId& run, const std::vector<Digest>& have,
                            std::function<void(Result<vfs::TraceTable>)> done) {
  frames_.Expect();
  home_->FetchTrace(run, have, [this, gate = gate_, run, done](Result<vfs::TraceTable> table) {
    {
      const vfs::Gate::Pass pass(gate.get());
      if (pass && table && !table->frames.empty()) frames_.Add(run, std::make_shared<const vfs::TraceTable>(*table));
      if (pass) frames_.CameOrNot();
    }
    done(std::move(table));
  });
}

void PeerSource::FetchFrames(const vfs::RunId& run, std::shared_ptr<const vfs::TraceTable> table,
                             std::vector<uint32_t> frames, std::function<void(const vfs::TraceFrame&)> arrived,
                             std::function<void(Status)> done) {
  if (links_.mates() == 0)
    return home_->FetchFrames(run, std::move(table), std::move(frames), std::move(arrived), std::move(done));
  // One after the other would be one round trip each; what is asked for at the same time comes when it comes.
  struct Left {
    std::mutex mutex;
    size_t frames;
    Status status;
    std::function<void(Status)> done;
    void Over(const Status& one) {
      std::function<void(Status)> call;
      Status all;
      {
        std::lock_guard lock(mutex);
        if (!one) status = one;
        if (--frames > 0) return;
        call = std::move(done);
        all = status;
      }
      call(all);
    }
  };
  auto left = std::make_shared<Left>();
  left->frames = frames.size();
  left->done = std::move(done);
  for (const uint32_t index : frames) {
    const Digest name = FrameNameOf(*table, index);
    const auto deliver = [arrived, left](const Result<vfs::TraceFrame>& frame) {
      Status status;
      if (frame)
        arrived(*frame);
      else
        status = frame.error();
      left->Over(status);
    };
    PeerErrand::Work work;
    work.question.mutable_get_frame()->set_name(std::string(name.view()));
    work.check = [this, table, index, name, deliver](const v1::PeerReply& reply) -> Result<PeerErrand::Deliver> {
      if (!reply.has_frame()) return Error(Code::kNotFound, "not there");
      VRUN_ASSIGN(vfs::TraceFrame frame, CheckFrame(reply.frame(), *table, index, name));
      return PeerErrand::Deliver([this, deliver, frame = std::move(frame), bytes = reply.frame().data().size()] {
        pace_.fetched_bytes += bytes;
        deliver(frame);
      });
    };
    work.home = [this, gate = gate_, run, table, index, name, deliver](std::function<void(PeerErrand::Deliver)> came) {
      const auto take = [gate, table, index, deliver, came](const Result<FrameExchange::Frame>& told) {
        const vfs::Gate::Pass pass(gate.get());
        if (!pass) return;
        auto frame = told ? DecodeTraceFrame(**told, *table, index) : Result<vfs::TraceFrame>(told.error());
        came([deliver, frame = std::move(frame)] { deliver(frame); });
      };
      frames_.Get(name, [this, gate, run, table, index, take](const Result<FrameExchange::Frame>& told) {
        const vfs::Gate::Pass pass(gate.get());
        if (!pass) return;
        // The run that it was asked for may be one that home has forgotten.
        if (told)
          take(told);
        else
          home_->FetchSignedFrame(run, table->id, index, take);
      });
    };
    uint64_t key;
    std::memcpy(&key, name.bytes.data(), sizeof key);
    Start(links_.Owners(key, kOwnersAsked), std::move(work));
  }
}

Result<vfs::TraceFrame> PeerSource::CheckFrame(const v1::TraceFrame& told, const vfs::TraceTable& table, uint32_t index,
                                               const Digest& name) const {
  if (!VerifySignature(links_.public_key(), store::FrameStatement(options_.home_id, name, told.digests()),
                       told.signature())) {
    return Error(Code::kCorrupt, "a peer sent what home did not sign");
  }
  return DecodeTraceFrame(told, table, index);
}

}  // namespace vrun::node
