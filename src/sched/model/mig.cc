// SPDX-License-Identifier: Apache-2.0
#include "sched/model/mig.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cctype>
#include <string>
#include <utility>
#include <vector>

namespace vrun::sched::core::mig {
namespace {

constexpr int kProfilesPerModel = 6;
constexpr int kModels = 8;
constexpr int kNames = 40;

// One kind of instance: slices taken, and where it may begin (bit i: at slice i).
struct Cut {
  int size;
  uint8_t starts;
};
// Models differ in names, but there are only two geometries. In the order of the names below.
struct Geometry {
  int slices;
  std::array<Cut, kProfilesPerModel> cuts;
};
constexpr Geometry kSeven = {8, {{{1, 0b01111111}, {2, 0b01010101}, {2, 0b00010101}, {4, 0b00010001}, {4, 1}, {8, 1}}}};
constexpr Geometry kFour = {4, {{{1, 0b1111}, {2, 0b0101}, {4, 1}, {0, 0}, {0, 0}, {0, 0}}}};

struct ModelRow {
  std::string_view name;
  // Strings that the driver's product name must contain.
  std::string_view chip, memory;
  const Geometry* geometry;
  std::array<std::string_view, kProfilesPerModel> profiles;
};
constexpr ModelRow kRows[kModels] = {
    {"a100-40gb", "A100", "40GB", &kSeven, {"1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"}},
    {"a100-80gb", "A100", "80GB", &kSeven, {"1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"}},
    {"h100-80gb", "H100", "80GB", &kSeven, {"1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"}},
    {"h100-94gb", "H100", "NVL", &kSeven, {"1g.12gb", "1g.24gb", "2g.24gb", "3g.47gb", "4g.47gb", "7g.94gb"}},
    {"h100-96gb", "GH200", "", &kSeven, {"1g.12gb", "1g.24gb", "2g.24gb", "3g.48gb", "4g.48gb", "7g.96gb"}},
    {"h200-141gb", "H200", "", &kSeven, {"1g.18gb", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"}},
    {"b200-180gb", "B200", "", &kSeven, {"1g.23gb", "1g.45gb", "2g.45gb", "3g.90gb", "4g.90gb", "7g.180gb"}},
    {"a30-24gb", "A30", "", &kFour, {"1g.6gb", "2g.12gb", "4g.24gb", "", "", ""}},
};

// Few sets of instances fit, so all masks are computed in advance.
struct Tables {
  std::array<std::string_view, kNames> names{};
  int count_of_names = 1;
  int8_t row[kModels][kNames]{};  // row of the profile in the model; -1: none
  int8_t count[2][kProfilesPerModel][256]{};
  int16_t potential[2][256]{};
};

constexpr int GeometryIndex(const Geometry* g) { return g == &kSeven ? 0 : 1; }

// Greedy from the last start down. Runs of one size lie on a grid, so no other order fits more.
constexpr int CountIn(const Geometry& g, const Cut& cut, unsigned used) {
  int count = 0;
  for (int s = g.slices - 1; s >= 0 && cut.size > 0; --s) {
    const unsigned run = ((1u << cut.size) - 1) << s;
    if ((cut.starts >> s & 1) == 0 || (used & run) != 0) continue;
    used |= run;
    ++count;
  }
  return count;
}

constexpr Tables MakeTables() {
  Tables t;
  for (auto& model : t.row) {
    for (int8_t& r : model) r = -1;
  }
  for (int m = 0; m < kModels; ++m) {
    for (int p = 0; p < kProfilesPerModel; ++p) {
      const std::string_view name = kRows[m].profiles[p];
      if (name.empty()) continue;
      int id = 1;
      while (id < t.count_of_names && t.names[id] != name) ++id;
      if (id == t.count_of_names) t.names[t.count_of_names++] = name;
      t.row[m][id] = static_cast<int8_t>(p);
    }
  }
  for (const Geometry* g : {&kSeven, &kFour}) {
    const int i = GeometryIndex(g);
    for (unsigned used = 0; used < 256; ++used) {
      for (int p = 0; p < kProfilesPerModel; ++p) {
        const int count = CountIn(*g, g->cuts[p], used);
        t.count[i][p][used] = static_cast<int8_t>(count);
        t.potential[i][used] = static_cast<int16_t>(t.potential[i][used] + count * g->cuts[p].size);
      }
    }
  }
  return t;
}
constexpr Tables kTables = MakeTables();

const Geometry& GeometryOf(Model model) { return *kRows[model - 1].geometry; }

const Cut* CutOf(Model model, Profile profile) {
  if (model == 0 || profile == 0) return nullptr;
  const int row = kTables.row[model - 1][profile];
  return row < 0 ? nullptr : &GeometryOf(model).cuts[row];
}

}  // namespace

Profile FindProfile(std::string_view name) {
  for (int id = 1; id < kTables.count_of_names; ++id) {
    if (kTables.names[id] == name) return static_cast<Profile>(id);
  }
  return 0;
}

std::string_view ProfileName(Profile profile) { return profile < kTables.count_of_names ? kTables.names[profile] : ""; }

Model FindModel(std::string_view name) {
  for (int m = 0; m < kModels; ++m) {
    if (kRows[m].name == name) return static_cast<Model>(m + 1);
  }
  return 0;
}

// The chip's name must be a separate word: an A30 is not an A300.
Model ModelOfProduct(std::string_view product) {
  auto has_word = [&](std::string_view word) {
    for (size_t at = product.find(word); at != product.npos; at = product.find(word, at + 1)) {
      auto alnum = [&](size_t i) { return i < product.size() && std::isalnum(static_cast<unsigned char>(product[i])); };
      if ((at == 0 || !alnum(at - 1)) && !alnum(at + word.size())) return true;
    }
    return false;
  };
  for (int m = 0; m < kModels; ++m) {
    if (has_word(kRows[m].chip) && (kRows[m].memory.empty() || product.find(kRows[m].memory) != product.npos)) {
      return static_cast<Model>(m + 1);
    }
  }
  return 0;
}

std::string_view ModelName(Model model) { return model == 0 ? "" : kRows[model - 1].name; }

int Slices(Model model) { return model == 0 ? 0 : GeometryOf(model).slices; }

int Size(Model model, Profile profile) {
  const Cut* cut = CutOf(model, profile);
  return cut == nullptr ? 0 : cut->size;
}

int NominalMemory(Profile profile) {
  const std::string_view name = ProfileName(profile);
  int gb = 0;
  for (size_t i = name.find('.') + 1; i < name.size() && name[i] >= '0' && name[i] <= '9'; ++i) {
    gb = gb * 10 + (name[i] - '0');
  }
  return gb;
}

Profile SmallestWith(Model model, int64_t gb) {
  Profile best = 0;
  for (Profile p = 1; model != 0 && p < kTables.count_of_names; ++p) {
    const int8_t row = kTables.row[model - 1][p];
    if (row < 0 || NominalMemory(p) < gb) continue;
    // The rows are in order of size, then of compute.
    if (best == 0 || row < kTables.row[model - 1][best]) best = p;
  }
  return best;
}

std::string ProfileNames(Model model) {
  std::vector<Profile> all;
  for (Profile p = 1; p < kTables.count_of_names; ++p) {
    if (model == 0 || CutOf(model, p) != nullptr) all.push_back(p);
  }
  std::stable_sort(all.begin(), all.end(), [](Profile a, Profile b) {
    const auto key = [](Profile p) { return std::pair(ProfileName(p)[0], NominalMemory(p)); };
    return key(a) < key(b);
  });
  std::string names;
  for (const Profile p : all) names += (names.empty() ? "" : ", ") + std::string(ProfileName(p));
  return names;
}

int32_t NominalMilli(Profile profile) {
  int32_t least = 0;
  for (Model m = 1; m <= kModels; ++m) {
    const int32_t milli = Size(m, profile) * 1000 / Slices(m);
    if (milli > 0 && (least == 0 || milli < least)) least = milli;
  }
  return least;
}

int Count(Model model, Profile profile, SliceMask used) {
  if (CutOf(model, profile) == nullptr) return 0;
  return kTables.count[GeometryIndex(&GeometryOf(model))][kTables.row[model - 1][profile]][used];
}

SliceMask At(Model model, Profile profile, int start, SliceMask used) {
  const Cut* cut = CutOf(model, profile);
  if (cut == nullptr || start < 0 || start >= kMostSlices || (cut->starts >> start & 1) == 0) return 0;
  const auto run = static_cast<SliceMask>(((1u << cut->size) - 1) << start);
  return (run & used) != 0 ? 0 : run;
}

int Potential(Model model, SliceMask used) {
  return model == 0 ? 0 : kTables.potential[GeometryIndex(&GeometryOf(model))][used];
}

}  // namespace vrun::sched::core::mig
