// SPDX-License-Identifier: Apache-2.0
// Times: which operation changes which, and setting them.
#include <linux/fs.h>
#include <sys/mman.h>
#include <sys/xattr.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <string>

#include "suite.h"

namespace vrun::suites {
namespace {

constexpr timespec kOld{1'000'000'000, 123'456'789};

// "what=mc": which of mtime and ctime of `path` the work moved forward. atime depends on the kernel and the mount.
void Moves(Line& l, const char* what, const char* path, const std::function<void()>& work) {
  const auto before = Look(path);
  Tick();
  work();
  const auto after = Look(path);
  std::string moved;
  if (Compare(after.st_mtim, before.st_mtim) > 0) moved += "m";
  if (Compare(after.st_ctim, before.st_ctim) > 0) moved += "c";
  if (Compare(after.st_mtim, before.st_mtim) < 0 || Compare(after.st_ctim, before.st_ctim) < 0) moved += "-back";
  l.Text(what, moved);
}

void Show(Line& l, const char* path) {
  const auto st = Look(path);
  l.Number("atime", st.st_atim.tv_sec)
      .Number("ns", st.st_atim.tv_nsec)
      .Number("mtime", st.st_mtim.tv_sec)
      .Number("ns", st.st_mtim.tv_nsec);
}

int Times(const char* path, timespec atime, timespec mtime, int flags = 0) {
  const timespec both[] = {atime, mtime};
  return utimensat(AT_FDCWD, path, both, flags);
}

constexpr Case kCases[] = {
    {"times-of-file",
     [](Line& l) {
       Make("f", Pattern(10'000));
       Moves(l, "write", "f", [] { write(Fd("f", O_WRONLY), "x", 1); });
       Moves(l, "write-nothing", "f", [] { write(Fd("f", O_WRONLY), "", 0); });
       Moves(l, "open", "f", [] { Fd("f", O_RDWR); });
       Moves(l, "read", "f", [] { Content("f"); });
       Moves(l, "truncate", "f", [] { truncate("f", 5'000); });
       Moves(l, "truncate-same", "f", [] { truncate("f", 5'000); });
       Moves(l, "ftruncate-same", "f", [] { ftruncate(Fd("f", O_WRONLY), 5'000); });
       Moves(l, "open-trunc", "f", [] { Fd("f", O_WRONLY | O_TRUNC); });
       Moves(l, "open-trunc-empty", "f", [] { Fd("f", O_WRONLY | O_TRUNC); });
       Moves(l, "fallocate", "f", [] { fallocate(Fd("f", O_WRONLY), 0, 0, 10'000); });
     }},
    {"times-of-attributes",
     [](Line& l) {
       Make("f", "text");
       Moves(l, "chmod", "f", [] { chmod("f", 0600); });
       Moves(l, "chmod-same", "f", [] { chmod("f", 0600); });
       Moves(l, "chown", "f", [] { chown("f", 1, 1); });
       Moves(l, "chown-nothing", "f", [] { chown("f", static_cast<uid_t>(-1), static_cast<gid_t>(-1)); });
       Moves(l, "xattr", "f", [] { setxattr("f", "user.a", "x", 1, 0); });
       Moves(l, "xattr-gone", "f", [] { removexattr("f", "user.a"); });
       Moves(l, "link", "f", [] { link("f", "g"); });
       Moves(l, "unlink", "f", [] { unlink("g"); });
       Moves(l, "rename", "f", [] { rename("f", "h"), rename("h", "f"); });
       Moves(l, "utimens", "f", [] { Times("f", kOld, kOld); });
     }},
    {"times-of-directory",
     [](Line& l) {
       mkdir("d", 0755);
       mkdir("e", 0755);
       Moves(l, "creat", "d", [] { Make("d/f"); });
       Moves(l, "write", "d", [] { write(Fd("d/f", O_WRONLY), "x", 1); });
       Moves(l, "mkdir", "d", [] { mkdir("d/sub", 0755); });
       Moves(l, "below", "d", [] { Make("d/sub/x"); });
       Moves(l, "link", "d", [] { link("d/f", "d/g"); });
       Moves(l, "rename", "d", [] { rename("d/g", "d/h"); });
       Moves(l, "out", "d", [] { rename("d/h", "e/h"); });
       Moves(l, "target", "e", [] { rename("d/f", "e/f"); });
       Moves(l, "symlink", "d", [] { symlink("x", "d/s"); });
       Moves(l, "unlink", "d", [] { unlink("d/s"); });
       Moves(l, "rmdir", "e", [] { mkdir("e/x", 0755), rmdir("e/x"); });
       Moves(l, "chmod", "d", [] { chmod("d", 0700); });
       Moves(l, "list", "d", [] { Names("d"); });
       Moves(l, "failed", "d", [] { mkdir("d/sub", 0755), unlink("d/none"); });
       Moves(l, "moved", "d", [] { rename("d", "D"), rename("D", "d"); });
     }},
    {"times-of-replaced-and-linked",
     [](Line& l) {
       Make("f", "f");
       Make("g", "g");
       link("g", "other");
       Moves(l, "replaced", "other", [] { rename("f", "g"); });
       Make("h", "h");
       const auto one = Look("g"), two = Look("h");
       Tick();
       renameat2(AT_FDCWD, "g", AT_FDCWD, "h", RENAME_EXCHANGE);
       l.Number("one", Compare(Look("h").st_ctim, one.st_ctim)).Number("two", Compare(Look("g").st_ctim, two.st_ctim));
       l.Number("mtime", Compare(Look("h").st_mtim, one.st_mtim))
           .Number("mtime", Compare(Look("g").st_mtim, two.st_mtim));
     }},
    {"times-of-mapping",
     [](Line& l) {
       Make("f", Pattern(8192));
       const Fd fd("f", O_RDWR);
       char* p = static_cast<char*>(mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
       Moves(l, "msync", "f", [p] { p[0] = 'x', msync(p, 8192, MS_SYNC); });
     }},
    {"times-of-copies",
     [](Line& l) {
       Make("f", Pattern(50'000));
       Make("g", Pattern(50'000));
       const Fd from("f", O_RDONLY);
       const Fd to("g", O_WRONLY);
       Moves(l, "source", "f", [&] { copy_file_range(from, nullptr, to, nullptr, 1000, 0); });
       Moves(l, "target", "g", [&] { copy_file_range(from, nullptr, to, nullptr, 1000, 0); });
     }},
    {"times-new-file-is-of-now",
     [](Line& l) {
       Make("a");
       Tick();
       Make("b");
       mkdir("c", 0755);
       symlink("x", "s");
       l.Number("file", Compare(Look("a").st_mtim, Look("b").st_mtim))
           .Number("dir", Compare(Look("b").st_mtim, Look("c").st_mtim) <= 0);
       l.Number("link", Compare(Look("a").st_mtim, Look("s").st_mtim));
     }},
    {"utimens-nanoseconds",
     [](Line& l) {
       Make("f", "text");
       l.Call("set", Times("f", {1'100'000'000, 1}, {1'200'000'000, 999'999'999}));
       Show(l, "f");
       const Fd fd("f", O_RDONLY);
       const timespec both[] = {{5, 6}, {7, 8}};
       l.Call("fd", futimens(fd, both));
       Show(l, "f");
     }},
    {"utimens-omit",
     [](Line& l) {
       Make("f", "text");
       Times("f", kOld, kOld);
       l.Call("atime", Times("f", {2'000, 2}, {0, UTIME_OMIT}));
       Show(l, "f");
       l.Call("mtime", Times("f", {0, UTIME_OMIT}, {3'000, 3}));
       Show(l, "f");
       Moves(l, "neither", "f", [] { Times("f", {0, UTIME_OMIT}, {0, UTIME_OMIT}); });
     }},
    {"utimens-now",
     [](Line& l) {
       Make("f", "text");
       Times("f", kOld, kOld);
       Moves(l, "now", "f", [&] { l.Call("set", Times("f", {0, UTIME_NOW}, {0, UTIME_NOW})); });
       Moves(l, "null", "f", [&] { l.Call("set", utimensat(AT_FDCWD, "f", nullptr, 0)); });
       l.Call("one", Times("f", kOld, {0, UTIME_NOW})).Number("atime", Look("f").st_atim.tv_sec);
     }},
    {"utimens-range",
     [](Line& l) {
       Make("f", "text");
       l.Call("negative", Times("f", {-100, 5}, {-200, 6}));
       Show(l, "f");
       l.Call("far", Times("f", {10'000'000'000, 5}, {10'000'000'000, 6}));
       Show(l, "f");
       l.Call("bad", Times("f", {0, 1'000'000'000}, {0, 0})).Call("bad", Times("f", {0, -1}, {0, 0}));
       Times("f", kOld, kOld);
     }},
    {"utimens-kinds",
     [](Line& l) {
       mkdir("d", 0755);
       symlink("f", "s");
       mkfifo("p", 0644);
       l.Call("directory", Times("d", kOld, kOld))
           .Call("link", Times("s", kOld, kOld, AT_SYMLINK_NOFOLLOW))
           .Call("fifo", Times("p", kOld, kOld));
       Show(l, "d");
       // Not its atime: reading a symbolic link changes that, and home does so when it scans its tree.
       l.Number("link", Look("s").st_mtim.tv_sec).Number("ns", Look("s").st_mtim.tv_nsec);
       Show(l, "p");
       l.Call("dangling", Times("s", kOld, kOld));
     }},
    {"utimens-permission",
     [](Line& l) {
       Make("f", "text", 0666);
       Make("g", "text", 0644);
       As(1000, 1000, [&] {
         l.Call("set-others", Times("f", kOld, kOld)).Call("now-writable", utimensat(AT_FDCWD, "f", nullptr, 0));
         l.Call("now-read-only", utimensat(AT_FDCWD, "g", nullptr, 0))
             .Call("one-now", Times("f", kOld, {0, UTIME_NOW}));
       });
       chown("f", 1000, 1000);
       As(1000, 1000, [&] { l.Call("owner", Times("f", kOld, kOld)); });
     }},
    {"utimens-stays",
     [](Line& l) {
       const Fd fd("f", O_CREAT | O_RDWR);
       write(fd, "some text", 9);
       l.Call("set", Times("f", kOld, kOld));
       Show(l, "f");
       l.Call("fsync", fsync(fd))
           .Call("chmod", chmod("f", 0600))
           .Call("rename", rename("f", "g"))
           .Call("link", link("g", "h"));
       Show(l, "g");
     }},
    {"utimens-after-mapping",
     [](Line& l) {
       Make("f", Pattern(8192));
       {
         const Fd fd("f", O_RDWR);
         char* p = static_cast<char*>(mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
         p[5] = 'x';
         msync(p, 8192, MS_SYNC);
         munmap(p, 8192);
       }
       l.Call("set", Times("f", kOld, kOld));
       Show(l, "f");
       Tick();
       Show(l, "f");
     }},
};

}  // namespace

std::span<const Case> TimeCases() { return kCases; }

}  // namespace vrun::suites
