// SPDX-License-Identifier: Apache-2.0
#include "sched/place/futures.h"

#include <algorithm>
#include <bit>
#include <optional>

#include "sched/model/fit.h"

namespace vrun::sched::core {

namespace {

// Counter-based (splitmix64): a draw depends only on its number.
uint64_t Hash(uint64_t n) {
  uint64_t z = (n + 1) * 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

// A node while pods are added to it.
class Filling {
 public:
  Filling(const NodeSpec& spec, mig::Model model, const FreeRoom& free)
      : node_(spec), room_(free), model_(model), gpus_(spec.gpus), usable_(spec.usable()) {
    for (int i = 0; i < gpus_; ++i) {
      if ((usable_ >> i & 1) == 0) room_.free_milli[i] = 0;
      idle_ += std::max<int64_t>(room_.free_milli[i], 0);
      open_gpus_ += room_.free_milli[i] > 0;
    }
  }

  int64_t idle() const { return idle_; }
  int open_gpus() const { return open_gpus_; }  // with free room, at the beginning

  bool Add(const Request& r) {
    if (r.milli_cpus > room_.free_cpus || r.memory_bytes > room_.free_memory || r.nics > room_.free_nics) return false;
    if (!AddGpus(r)) return false;
    room_.free_cpus -= r.milli_cpus;
    room_.free_memory -= r.memory_bytes;
    room_.free_nics -= r.nics;
    return true;
  }

 private:
  bool AddGpus(const Request& r) {
    if (r.gpu_memory > 0) {
      std::optional<Request> fitted = OnNode(r, node_);
      if (!fitted) return false;
      fitted->gpu_memory = 0;
      return AddGpus(*fitted);
    }
    return r.mig != 0 ? AddInstance(r) : r.gpu_milli > 0 ? AddShare(r) : AddWhole(r.gpus);
  }

  bool AddWhole(int gpus) {
    uint32_t free = room_.whole & node_.usable_for(Sharing::kWhole);
    if (std::popcount(free) < gpus) return false;
    for (int k = 0; k < gpus; ++k, free &= free - 1) {
      room_.free_milli[std::countr_zero(free)] = 0;
      room_.whole &= ~(free & -free);
    }
    idle_ -= gpus * kMilli;
    return true;
  }

  bool AddShare(const Request& r) {
    int best = -1;
    const uint32_t usable = node_.usable_for(r.sharing);
    for (int i = 0; i < gpus_; ++i) {
      if ((usable >> i & 1) == 0 || room_.free_milli[i] < r.gpu_milli || !room_.Shares(i, r)) continue;
      if (best < 0 || room_.free_milli[i] < room_.free_milli[best]) best = i;
    }
    if (best < 0) return false;
    Share(best, r, r.gpu_milli);
    return true;
  }

  bool AddInstance(const Request& r) {
    int best = -1;
    const uint32_t usable = node_.usable_for(Sharing::kMig);
    for (int i = 0; i < gpus_; ++i) {
      if ((usable >> i & 1) == 0 || !room_.Shares(i, r)) continue;
      if (mig::Count(model_, r.mig, room_.sliced[i]) == 0) continue;
      if (best < 0 || room_.free_milli[i] < room_.free_milli[best]) best = i;
    }
    if (best < 0) return false;
    mig::SliceMask chosen = 0;
    int most = -1;
    for (int start = 0; start < mig::kMostSlices; ++start) {
      const mig::SliceMask slices = mig::At(model_, r.mig, start, room_.sliced[best]);
      const int left = mig::Potential(model_, static_cast<mig::SliceMask>(room_.sliced[best] | slices));
      if (slices != 0 && left > most) most = left, chosen = slices;
    }
    room_.sliced[best] |= chosen;
    Share(best, r, std::popcount(chosen) * kMilli / mig::Slices(model_));
    return true;
  }

  void Share(int gpu, const Request& r, int milli) {
    milli = std::min<int>(milli, room_.free_milli[gpu]);
    room_.free_milli[gpu] = static_cast<int16_t>(room_.free_milli[gpu] - milli);
    room_.sharing[gpu] = r.kind();
    room_.sharers[gpu] = r.sharers;
    room_.whole &= ~(1u << gpu);
    idle_ -= milli;
  }

  const NodeSpec& node_;
  FreeRoom room_;
  mig::Model model_;
  int gpus_;
  uint32_t usable_;
  int64_t idle_ = 0;
  int open_gpus_ = 0;
};

}  // namespace

void Futures::Draw(std::vector<Kind> kinds) {
  kinds_ = std::move(kinds);
  if (kinds_.size() > UINT16_MAX) kinds_.resize(UINT16_MAX);
  type_index_.clear();
  types_.clear();
  std::vector<int64_t> up_to;  // cumulative weights
  for (const Kind& kind : kinds_) {
    for (const std::string& type : kind.gpu_types) type_index_.try_emplace(type, static_cast<int>(type_index_.size()));
    uint64_t bits = kind.gpu_types.empty() ? kAnyType : 0;
    for (const std::string& type : kind.gpu_types) bits |= TypeBit(type);
    types_.push_back(bits);
    up_to.push_back((up_to.empty() ? 0 : up_to.back()) + kind.weight);
  }
  futures_.assign(kinds_.empty() ? 0 : kFutures, {});
  uint64_t draw = 0;
  for (std::vector<KindIndex>& future : futures_) {
    for (int i = 0; i < kArrivalsPerGpu * kMaxGpus; ++i, ++draw) {
      const auto at =
          static_cast<int64_t>(static_cast<unsigned __int128>(Hash(draw)) * static_cast<uint64_t>(up_to.back()) >> 64);
      future.push_back(static_cast<KindIndex>(std::upper_bound(up_to.begin(), up_to.end(), at) - up_to.begin()));
    }
  }
}

// Types beyond the 63rd share one bit. A type that no pod asked for has no bit.
uint64_t Futures::TypeBit(const std::string& type) const {
  const auto found = type_index_.find(type);
  return found == type_index_.end() ? 0 : uint64_t{1} << std::min(found->second, 63);
}

int64_t Futures::Idle(const NodeSpec& spec, mig::Model model, const FreeRoom& free) const {
  const Filling start(spec, model, free);
  if (start.idle() == 0) return 0;
  // A pod that does not fit now will not fit later: room only shrinks.
  const uint64_t type = TypeBit(spec.gpu_type);
  std::vector<uint8_t> possible(kinds_.size());
  size_t kinds = 0;
  for (size_t k = 0; k < kinds_.size(); ++k) {
    possible[k] = (types_[k] == kAnyType || (types_[k] & type) != 0) && Filling(start).Add(kinds_[k].request);
    kinds += possible[k];
  }
  if (kinds == 0) return start.idle() * kUnit;
  const size_t length = static_cast<size_t>(kArrivalsPerGpu) * static_cast<size_t>(start.open_gpus());
  const auto soon = static_cast<size_t>((start.idle() * kArrivalsPerGpu + kMilli - 1) / kMilli);
  int64_t at_end = 0, meanwhile = 0;
  std::vector<uint8_t> fits;
  for (const std::vector<KindIndex>& future : futures_) {
    fits = possible;
    size_t left = kinds, i = 0;
    Filling node = start;
    for (; i < length && left > 0 && node.idle() > 0; ++i) {
      const KindIndex kind = future[i];
      if (fits[kind] != 0 && !node.Add(kinds_[kind].request)) {
        fits[kind] = 0;
        --left;
      }
      if (i < soon) meanwhile += node.idle();
    }
    if (i < soon) meanwhile += node.idle() * static_cast<int64_t>(soon - i);
    at_end += node.idle();
  }
  return kEndWeight * at_end + meanwhile / static_cast<int64_t>(soon);
}

}  // namespace vrun::sched::core
