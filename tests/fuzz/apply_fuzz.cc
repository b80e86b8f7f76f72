// SPDX-License-Identifier: Apache-2.0
// A malicious node: home must neither crash nor write outside its root.
//
// Input: WriteBack messages, each preceded by its length (one byte times 256, plus one byte).
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "base/files.h"
#include "home/apply/apply.h"

namespace {

// Two levels: a file beside `root` would be an escape. In memory where it can be: on a disk each input waits for it.
struct Place {
  std::string top;
  Place() {
    for (const char* directory : {"/dev/shm", "/var/tmp"}) {
      std::string pattern = std::string(directory) + "/vrun-apply-fuzz-XXXXXX";
      if (::mkdtemp(pattern.data()) == nullptr) continue;
      top = pattern;
      return;
    }
    std::abort();
  }
  ~Place() { (void)vrun::RemoveTree(top); }
};

void Prepare(const std::string& root, const std::string& outside) {
  (void)vrun::RemoveTree(root);
  ::mkdir(root.c_str(), 0755);
  ::mkdir((root + "/d").c_str(), 0755);
  (void)!::symlink(outside.c_str(), (root + "/link").c_str());
  auto fd = vrun::OpenFile(root + "/d/f", O_WRONLY | O_CREAT, 0644);
  if (fd) (void)vrun::WriteAll(fd->get(), "content");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Place place;
  std::string root = place.top + "/root";
  std::string outside = place.top + "/outside";
  ::mkdir(outside.c_str(), 0755);
  Prepare(root, outside);
  vrun::home::ApplyOptions options;
  options.root = root;
  options.job = 7;
  auto applier = vrun::home::Applier::Open(std::move(options));
  if (!applier) std::abort();
  uint64_t sequence = 0;
  while (size >= 2) {
    size_t length = std::min<size_t>(size - 2, static_cast<size_t>(data[0]) * 256 + data[1]);
    vrun::v1::WriteBack message;
    if (message.ParseFromArray(data + 2, static_cast<int>(length))) {
      // Without this, most random numbers would be ignored as old.
      if (message.sequence() <= sequence) message.set_sequence(sequence + 1);
      sequence = std::min<uint64_t>(message.sequence(), UINT64_MAX - 2);
      if (message.put_file().size() > (1u << 20)) message.mutable_put_file()->set_size(1u << 20);
      (void)(*applier)->Apply(message);
    }
    data += 2 + length;
    size -= 2 + length;
  }
  applier->reset();
  if (::rmdir(outside.c_str()) != 0) std::abort();  // something was written there
  return 0;
}
