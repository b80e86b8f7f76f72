// SPDX-License-Identifier: Apache-2.0
#include "home/streams/extra_stream.h"

#include <fcntl.h>

#include <utility>

namespace vrun::home {
namespace {

UniqueFd Null() { return UniqueFd(::open("/dev/null", O_RDWR | O_CLOEXEC)); }

}  // namespace

ExtraStream::ExtraStream(EventLoop* loop, Owner* owner, const v1::Descriptor& descriptor, UniqueFd fd,
                         StreamProgressMap progress)
    : owner_(owner),
      descriptor_(descriptor),
      pump_(loop, this, descriptor.output() ? Null() : std::move(fd), descriptor.output() ? std::move(fd) : Null(),
            Null(), std::move(progress)) {}

void ExtraStream::InputWanted(uint64_t offset) {
  if (descriptor_.output()) return;
  Status started = pump_.StartInput(offset);
  if (started) return;
  owner_->OnExtraBroken(Name() + ": " + started.error().message());
  owner_->SendInput(stream(), offset, {}, true);
}

void ExtraStream::Output(uint64_t offset, std::string data, bool eof) {
  if (!descriptor_.output()) return;
  const uint64_t have = wanted();
  if (offset > have) {
    owner_->OnExtraBroken(Name() + ": " + std::to_string(offset - have) + " bytes were lost");
    pump_.SkipTo(v1::STDOUT, offset);
  }
  (void)pump_.Write(v1::STDOUT, offset, std::move(data), eof);
}

void ExtraStream::OnInput(uint64_t offset, std::string_view data, bool eof, bool) {
  owner_->SendInput(stream(), offset, data, eof);
}

void ExtraStream::OnOutputWritten(v1::StreamId, uint64_t offset) {
  owner_->Acknowledge(stream(), offset);
  owner_->OnExtraWritten();
}

void ExtraStream::OnOutputEnded(v1::StreamId) { owner_->OutputProgressed(); }

void ExtraStream::OnOutputBroken(v1::StreamId, const Error& reason) {
  owner_->CloseOutput(stream());
  if (reason.error_number() == EPIPE || reason.error_number() == EIO || reason.error_number() == ECONNRESET) return;
  owner_->OnExtraBroken(Name() + ": " + reason.message() + ": the rest of it is lost");
}

}  // namespace vrun::home
