// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/escape.h"
#include "home/serve/requests/requests.h"

namespace vrun::home {
namespace {

constexpr int kMaxExtents = 65536;  // per file, as the node accepts them

// Finds where the file has data, in at most kMaxExtents pieces; the remainder then counts as one piece.
Status ReadExtents(int fd, uint64_t size, v1::Extents* extents) {
  for (uint64_t at = 0; at < size;) {
    const off_t data = ::lseek(fd, static_cast<off_t>(at), SEEK_DATA);
    if (data < 0 && errno == ENXIO) break;
    if (data < 0) return ErrnoError("look for holes");
    const off_t hole = ::lseek(fd, data, SEEK_HOLE);
    if (hole < 0) return ErrnoError("look for holes");
    const bool most = extents->extent_size() == 2 * (kMaxExtents - 1);
    at = most ? size : std::min(size, static_cast<uint64_t>(hole));
    if (static_cast<uint64_t>(data) >= at) break;
    extents->add_extent(static_cast<uint64_t>(data));
    extents->add_extent(at);
  }
  return {};
}

// Old content may move from the file to a copy while it is read.
template <typename Read>
Result<v1::ContentReply> Twice(Read read) {
  Result<v1::ContentReply> reply = read();
  return !reply && reply.error().code() == Code::kAborted ? read() : std::move(reply);
}

}  // namespace

bool GetRange::Step() {
  const auto& get = request_.get_range();
  const tree::FileVersion version = Version(get.version());
  const uint64_t unit = store::UnitBytes(version.size);
  const uint64_t end =
      get.length() > version.size - std::min(version.size, get.offset()) ? version.size : get.offset() + get.length();
  const bool nothing = get.offset() == 0 && end == 0;  // an empty file, or a request that only holds the file
  if (get.offset() % unit != 0 || (get.offset() >= end && !nothing) || end - get.offset() > kMaxBytes ||
      (end % unit != 0 && end != version.size)) {
    return Fail(Error(Code::kInvalid, "malformed range of " + Escape(get.path())));
  }
  ServedFiles& files = reader_->files();
  if (done_ == 0) {
    const Status served = files.CheckOrLent(get.tree(), get.path(), version);
    if (!served) return Fail(served.error());
  }
  uint64_t length = 0;
  auto reply = Twice([&] { return reader_->Read(get, get.offset() + done_, end, &length); });
  if (!reply) {
    if (reply.error().code() == Code::kAborted) files.Stale(get.path());
    return Fail(reply.error());
  }
  done_ += length;
  return Send(&*reply, get.offset() + done_ >= end);
}

Result<v1::ContentReply> GetExtents(const ServedFiles& files, const v1::ContentRequest::GetExtents& get) {
  const tree::FileVersion version = Version(get.version());
  VRUN_TRY(files.CheckOrLent(get.tree(), get.path(), version));
  return Twice([&]() -> Result<v1::ContentReply> {
    v1::ContentReply reply;
    // Do not fetch content for this: treat it all as data.
    if (files.Elsewhere(get.path(), version)) {
      reply.mutable_extents()->add_extent(0);
      reply.mutable_extents()->add_extent(version.size);
      return reply;
    }
    VRUN_ASSIGN(const ServedFiles::Open open, files.OpenPart(get.path(), version, 0, version.size));
    VRUN_TRY(ReadExtents(open.fd.get(), version.size, reply.mutable_extents()));
    VRUN_TRY(files.StillIs(open, get.path(), version));
    return reply;
  });
}

}  // namespace vrun::home
