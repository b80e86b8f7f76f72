// SPDX-License-Identifier: Apache-2.0
#include "node/home_stream.h"

namespace vrun::node {

void HomeStream::Fail(const Error& error) {
  v1::TaskDown down;
  down.mutable_error()->set_code(static_cast<int>(error.code()));
  down.mutable_error()->set_message(error.message());
  Send(down);
  Close();
}

void HomeStream::Close() {
  if (open_) stream_->Finish();
}

void HomeStream::OnMessage(std::string message) {
  loop_->Post([self = shared_from_this(), message = std::move(message)]() mutable {
    // A copy, because the callback may replace itself.
    if (auto callback = self->events_.on_frame) callback(std::move(message));
  });
}

void HomeStream::OnClosed(Error) {
  loop_->Post([self = shared_from_this()] {
    self->open_ = false;
    if (auto callback = self->events_.on_closed) callback();
  });
}

}  // namespace vrun::node
