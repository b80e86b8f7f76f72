// SPDX-License-Identifier: Apache-2.0
// An arbitrary journal of a live view: it is read or refused, and what is read makes a tree or is refused.
//
// Input: a journal. The same bytes are also tried as the body of one frame with a correct checksum.
#include <cstdint>
#include <string_view>

#include "vfs/live/data/live_codec.h"
#include "vfs/live/data/live_file.h"
#include "vfs/live/data/live_journal.h"
#include "vfs/live/tree/live_tree.h"

namespace vrun::vfs {
namespace {

void MakeTree(LiveState* state) {
  LiveTree tree({}, 0);
  if (!tree.Restore(state, {})) return;
  tree.ForEach([](const LiveNode& node) {
    for (const LiveName& name : node.names) {
      if (!name.parent->directory->entries.contains(name.name)) __builtin_trap();
    }
  });
}

}  // namespace
}  // namespace vrun::vfs

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace vrun::vfs;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  size_t good = 0;
  if (auto state = LiveJournal::Parse(bytes, &good)) {
    if (good > size) __builtin_trap();
    MakeTree(&*state);
  }
  LiveState state;
  if (ApplyFrame(bytes, &state)) MakeTree(&state);
  return 0;
}
