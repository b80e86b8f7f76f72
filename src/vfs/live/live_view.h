// SPDX-License-Identifier: Apache-2.0
// A live view: one tree of home, mounted read-write, with changes stored on this node. decisions/0013.
//
//   auto view = LiveView::Mount(backend, tree_digest, {.directory = "…/views/1", .written = "…/written/1"});
//   UniqueFd mount = *(*view)->CloneMount();
//
// With `journal` the changes go home (through live_stream.h, which the owner of the connection to home drains), and
// survive this process: TakeOver. Without it, changes exist only here and end with the view.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/hash/digest.h"
#include "base/id_map.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "vfs/content/backend.h"
#include "vfs/frozen/frozen_view.h"
#include "vfs/live/data/live_stream.h"

namespace vrun::vfs {

struct LiveViewOptions {
  // An existing directory of this process's (private) mount namespace, on which the view is mounted.
  std::string directory;
  // An existing, empty directory for written content. On a stacked file system there is no passthrough. Its contents
  // are deleted with the view.
  std::string written;
  // Path of the journal to create (live_journal.h); "": none. With a journal there is no passthrough: published content
  // is protected from later writes, so the server must see every write.
  std::string journal;
  LiveStreamOptions stream;
  std::function<void()> on_ready;  // LiveStream::SetReady, before anything can be added
  // Publish after so many appended bytes, even if the file stays open.
  uint64_t publish_bytes = 64u << 20;
  int64_t publish_micros = 1'000'000;
  std::string fuse_device = "/dev/fuse";
  IdMap ids;  // as ViewOptions::ids
  // The kernel reads and writes files written here directly, where it can (Linux 6.9).
  bool passthrough = true;
  // With a journal: files are opened and closed without a request, if the kernel reports closed files
  // (vfs/live/kernel/close_watch.h).
  bool no_open = true;
  // Pushes content that a trace lists into the kernel when it arrives (live_push.h). Needs no_open.
  bool push = true;
  bool list_attributes = true;   // listings give attributes (READDIRPLUS)
  unsigned threads = 2;          // threads that read the device
  uint32_t read_ahead_kb = 128;  // of the mount; 0 leaves the kernel's 128
  // As ViewOptions::on_content_lost.
  std::function<void(const std::string& path, const std::string& reason)> on_content_lost;
  // In doubt (Doubt), a request needs to know what home has: asks home to say so. Any thread; must not block.
  std::function<void()> on_doubt;
  // For tests: simulates an older kernel, which does not offer these INIT flags or cannot create files without a name.
  uint64_t hidden_flags = 0;
  bool nameless_files = true;
};

struct LiveViewStats {
  std::array<uint64_t, 64> requests{};  // by FUSE opcode
  uint64_t malformed = 0;               // refused packets
  uint64_t passthrough_opens = 0;
  uint64_t inodes = 0;  // in memory: known to the kernel, or changed
  uint64_t pushed = 0;  // parts of files pushed
  bool passthrough = false;
  bool no_open = false;
};

// Thread safety: any thread, except that Mount and destruction must not overlap.
class LiveView {
 public:
  // As FrozenView::Mount.
  static Result<std::unique_ptr<LiveView>> Mount(std::shared_ptr<Backend> backend, const Digest& tree,
                                                 LiveViewOptions options);
  // As FrozenView::TakeOver, with the options, journal and written content of the previous server. Files that jobs have
  // open stay open.
  static Result<std::unique_ptr<LiveView>> TakeOver(std::shared_ptr<Backend> backend, ViewHandle handle,
                                                    LiveViewOptions options);
  // As ~View. Journal and content stay in place (without a journal: the content is deleted).
  virtual ~LiveView() = default;
  virtual Result<UniqueFd> CloneMount() const = 0;
  // Shows `tree`, a later state of home. Once this has returned, no lookup and no open sees an older state. Exceptions:
  // changes made here that the tree does not contain (those after number `included`: the number of a change, or with a
  // journal of an operation of the stream), and files open for writing. Users notice nothing else; open or mapped files
  // keep their bytes. Blocks for the changed directories (not on a thread that the source's callbacks need). After an
  // error the view shows the old tree as before, or the new one with parts of the old still in the kernel: call it
  // again.
  virtual Status Advance(const Digest& tree, uint64_t included) = 0;
  // Home is silent: the view may be out of date until Doubt(false), which follows the Advance to home's next tree. In
  // doubt the kernel asks for each name and its attributes, and such a request waits a moment for home (live_doubt.h).
  // Blocks while the kernel is notified; call on the same thread as Advance.
  virtual void Doubt(bool doubt) = 0;
  virtual Digest tree() const = 0;
  // Number of the last change made here.
  virtual uint64_t changes() const = 0;
  // Home has applied this node's content as this inode, so that a tree that contains it is recognised.
  virtual void Acknowledge(uint64_t nodeid, const tree::FileVersion& version) = 0;
  // As View::Handle; needs a journal. The handle's state covers only the mount; everything else is in the journal.
  virtual Result<ViewHandle> Handle() const = 0;
  // Null without a journal. Lives as long as the view.
  virtual LiveStream* stream() = 0;
  // Publishes everything written, also in open files, and returns the number of the last operation. Once home has
  // acknowledged it (LiveStream::WhenAcknowledged), home has everything. May wait for home.
  virtual uint64_t PublishAll() = 0;
  // Publishes all files closed before this call. Without it that happens a moment after close(2), if close(2) returned
  // without a request to us. Not on a thread that the source's callbacks need.
  virtual void SeeCloses() = 0;
  // Deletes written content that home has and shows in the current tree, oldest first, until at most `rest_bytes` are
  // left. From then on it is read from home. Returns the number of bytes deleted.
  virtual uint64_t DropWritten(uint64_t rest_bytes) = 0;
  virtual LiveViewStats stats() const = 0;
};

}  // namespace vrun::vfs
