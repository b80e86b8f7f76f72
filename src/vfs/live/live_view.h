// SPDX-License-Identifier: Apache-2.0
// A live view: one tree of home's, mounted read-write, with what is changed kept on this node. decisions/0013.
//
//   auto view = LiveView::Mount(backend, tree_digest, {.directory = "…/views/1", .written = "…/written/1"});
//   UniqueFd mount = *(*view)->CloneMount();
//
// With `journal` what is written goes home (live_stream.h, which whoever has a connection to home drains), and survives
// this process: TakeOver. Without, changes go nowhere but here and end with the view.
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
#include "vfs/frozen/view.h"
#include "vfs/live/data/live_stream.h"

namespace vrun::vfs {

struct LiveViewOptions {
  // An existing directory of this process's (private) mount namespace, on which the view is mounted.
  std::string directory;
  // An existing, empty directory for content that is written; not on a stacked file system, or nothing is passed
  // through. What is in it goes with the view.
  std::string written;
  // A file for the journal (live_journal.h), which is made; "": none. With it, nothing is passed through: what is
  // published is kept from later writes, so all of them have to be seen.
  std::string journal;
  LiveStreamOptions stream;
  std::function<void()> on_ready;  // LiveStream::SetReady, before anything can be added
  // A file that somebody keeps open and appends to is published after so much, whether it is closed or not.
  uint64_t publish_bytes = 64u << 20;
  int64_t publish_micros = 1'000'000;
  std::string fuse_device = "/dev/fuse";
  IdMap ids;  // as ViewOptions::ids
  // Files written here are read and written by the kernel itself, where it can (Linux 6.9).
  bool passthrough = true;
  // With a journal: files are opened and closed without a request, where the kernel tells what was closed
  // (vfs/live/kernel/close_watch.h).
  bool no_open = true;
  // What a trace says will be read is pushed into the kernel when it comes (live_push.h). Needs no_open.
  bool push = true;
  bool list_attributes = true;   // listings give attributes (READDIRPLUS)
  unsigned threads = 2;          // readers of the device
  uint32_t read_ahead_kb = 128;  // of the mount; 0 leaves the kernel's 128
  // As ViewOptions::on_content_lost.
  std::function<void(const std::string& path, const std::string& reason)> on_content_lost;
  // In doubt (Doubt) somebody wants to know what home has: have it say so. Any thread; must not block.
  std::function<void()> on_doubt;
  // Of a test: an older kernel, which does not offer these flags of INIT, or does not make files without a name.
  uint64_t hidden_flags = 0;
  bool nameless_files = true;
};

struct LiveViewStats {
  std::array<uint64_t, 64> requests{};  // by FUSE opcode
  uint64_t malformed = 0;               // packets refused
  uint64_t passthrough_opens = 0;
  uint64_t inodes = 0;  // in memory: known to the kernel, or changed
  uint64_t pushed = 0;  // parts of files
  bool passthrough = false;
  bool no_open = false;
};

// Thread safety: any thread, but Mount and destruction one at a time.
class LiveView {
 public:
  // As View::Mount.
  static Result<std::unique_ptr<LiveView>> Mount(std::shared_ptr<Backend> backend, const Digest& tree,
                                                 LiveViewOptions options);
  // As View::TakeOver, with the options of the one before: its journal and what it had written. What the jobs have open
  // stays open.
  static Result<std::unique_ptr<LiveView>> TakeOver(std::shared_ptr<Backend> backend, ViewHandle handle,
                                                    LiveViewOptions options);
  // As ~View. Journal and content stay where they are (without a journal: content goes).
  virtual ~LiveView() = default;
  virtual Result<UniqueFd> CloneMount() const = 0;
  // Shows `tree`, a later state of home, from now on: once this has returned, no lookup and no open sees an older one,
  // but for what was changed here and is not in that tree, that is after number `included` (of a change; with a
  // journal, of an operation of the stream), and what is open for writing. Users notice nothing else; what they have
  // open or mapped keeps its bytes. Blocks for the changed directories (not on a thread that the source's callbacks
  // need). After an error it shows the old tree as before, or all of the new one with parts of the old in the kernel:
  // call it again.
  virtual Status Advance(const Digest& tree, uint64_t included) = 0;
  // Home is silent: what is shown may not be what home has, until Doubt(false), after the Advance to what home said
  // then. In doubt the kernel asks for each name and its attributes, and such a request waits a moment for home
  // (live_doubt.h). Blocks while the kernel is told; on one thread with Advance.
  virtual void Doubt(bool doubt) = 0;
  virtual Digest tree() const = 0;
  // Number of the last change that was made here.
  virtual uint64_t changes() const = 0;
  // Home has put what this node is into place, as this inode: recognised when a tree has it.
  virtual void Acknowledge(uint64_t nodeid, const tree::FileVersion& version) = 0;
  // As View::Handle; needs a journal. The state says only how the mount is served; everything else is in the journal.
  virtual Result<ViewHandle> Handle() const = 0;
  // Null without a journal. As long as the view.
  virtual LiveStream* stream() = 0;
  // Everything that was written is published, also what is open; returned: the number of the last operation. When home
  // has it (LiveStream::WhenAcknowledged), it has all. May wait for home.
  virtual uint64_t PublishAll() = 0;
  // What was closed before is published; by itself that happens a moment after close(2), where it returned without us.
  // Not on a thread that the source's callbacks need.
  virtual void SeeCloses() = 0;
  // Content that was written here and that home has by now, and shows in the tree of now, leaves the disk until no more
  // than `keep_bytes` of it are left: the oldest first. It is home's from then on. Returned: bytes that went.
  virtual uint64_t DropWritten(uint64_t keep_bytes) = 0;
  virtual LiveViewStats stats() const = 0;
};

}  // namespace vrun::vfs
