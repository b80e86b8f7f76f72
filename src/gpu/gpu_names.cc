// SPDX-License-Identifier: Apache-2.0
#include "gpu/gpu_names.h"

#include <array>
#include <cctype>
#include <vector>

namespace vrun::gpu {
namespace {

std::string Lower(std::string_view text) {
  std::string lower;
  for (const char c : text) lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

// Split at everything that is neither letter nor digit.
std::vector<std::string> Words(std::string_view text) {
  std::vector<std::string> words;
  std::string word;
  for (const char c : Lower(text) + " ") {
    if (std::isalnum(static_cast<unsigned char>(c))) {
      word += c;
    } else if (!word.empty()) {
      words.push_back(std::move(word));
      word.clear();
    }
  }
  return words;
}

// The first row whose words all occur decides. Sizes are part of a type only where one chip has several that people
// choose between.
struct Row {
  std::array<std::string_view, 3> words;
  std::string_view type, mig;
};
constexpr Row kRows[] = {
    {{"gb200"}, "gb200", ""},
    {{"gb300"}, "gb300", ""},
    {{"b300"}, "b300", ""},
    {{"b200"}, "b200", "b200-180gb"},
    {{"gh200", "144gb"}, "gh200", ""},
    {{"gh200", "144g"}, "gh200", ""},
    {{"gh200"}, "gh200", "h100-96gb"},
    {{"h200"}, "h200", "h200-141gb"},
    {{"h100", "nvl"}, "h100-nvl", "h100-94gb"},
    {{"h100", "80gb"}, "h100", "h100-80gb"},
    {{"h100"}, "h100", "h100-80gb"},  // "NVIDIA H100 PCIe"
    {{"h800"}, "h800", ""},
    {{"h20"}, "h20", ""},
    {{"a100", "80gb"}, "a100-80", "a100-80gb"},
    {{"a100"}, "a100", "a100-40gb"},
    {{"a800", "80gb"}, "a800", ""},
    {{"a30"}, "a30", "a30-24gb"},
    {{"v100", "32gb"}, "v100-32", ""},
    {{"v100"}, "v100", ""},
    {{"rtx", "6000", "ada"}, "rtx6000-ada", ""},
    {{"l40s"}, "l40s", ""},
    {{"l40"}, "l40", ""},
    {{"l4"}, "l4", ""},
    {{"a10g"}, "a10g", ""},
    {{"a10"}, "a10", ""},
    {{"a16"}, "a16", ""},
    {{"a2"}, "a2", ""},
    {{"a40"}, "a40", ""},
    {{"t4"}, "t4", ""},
    {{"p100"}, "p100", ""},
    {{"p40"}, "p40", ""},
    {{"mi355x"}, "mi355x", ""},
    {{"mi325x"}, "mi325x", ""},
    {{"mi300x"}, "mi300x", ""},
    {{"mi300a"}, "mi300a", ""},
    {{"mi250x"}, "mi250x", ""},
    {{"mi250"}, "mi250", ""},
    {{"mi210"}, "mi210", ""},
};

const Row* Find(const std::vector<std::string>& words) {
  for (const Row& row : kRows) {
    bool all = true;
    for (const std::string_view wanted : row.words) {
      bool has = wanted.empty();
      for (const std::string& word : words) has = has || word == wanted;
      all = all && has;
    }
    if (all) return &row;
  }
  return nullptr;
}

}  // namespace

std::string GpuType(std::string_view product) {
  const std::vector<std::string> words = Words(product);
  if (const Row* row = Find(words)) return std::string(row->type);
  constexpr size_t kLongest = 40;
  std::string type;
  for (const std::string& word : words) {
    if (word == "nvidia" || word == "amd" || word == "tesla" || word == "geforce" || word == "instinct") continue;
    if (type.size() + 1 + word.size() > kLongest) break;
    type += (type.empty() ? "" : "-") + word;
  }
  return type.empty() ? "gpu" : type;
}

std::string MigModel(std::string_view product) {
  const Row* row = Find(Words(product));
  return row == nullptr ? "" : std::string(row->mig);
}

std::string MigProfileName(uint32_t slices, uint32_t memory_mib, uint64_t gpu_memory_bytes, bool media) {
  const uint64_t card_mib = gpu_memory_bytes >> 20;
  if (card_mib == 0) return "";
  const uint64_t eighths = (memory_mib * 8ull + card_mib - 1) / card_mib;
  const uint64_t card_gib = (card_mib + 1023) / 1024;
  const uint64_t gib = (eighths * card_gib + 4) / 8;  // rounded
  return std::to_string(slices) + "g." + std::to_string(gib) + "gb" + (media ? "+me" : "");
}

}  // namespace vrun::gpu
