// SPDX-License-Identifier: Apache-2.0
// Names that must be exclusive (open with O_EXCL, mkdir, symlink, link, mknod) in directories in which home's programs
// or other views work too: home makes such a name, if nobody has it, and the request waits. docs/decisions/0047.
//
//   request -> Wants -> exclusive operation (live_stream.h) -> home makes the name, or refuses
//           -> acknowledgement: refused, EEXIST; else -> the next merged tree that contains it -> answer
//
// The caller that was answered sees what was at home when the name was made: what the last owner of a lock wrote before
// he removed it. The kernel caches no names of such a directory (SharedUse::uncached), so the answer need not wait for
// notices about names. These need the directory's lock, which the kernel holds for the request: they are sent when the
// directory is no longer in such use (Postpone). That is a minute for a lock: a name that is asked for twice, or
// refused. For other names it is as short as it can be, because uncached names slow down everybody who works there.
//
// A claim is in the journal from its operation to its answer. The request comes again to the next server, which waits
// for the answer to the same operation.
//
// If home is silent, or has not answered for kMostMicros, the name is made here, as anywhere else.
//
// Thread safety: "Locked": with a TreeLock. Callbacks run without a lock.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "vfs/live/kernel/kernel_notices.h"

namespace vrun::vfs {

class LiveClaims {
 public:
  static constexpr int64_t kMostMicros = 30'000'000;
  static constexpr int64_t kMostForTree = 1'000'000;  // once home has made it
  static constexpr unsigned kFresh = 16;              // SharedUse::fresh after each change of others
  static constexpr int64_t kResentMicros = 10'000'000;

  // Runs once. False: home has such a name.
  using Done = std::function<void(bool made)>;
  using Calls = std::vector<std::function<void()>>;
  using Names = KernelNotices::Names;

  // All must outlive it.
  LiveClaims(JournaledTree& tree, KernelNotices& notices, TimerThread& timers)
      : tree_(tree), notices_(notices), timers_(timers) {}

  // --- requests

  // False: no. Cheap.
  bool MayWantLocked(const LiveNode& directory) const;
  // Whether home is to make this name, which does not exist here.
  bool WantsLocked(LiveNode* directory, const std::string& name);
  // This request, or the same one to a previous server, has claimed.
  bool IsKnownLocked(uint64_t unique) const { return claims_.contains(unique); }
  void AddLocked(uint64_t unique, uint64_t operation, LiveNode* directory, const std::string& name);
  // Runs `done` on the answer. If that is known, returns it instead.
  std::optional<bool> WaitLocked(uint64_t unique, Done done);
  // The request was answered.
  void OverLocked(uint64_t unique);
  // The kernel is to ask for each name of the directory.
  static bool IsUncached(const LiveNode& directory);

  // --- home

  // As LiveStream::OnApplied.
  void AcknowledgedLocked(uint64_t number, const std::vector<LiveStream::Applied>& applied, Calls* calls);
  // A tree that contains home's changes up to this operation was merged.
  void ShownLocked(uint64_t operation, Calls* calls);
  void OthersLocked(const std::vector<uint64_t>& directories);
  Names ClaimedLocked() const;
  // Takes out of `names` what cannot be told to the kernel now, and adds what can now. `expire`: further names that the
  // kernel is to expire (if it can). Their directories count as being told until Told.
  void PostponeLocked(bool can_expire, std::vector<std::pair<uint64_t, std::string>>* names, Names* expire);
  void ToldLocked() { telling_.clear(); }
  // Something waits for the kernel to be told.
  bool OwesLocked() const { return !expiring_.empty(); }

  // --- restart

  // What a previous server left. For a while after that, any directory may be in use by others.
  void Restore(const LiveState& state);
  // Home has been asked before, so it understands claims.
  bool ever() const { return ever_; }
  // The previous server's notices are being sent, or were.
  void SetTellingRestored(bool telling) { telling_restored_ = telling; }
  void AddToCheckpoint(LiveFrame* all) const;
  // Claims whose requests did not come again: their callers are gone. Those that home has made are in `made`.
  void DropUnclaimedLocked(std::vector<LiveSavedClaim>* made);
  bool IsWaitingForResentLocked() const;

 private:
  struct Claim {
    LiveSavedClaim is;
    Done done;             // null: the request has not come again yet, or was answered
    int64_t deadline = 0;  // monotonic
    bool restored = false;
  };
  bool NeedsTreeLocked(const Claim& claim) const;
  void FinishLocked(Claim* claim, bool made, Calls* calls);
  // From now on the kernel caches no name of it, and what it has cached is expired.
  void UncacheLocked(LiveNode* directory, int64_t micros);
  void NoteLocked(uint64_t unique, const Claim& claim);
  static void NoteEver(LiveFrame* frame);
  void WatchLater(uint64_t unique);
  void Watch(uint64_t unique);

  JournaledTree& tree_;
  KernelNotices& notices_;
  TimerThread& timers_;
  static constexpr uint64_t kEver = 0;  // in place of a unique: the view has claimed

  // Guarded by the tree's lock.
  bool ever_ = false;
  std::map<uint64_t, Claim> claims_;  // by unique, as DoneRequests::UniqueOf
  std::set<uint64_t> expiring_;       // directories of which the kernel still has names
  std::set<uint64_t> telling_;        // the kernel is being told of names in them
  Names postponed_;
  bool telling_restored_ = false;
  int64_t anywhere_until_ = 0;
};

}  // namespace vrun::vfs
