// SPDX-License-Identifier: Apache-2.0
#include "home/serve/requests/requests.h"

namespace vrun::home {

Result<v1::ContentReply> GetTrace(Traces& traces, const v1::ContentRequest::GetTrace& get) {
  v1::ContentReply reply;
  VRUN_ASSIGN(*reply.mutable_trace(), traces.Table(get));
  return reply;
}

Result<v1::ContentReply> PutTrace(Traces& traces, const v1::ContentRequest::PutTrace& put) {
  VRUN_TRY(traces.Put(put));
  return v1::ContentReply();
}

bool GetFrames::Step() {
  const auto& get = request_.get_frames();
  Digest name;
  auto frame = traces_->Frame(get, done_, &name);
  if (!frame) return Fail(frame.error());
  if (get.sign()) frame->set_signature(signer_->Frame(name, frame->digests()));
  v1::ContentReply reply;
  *reply.mutable_frame() = *std::move(frame);
  return Send(&reply, ++done_ == get.frame_size());
}

}  // namespace vrun::home
