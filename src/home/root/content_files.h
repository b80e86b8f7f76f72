// SPDX-License-Identifier: Apache-2.0
// The files behind the trees that a ContentServer serves: by path and version.
#pragma once

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <string_view>
#include <thread>

#include "base/clock.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "tree/tree.h"

namespace vrun::home {

// Any thread.
class ContentFiles {
 public:
  virtual ~ContentFiles() = default;

  // Opens the regular file at `path` (absolute, in the root) for reading bytes [offset, offset+length) of this version,
  // cut at its end. Other ranges may not be local yet and read as zeros. May wait for another machine. kAborted: the
  // content no longer exists; kDenied: it may not be read.
  virtual Result<UniqueFd> OpenPart(std::string_view path, const tree::FileVersion& version, uint64_t offset,
                                    uint64_t length) const = 0;
  // The whole file.
  Result<UniqueFd> OpenVersion(std::string_view path, const tree::FileVersion& version) const {
    return OpenPart(path, version, 0, version.size);
  }
  // For guesses and holes: the whole file, without waiting and unverified. kUnavailable: the content is on another
  // machine.
  virtual Result<UniqueFd> OpenAtHand(std::string_view path, const tree::FileVersion& version) const {
    return OpenVersion(path, version);
  }

  // kAborted unless the open file is (still) that version. What is read between two successful checks belongs to that
  // version.
  virtual Status Check(int fd, std::string_view path, const tree::FileVersion& version) const = 0;
};

// Calls `open`, again for up to 20 s while this process or the host is out of descriptors: descriptors are released all
// the time, and a job's read should not fail for that.
template <typename Open>
Result<UniqueFd> WithDescriptors(Open open) {
  constexpr int64_t kPatienceMicros = 20'000'000;
  constexpr std::chrono::milliseconds kLongest{100};
  const int64_t deadline = MonotonicMicros() + kPatienceMicros;
  for (std::chrono::milliseconds pause{1};; pause = std::min(2 * pause, kLongest)) {
    Result<UniqueFd> fd = open();
    const int error = fd ? 0 : fd.error().error_number();
    if ((error != EMFILE && error != ENFILE) || MonotonicMicros() > deadline) return fd;
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace vrun::home
