// SPDX-License-Identifier: Apache-2.0
#include "node/peers/peer_frames.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/hash/secret.h"
#include "base/thread/mutex.h"
#include "node/peers/peer_source.h"
#include "node/peers/rendezvous.h"
#include "node/source/content_decode.h"
#include "proto/content.pb.h"
#include "store/format/statement.h"

namespace vrun::node {
namespace {

constexpr int64_t kNotesMicros = 30'000'000;
constexpr int kMostMisses = 8;
constexpr size_t kHoldersAsked = 2;  // among those that were there before this node

uint64_t KeyOf(const Digest& name) {
  uint64_t key;
  std::memcpy(&key, name.bytes.data(), sizeof key);
  return key;
}

UnitPlace PlaceOf(const vfs::TraceTable& table, const vfs::TraceRange& range) {
  return {table.tree, table.files[range.file].path, table.files[range.file].version};
}

// As home sends it, but without the signature.
FrameExchange::Frame Unsigned(const vfs::TraceFrame& frame) {
  auto made = std::make_shared<v1::TraceFrame>();
  made->set_index(frame.index);
  made->set_data(frame.data);
  made->set_raw_bytes(static_cast<uint32_t>(frame.data.size()));
  for (const Digest& digest : frame.digests) made->mutable_digests()->append(digest.view());
  return made;
}

}  // namespace

PeerFrames::PeerFrames(PeerSource* source)
    : source_(source),
      exchange_([this](const vfs::RunId& run, const TablePtr& table, uint32_t index, const FrameExchange::Done& done) {
        Elsewhere(run, table, index, done);
      }) {}

void PeerFrames::FetchTrace(const vfs::RunId& run, const std::vector<Digest>& have,
                            std::function<void(Result<vfs::TraceTable>)> done) {
  const uint64_t expected = exchange_.Expect();
  source_->home()->FetchTrace(run, have,
                              [this, gate = source_->gate(), run, expected, done](Result<vfs::TraceTable> table) {
                                {
                                  const vfs::Gate::Pass pass(gate.get());
                                  if (pass && table && !table->frames.empty())
                                    exchange_.Add(run, std::make_shared<const vfs::TraceTable>(*table));
                                  if (pass) exchange_.CameOrNot(expected);
                                }
                                done(std::move(table));
                              });
}

void PeerFrames::FetchFrames(const vfs::RunId& run, const TablePtr& table, const std::vector<uint32_t>& frames,
                             std::function<void(const vfs::TraceFrame&)> arrived, std::function<void(Status)> done) {
  // All at once: one after the other would cost a round trip each.
  struct Left {
    Mutex mutex;
    size_t frames;
    Status status;
    std::function<void(Status)> done;
    void Over(const Status& one) {
      std::function<void(Status)> call;
      Status all;
      {
        MutexLock lock(mutex);
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
    Fetch(run, table, index, [arrived, left](const Result<vfs::TraceFrame>& frame) {
      Status status;
      if (frame)
        arrived(*frame);
      else
        status = frame.error();
      left->Over(status);
    });
  }
}

void PeerFrames::Fetch(const vfs::RunId& run, const TablePtr& table, uint32_t index, const Got& got) {
  const Digest name = FrameNameOf(*table, index);
  PeerErrand::Work work;
  work.question.mutable_get_frame()->set_name(std::string(name.view()));
  work.only_if_held = true;
  work.next_when_silent = true;
  work.lacks = [this, table](const PeerLinks::Member& member) { return Lacks(table->id, member); };
  work.absent = [this, table](const PeerLinks::Member& member) { NoteLacks(table->id, member); };
  work.check = [this, table, index, got](const v1::PeerReply& reply,
                                         const PeerLinks::MemberPtr& from) -> Result<PeerErrand::Deliver> {
    if (reply.has_units())
      return PeerErrand::Deliver([this, table, index, from, got] { Gather(table, index, from, got); });
    if (!reply.has_frame()) {
      NoteLacks(table->id, *from);
      return Error(Code::kNotFound, "not there");
    }
    VRUN_ASSIGN(vfs::TraceFrame frame, Check(reply.frame(), *table, index));
    return PeerErrand::Deliver([this, got, frame = std::move(frame), bytes = reply.frame().data().size()] {
      source_->Fetched(bytes);
      got(frame);
    });
  };
  work.home = [this, gate = source_->gate(), run, table, index, name,
               got](const std::function<void(PeerErrand::Deliver)>& came) {
    const auto take = [gate, table, index, got, came](const Result<FrameExchange::Frame>& told) {
      const vfs::Gate::Pass pass(gate.get());
      if (!pass) return;
      auto frame = told ? DecodeTraceFrame(**told, *table, index) : Result<vfs::TraceFrame>(told.error());
      came([got, frame = std::move(frame)] { got(frame); });
    };
    exchange_.Get(name, [this, gate, run, table, index, take](const Result<FrameExchange::Frame>& told) {
      const vfs::Gate::Pass pass(gate.get());
      if (!pass) return;
      // Home may have forgotten the run for which it was asked, or this node the table.
      if (told && *told)
        take(told);
      else
        FromHome(run, table, index, take);
    });
  };
  source_->Start(source_->links().Owners(KeyOf(name), SIZE_MAX), std::move(work));
}

void PeerFrames::Elsewhere(const vfs::RunId& run, const TablePtr& table, uint32_t index,
                           const FrameExchange::Done& done) {
  const Digest name = FrameNameOf(*table, index);
  // Nodes that run the same program now have no more of it than this node, and searching for its units would delay all
  // of them.
  const auto home = [this, shared = exchange_.Shared(table->id), run, table, index, done] {
    shared ? FromHome(run, table, index, done) : FromUnits(run, table, index, done);
  };
  // A node that asked here without success has turned to the next owner, which can now fetch the frame for this node
  // too.
  auto owners = source_->links().Owners(KeyOf(name), SIZE_MAX);
  const auto own = std::ranges::find_if(owners, [](const PeerLinks::MemberPtr& member) { return !member->client; });
  if (!exchange_.Late(table->id) || own == owners.end() || own + 1 == owners.end()) return home();
  owners.erase(owners.begin(), own + 1);
  PeerErrand::Work work;
  work.question.mutable_get_frame()->set_name(std::string(name.view()));
  work.only_if_held = true;
  work.lacks = [this, table](const PeerLinks::Member& member) { return Lacks(table->id, member); };
  work.absent = [this, table](const PeerLinks::Member& member) { NoteLacks(table->id, member); };
  work.check = [this, table, index, done](const v1::PeerReply& reply,
                                          const PeerLinks::MemberPtr& from) -> Result<PeerErrand::Deliver> {
    if (reply.has_units()) {
      return PeerErrand::Deliver([this, table, index, from, done] {
        Gather(table, index, from, [done](const Result<vfs::TraceFrame>& frame) {
          done(frame ? Result<FrameExchange::Frame>(Unsigned(*frame)) : frame.error());
        });
      });
    }
    if (!reply.has_frame()) {
      NoteLacks(table->id, *from);
      return Error(Code::kNotFound, "not there");
    }
    VRUN_TRY(Check(reply.frame(), *table, index));
    return PeerErrand::Deliver([this, done, frame = std::make_shared<const v1::TraceFrame>(reply.frame())] {
      source_->Fetched(frame->data().size());
      done(frame);
    });
  };
  work.home = [home](const std::function<void(PeerErrand::Deliver)>& came) { came(home); };
  source_->Start(std::move(owners), std::move(work));
}

void PeerFrames::FromUnits(const vfs::RunId& run, const TablePtr& table, uint32_t index,
                           const FrameExchange::Done& done) {
  const vfs::TraceRange& first = table->frames[index].front();
  const UnitPlace place = PlaceOf(*table, first);
  auto holders = Holders(table->id, GroupKey(place.version, first.first / GroupUnits(place.version.size)));
  if (holders.empty()) return FromHome(run, table, index, done);
  PeerErrand::Work work;
  work.question = UnitsQuestion(place, first.first, 1, vfs::Urgency::kAhead);
  work.question.mutable_get_units()->set_held_only(true);
  work.only_if_held = true;
  work.check = [this, table, index, place, at = first.first, done](
                   const v1::PeerReply& reply, const PeerLinks::MemberPtr& from) -> Result<PeerErrand::Deliver> {
    VRUN_TRY(source_->CheckUnits(reply, place, at, 1));
    return PeerErrand::Deliver([this, table, index, from, done] {
      NoteHolder(table->id, from.get());
      Gather(table, index, from, [done](const Result<vfs::TraceFrame>& frame) {
        done(frame ? Result<FrameExchange::Frame>(Unsigned(*frame)) : frame.error());
      });
    });
  };
  work.home = [this, run, table, index, done](const std::function<void(PeerErrand::Deliver)>& came) {
    came([this, run, table, index, done] {
      NoteHolder(table->id, nullptr);
      FromHome(run, table, index, done);
    });
  };
  source_->Start(std::move(holders), std::move(work));
}

void PeerFrames::FromHome(const vfs::RunId& run, const TablePtr& table, uint32_t index,
                          const FrameExchange::Done& done) {
  const int64_t asked = source_->pace().AskHome();
  source_->home()->FetchSignedFrame(run, table->id, index,
                                    [this, gate = source_->gate(), done, asked](Result<FrameExchange::Frame> frame) {
                                      const vfs::Gate::Pass pass(gate.get());
                                      if (!pass) return;
                                      source_->pace().HomeAnswered(asked, frame.has_value());
                                      done(std::move(frame));
                                    });
}

void PeerFrames::Gather(const TablePtr& table, uint32_t index, const PeerLinks::MemberPtr& holder, const Got& got) {
  struct Parts {
    Mutex mutex;
    std::vector<vfs::FetchedRange> ranges;  // as in the frame
    size_t missing;
    std::optional<Error> error;
  };
  const auto& ranges = table->frames[index];
  auto parts = std::make_shared<Parts>();
  parts->ranges.resize(ranges.size());
  parts->missing = ranges.size();
  for (size_t i = 0; i < ranges.size(); ++i) {
    source_->FetchUnits(PlaceOf(*table, ranges[i]), ranges[i].first, ranges[i].count, vfs::Urgency::kAhead, holder,
                        [parts, i, index, got](Result<vfs::FetchedRange> range) {
                          {
                            MutexLock lock(parts->mutex);
                            if (range)
                              parts->ranges[i] = *std::move(range);
                            else
                              parts->error = range.error();
                            if (--parts->missing > 0) return;
                          }
                          if (parts->error) return got(*parts->error);
                          vfs::TraceFrame frame{.index = index, .digests = {}, .data = {}};
                          for (const vfs::FetchedRange& part : parts->ranges) {
                            for (const vfs::FetchedUnit& unit : part.units) {
                              frame.digests.push_back(unit.digest);
                              frame.data += unit.data;
                            }
                          }
                          got(frame);
                        });
  }
}

Result<vfs::TraceFrame> PeerFrames::Check(const v1::TraceFrame& told, const vfs::TraceTable& table,
                                          uint32_t index) const {
  if (!VerifySignature(source_->links().public_key(),
                       store::FrameStatement(source_->options().home_id, FrameNameOf(table, index), told.digests()),
                       told.signature())) {
    return Error(Code::kCorrupt, "a peer sent what home did not sign");
  }
  return DecodeTraceFrame(told, table, index);
}

// --- notes ---

PeerFrames::Notes& PeerFrames::NotesLocked(const Digest& table) {
  const int64_t now = MonotonicMicros();
  std::erase_if(notes_, [now](const auto& item) { return item.second.until < now; });
  auto [notes, fresh] = notes_.try_emplace(table);
  if (fresh) notes->second.until = now + kNotesMicros;
  return notes->second;
}

bool PeerFrames::Lacks(const Digest& table, const PeerLinks::Member& member) {
  MutexLock lock(mutex_);
  return NotesLocked(table).lack.contains(member.seed);
}

void PeerFrames::NoteLacks(const Digest& table, const PeerLinks::Member& member) {
  MutexLock lock(mutex_);
  NotesLocked(table).lack.insert(member.seed);
}

std::vector<PeerLinks::MemberPtr> PeerFrames::Holders(const Digest& table, uint64_t group_key) {
  std::string known;
  {
    MutexLock lock(mutex_);
    const Notes& notes = NotesLocked(table);
    if (notes.misses >= kMostMisses) return {};
    known = notes.holder;
  }
  auto holders = known.empty() ? std::vector<PeerLinks::MemberPtr>() : source_->links().Named({known}, group_key);
  const auto add = [&](const PeerLinks::MemberPtr& member) {
    const bool here = std::find(holders.begin(), holders.end(), member) != holders.end();
    if (member->client && !here && source_->links().Well(*member)) holders.push_back(member);
  };
  for (const auto& owner : source_->links().Owners(group_key, 1)) add(owner);
  for (const auto& before : source_->links().OwnersBefore(group_key, kHoldersAsked)) add(before);
  return holders;
}

void PeerFrames::NoteHolder(const Digest& table, const PeerLinks::Member* holder) {
  MutexLock lock(mutex_);
  Notes& notes = NotesLocked(table);
  notes.misses = holder ? 0 : notes.misses + 1;
  if (holder) notes.holder = holder->name;
}

}  // namespace vrun::node
