// SPDX-License-Identifier: Apache-2.0
// A server that died left an arbitrary state of a view: its successor takes the state over or refuses it, and then
// answers the kernel.
//
// Input: a byte that selects, then records of 8 bytes: kind, node id, parent, index, lookups or opens, ...
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "base/files.h"
#include "store/store.h"
#include "vfs/frozen/lazy_root.h"
#include "vfs/frozen/saved_view.h"
#include "vfs/fuse/dispatcher.h"
#include "vfs/testing/fake_kernel.h"
#include "vfs/testing/vfs_testing.h"

namespace vrun::vfs {
namespace {

struct World {
  World() {
    source.AnswerInline(true);
    TreeMaker maker;
    maker.File("/a/file", "content").File("/a/large", Noise(300'000, 2)).Symlink("/link", "a/file");
    maker.HardLink("/b/again", "/a/file").File("/c/d/e", "deep").File("/f", "");
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

void Fill(SavedView* saved, const uint8_t* data, size_t size) {
  for (; size >= 8; data += 8, size -= 8) {
    const uint64_t large = (data[0] & 4) != 0 ? UINT64_MAX / 2 : 0;
    if ((data[0] & 1) != 0) {
      saved->inodes().Add(
          {.nodeid = data[1], .parent = data[2], .lookups = data[4] + large, .index = data[3], .unused = 0});
    } else {
      saved->opens().Add({.nodeid = data[1],
                          .cached = data[2],
                          .passthrough = data[3],
                          .backing = static_cast<int8_t>(data[4]),
                          .unused = 0});
    }
    // Usage counters that are too low or too high.
    if ((data[0] & 8) != 0) saved->header().inodes_used += data[5] % 3;
    if ((data[0] & 16) != 0) saved->header().next_nodeid = data[6] + large;
  }
}

void Run(World& world, const uint8_t* data, size_t size) {
  auto saved = *SavedView::Create();
  saved->SetTree(world.tree);
  saved->header().resend = 1;
  saved->header().passthrough = data[0] & 1;
  Fill(saved.get(), data + 1, size - 1);
  // Like the next process does.
  auto opened = SavedView::Open(UniqueFd(::dup(saved->fd())));
  if (!opened || !(*opened)->Usable()) return;
  const auto kernel = std::make_shared<FakeKernel>();
  LazyRoot root(*world.backend, *kernel, world.tree, world.root, {.push = false}, opened->get());
  root.Restore();
  Dispatcher dispatcher(kernel, &root, &world.backend->timers());
  for (uint64_t nodeid = 0; nodeid < 16; ++nodeid) {
    const auto send = [&](uint32_t opcode, std::string body) {
      fuse_in_header header{};
      header.len = static_cast<uint32_t>(sizeof header + body.size());
      header.opcode = opcode;
      header.unique = 100 + nodeid;
      header.nodeid = nodeid;
      dispatcher.Handle(std::string(reinterpret_cast<const char*>(&header), sizeof header) + body);
    };
    send(FUSE_GETATTR, std::string(sizeof(fuse_getattr_in), '\0'));
    send(FUSE_LOOKUP, std::string("file\0", 5));
    send(FUSE_OPEN, std::string(sizeof(fuse_open_in), '\0'));
    send(FUSE_RELEASE, std::string(sizeof(fuse_release_in), '\0'));
    send(FUSE_FORGET, std::string("\1\0\0\0\0\0\0\0", 8));
  }
}

}  // namespace
}  // namespace vrun::vfs

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static vrun::vfs::World& world = *new vrun::vfs::World;
  if (size > 0) vrun::vfs::Run(world, data, size);
  return 0;
}
