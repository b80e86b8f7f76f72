// SPDX-License-Identifier: Apache-2.0
// Anything that a kernel (or an imitation of one) sends on /dev/fuse: the dispatcher and the lazy root answer or refuse
// it.
//
// Input: packets, each preceded by its length (u16, little-endian). The first byte of the input selects the options.
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/files.h"
#include "store/store.h"
#include "vfs/frozen/lazy_root.h"
#include "vfs/fuse/dispatcher.h"
#include "vfs/testing/fake_kernel.h"
#include "vfs/testing/vfs_testing.h"

namespace vrun::vfs {
namespace {

// Shared by all inputs; only the view is created anew.
struct World {
  World() {
    source.AnswerInline(true);
    TreeMaker maker;
    maker.File("/a/file", Noise(100'000, 1)).File("/a/large", Noise(1'500'000, 2)).Symlink("/link", "a/file");
    maker.HardLink("/b/again", "/a/file").File("/c/" + std::string(255, 'n'), "long name");
    maker.At("/link").xattrs = {{"user.x", "value"}};
    tree = source.Add(maker);
    store = *store::Store::Open({.directory = directory.path() + "/store", .min_free_bytes = 0});
    backend = Backend::Create({.home_id = "home"}, &source, store.get());
    root = *FetchRootEntry(*backend, tree);
  }
  TestDirectory directory;
  std::unique_ptr<store::Store> store;
  FakeSource source;
  std::shared_ptr<Backend> backend;
  Digest tree;
  tree::Entry root;
};

void Run(World& world, std::string_view input) {
  const uint8_t options = static_cast<uint8_t>(input[0]);
  input.remove_prefix(1);
  const auto kernel = std::make_shared<FakeKernel>();
  LazyRoot root(
      *world.backend, *kernel, world.tree, world.root,
      {.ids = (options & 1) != 0 ? 100000u : 0u, .passthrough = (options & 2) != 0, .xattrs = (options & 4) != 0});
  Dispatcher dispatcher(kernel, &root, &world.backend->timers());
  while (input.size() > 2) {
    uint16_t size;
    std::memcpy(&size, input.data(), sizeof size);
    input.remove_prefix(sizeof size);
    std::string packet(input.substr(0, size));
    input.remove_prefix(packet.size());
    if (packet.size() >= sizeof(fuse_in_header) && (options & 8) != 0) {  // to pass the first check
      const uint32_t length = static_cast<uint32_t>(packet.size());
      std::memcpy(packet.data(), &length, sizeof length);
    }
    dispatcher.Handle(packet);
  }
}

}  // namespace
}  // namespace vrun::vfs

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static vrun::vfs::World& world = *new vrun::vfs::World;
  if (size > 0) vrun::vfs::Run(world, {reinterpret_cast<const char*>(data), size});
  return 0;
}
