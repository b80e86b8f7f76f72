// SPDX-License-Identifier: Apache-2.0
#include "node/peers/peer_source.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/escape.h"
#include "base/hash/secret.h"
#include "base/log.h"
#include "base/thread/mutex.h"
#include "node/peers/rendezvous.h"
#include "proto/content.pb.h"
#include "store/format/statement.h"

namespace vrun::node {
namespace {

constexpr size_t kOwnersAsked = 2;

}  // namespace

v1::PeerRequest UnitsQuestion(const UnitPlace& place, uint64_t first, uint64_t count, vfs::Urgency urgency) {
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

// One FetchRange, assembled from its pieces.
struct PeerSource::Gather {
  Mutex mutex;
  uint64_t first = 0;
  vfs::FetchedRange range;
  size_t missing = 0;  // units
  std::function<void(Result<vfs::FetchedRange>)> done;

  void Take(uint64_t from, Result<std::vector<HeldUnit>> units) {
    std::function<void(Result<vfs::FetchedRange>)> call;
    std::optional<Error> error;
    {
      MutexLock lock(mutex);
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
      pace_(options_.silence_micros, options_.wait_micros),
      links_(options_.home_id, options_.name, options_.credentials, &timers_),
      units_([this](const UnitPlace& place, uint64_t first, uint64_t count, vfs::Urgency urgency,
                    UnitExchange::Got got) { Elsewhere(place, first, count, urgency, std::move(got)); },
             {}),
      frames_(this) {}

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
    frames().Forget();
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

  const uint64_t first = offset / unit, end = (offset + length + unit - 1) / unit;
  FetchUnits({tree, path, version}, first, end - first, urgency, nullptr, std::move(done));
}

void PeerSource::FetchUnits(const UnitPlace& place, uint64_t first, uint64_t count, vfs::Urgency urgency,
                            const PeerLinks::MemberPtr& holder, std::function<void(Result<vfs::FetchedRange>)> done) {
  auto gather = std::make_shared<Gather>();
  gather->first = first;
  gather->range.offset = first * store::UnitBytes(place.version.size);
  gather->range.units.resize(count);
  gather->missing = count;
  gather->done = std::move(done);
  const uint64_t group_units = GroupUnits(place.version.size);
  for (uint64_t at = first; at < first + count;) {
    const uint64_t next = std::min(first + count, (at / group_units + 1) * group_units);
    FetchPiece(gather, place, at, next - at, urgency, holder);
    at = next;
  }
}

void PeerSource::Start(std::vector<PeerLinks::MemberPtr> owners, PeerErrand::Work work) {
  std::make_shared<PeerErrand>(PeerRoads{&links_, &pace_, &timers_, gate_}, std::move(owners), std::move(work))
      ->Start();
}

void PeerSource::FetchPiece(const std::shared_ptr<Gather>& gather, const UnitPlace& place, uint64_t first,
                            uint64_t count, vfs::Urgency urgency, const PeerLinks::MemberPtr& holder) {
  PeerErrand::Work work;
  work.question = UnitsQuestion(place, first, count, urgency);
  work.check = [this, gather, place, first, count](const v1::PeerReply& reply,
                                                   const PeerLinks::MemberPtr&) -> Result<PeerErrand::Deliver> {
    VRUN_ASSIGN(SignedRange range, CheckUnits(reply, place, first, count));
    return PeerErrand::Deliver([this, gather, first, range = std::move(range), bytes = reply.units().data().size()] {
      Fetched(bytes);
      gather->Take(first, range.units);
    });
  };
  if (holder) {
    work.question.mutable_get_units()->set_held_only(true);
    work.only_if_held = true;
    work.home = [this, gather, place, first, count, urgency](const std::function<void(PeerErrand::Deliver)>& came) {
      came([this, gather, place, first, count, urgency] { FetchPiece(gather, place, first, count, urgency, nullptr); });
    };
    return Start({holder}, std::move(work));
  }
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
  auto before = links_.OwnersBefore(GroupKey(place.version, first / GroupUnits(place.version.size)), 1);
  if (before.empty()) return FromHome(place, first, count, urgency, std::move(got));
  PeerErrand::Work work;
  work.question = UnitsQuestion(place, first, count, urgency);
  work.question.mutable_get_units()->set_held_only(true);
  work.only_if_held = true;
  work.check = [this, place, first, count, got](const v1::PeerReply& reply,
                                                const PeerLinks::MemberPtr&) -> Result<PeerErrand::Deliver> {
    VRUN_ASSIGN(SignedRange range, CheckUnits(reply, place, first, count));
    return PeerErrand::Deliver([this, got, range = std::move(range), bytes = reply.units().data().size()] {
      Fetched(bytes);
      got(range);
    });
  };
  work.home = [this, place, first, count, urgency, got](std::function<void(PeerErrand::Deliver)> came) {
    FromHome(place, first, count, urgency,
             [got, came](Result<SignedRange> range) { came([got, range = std::move(range)] { got(range); }); });
  };
  Start(std::move(before), std::move(work));
}

void PeerSource::FromHome(const UnitPlace& place, uint64_t first, uint64_t count, vfs::Urgency urgency,
                          UnitExchange::Got got) {
  home_->FetchSigned(
      place, first, count, urgency,
      [this, gate = gate_, version = place.version, asked = pace_.AskHome(), got](Result<SignedRange> range) {
        const vfs::Gate::Pass pass(gate.get());
        if (!pass) return;
        pace_.HomeAnswered(asked, range.has_value());
        if (range) {
          // An invalid statement (home has just restarted) cannot be passed on.
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

void PeerSource::FetchTrace(const vfs::RunId& run, const std::vector<Digest>& have,
                            std::function<void(Result<vfs::TraceTable>)> done) {
  frames_.FetchTrace(run, have, std::move(done));
}

void PeerSource::FetchFrames(const vfs::RunId& run, std::shared_ptr<const vfs::TraceTable> table,
                             std::vector<uint32_t> frames, std::function<void(const vfs::TraceFrame&)> arrived,
                             std::function<void(Status)> done) {
  if (links_.mates() == 0)
    return home_->FetchFrames(run, std::move(table), std::move(frames), std::move(arrived), std::move(done));
  frames_.FetchFrames(run, table, frames, std::move(arrived), std::move(done));
}

}  // namespace vrun::node
