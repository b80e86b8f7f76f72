// SPDX-License-Identifier: Apache-2.0
#include "home/frozen/tree_restore.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/escape.h"
#include "base/files.h"
#include "base/io/copy_content.h"
#include "home/apply/apply_files.h"
#include "home/root/file_meta.h"

namespace vrun::home {
namespace {

constexpr int kMaxDepth = 256;

class Restorer {
 public:
  using Made = std::function<void(int fd, const tree::Entry& was)>;
  Restorer(const ContentFiles& files, const Made& made) : files_(files), made_(made) {}

  Status Make(const tree::Entry& entry, const tree::DirectoryPtr& below, const std::string& path, int directory,
              const std::string& name, int depth) {
    if (depth > kMaxDepth) return Error(Code::kUnsupported, Escape(path) + ": nested too deep");
    const auto failed = [&] { return ErrnoError("make " + Escape(path) + " again"); };
    switch (entry.mode & S_IFMT) {
      case S_IFREG: VRUN_TRY(MakeFile(entry, path, directory, name)); break;
      case S_IFLNK:
        if (::symlinkat(entry.target.c_str(), directory, name.c_str()) != 0) return failed();
        break;
      case S_IFIFO:
      case S_IFSOCK:
        if (::mknodat(directory, name.c_str(), (entry.mode & S_IFMT) | 0600, 0) != 0) return failed();
        break;
      case S_IFDIR: {
        if (::mkdirat(directory, name.c_str(), 0700) != 0) return failed();
        VRUN_ASSIGN(const UniqueFd here, OpenName(directory, name));
        for (size_t i = 0; below && i < below->size(); ++i) {
          const tree::Entry child = below->At(i);
          VRUN_TRY(Make(child, below->Child(i), path + "/" + child.name, here.get(), child.name, depth + 1));
        }
        break;
      }
      default: return {};
    }
    VRUN_ASSIGN(const UniqueFd fd, OpenName(directory, name));
    std::string left_out;
    VRUN_TRY(SetFileMeta(fd.get(), MetaOf(entry), MetaFor::kFinal, &left_out));
    made_(fd.get(), entry);
    return {};
  }

 private:
  Status MakeFile(const tree::Entry& entry, const std::string& path, int directory, const std::string& name) const {
    VRUN_ASSIGN(const UniqueFd from, WithDescriptors([&] { return files_.OpenVersion(path, entry.version()); }));
    const UniqueFd to(::openat(directory, name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!to) return ErrnoError("make " + Escape(path) + " again");
    if (entry.size == 0) return {};
    if (const auto copied = CopyContent(from.get(), to.get(), entry.size); !copied) return copied.error();
    return files_.Check(from.get(), path, entry.version());
  }

  static v1::Meta MetaOf(const tree::Entry& entry) {
    v1::Meta meta;
    meta.set_mode(entry.mode);
    meta.set_uid(entry.uid);
    meta.set_gid(entry.gid);
    meta.set_mtime_ns(entry.mtime_ns);
    meta.set_atime_ns(entry.mtime_ns);
    for (const auto& [attribute, value] : entry.xattrs) {
      v1::Xattr* xattr = meta.add_xattrs();
      xattr->set_name(attribute);
      xattr->set_value(value);
    }
    return meta;
  }

  const ContentFiles& files_;
  const Made& made_;
};

}  // namespace

Status RestoreFromTree(const tree::Tree& tree, const ContentFiles& files, const std::string& path, int directory,
                       const std::string& name, const std::function<void(int fd, const tree::Entry& was)>& made) {
  VRUN_ASSIGN(const tree::Entry entry, tree::Lookup(tree, path));
  tree::DirectoryPtr below;
  if (entry.is_directory()) {
    VRUN_ASSIGN(below, tree::LookupDirectory(tree, path));
  }
  return Restorer(files, made).Make(entry, below, path, directory, name, 0);
}

}  // namespace vrun::home
