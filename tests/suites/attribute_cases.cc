// SPDX-License-Identifier: Apache-2.0
// Modes, owners, set-id bits and permissions.
#include <grp.h>
#include <sys/sysmacros.h>

#include <cstdio>
#include <string>

#include "suite.h"

namespace vrun::suites {
namespace {

unsigned Mode(const char* path) { return Look(path).st_mode & 07777; }

void Owned(const char* path, uid_t uid, gid_t gid, mode_t mode) {
  Make(path, "text");
  if (chown(path, uid, gid) != 0 || chmod(path, mode) != 0) Fail(path);
}

constexpr Case kCases[] = {
    {"chmod",
     [](Line& l) {
       Make("f");
       mkdir("d", 0755);
       symlink("f", "s");
       for (const mode_t mode : {0U, 0777U, 0644U, 04755U, 02755U, 01755U, 07777U}) {
         l.Call("chmod", chmod("f", mode)).Octal("f", Mode("f")).Call("chmod", chmod("d", mode)).Octal("d", Mode("d"));
       }
       l.Call("link", chmod("s", 0600))
           .Octal("f", Mode("f"))
           .Call("missing", chmod("x", 0600))
           .Call("fd", fchmod(Fd("f", O_RDONLY), 0640));
       l.Octal("f", Mode("f")).Call("nofollow", fchmodat(AT_FDCWD, "s", 0600, AT_SYMLINK_NOFOLLOW));
     }},
    {"chmod-permission",
     [](Line& l) {
       Owned("f", 1000, 1000, 0644);
       As(1000, 1000, [&] { l.Call("owner", chmod("f", 0600)); });
       As(1001, 1000, [&] { l.Call("group", chmod("f", 0640)); });
       As(1001, 1001, [&] { l.Call("other", chmod("f", 0666)); });
       l.Octal("mode", Mode("f"));
     }},
    {"chmod-setgid-of-other-group",
     [](Line& l) {
       Owned("f", 1000, 1001, 0644);
       As(1000, 1000, [&] { l.Call("chmod", chmod("f", 02755)); });
       l.Octal("mode", Mode("f"));
       mkdir("d", 0755);
       chown("d", 1000, 1001);
       As(1000, 1000, [&] { l.Call("chmod", chmod("d", 02755)); });
       l.Octal("d", Mode("d"));
     }},
    {"chmod-sticky-by-user",
     [](Line& l) {
       Owned("f", 1000, 1000, 0644);
       As(1000, 1000, [&] { l.Call("chmod", chmod("f", 01644)); });
       l.Octal("mode", Mode("f"));
     }},
    {"chmod-takes-effect-at-once",
     [](Line& l) {
       Owned("f", 1000, 1000, 0644);
       As(1001, 1001, [&] { l.Call("before", Fd("f", O_RDONLY)); });
       chmod("f", 0600);
       As(1001, 1001, [&] { l.Call("after", Fd("f", O_RDONLY)); });
       chmod("f", 0604);
       As(1001, 1001, [&] { l.Call("again", Fd("f", O_RDONLY)); });
     }},
    {"chown",
     [](Line& l) {
       Make("f");
       l.Call("both", chown("f", 1000, 1001)).Number("uid", Look("f").st_uid).Number("gid", Look("f").st_gid);
       l.Call("uid", chown("f", 1002, static_cast<gid_t>(-1)))
           .Number("uid", Look("f").st_uid)
           .Number("gid", Look("f").st_gid);
       l.Call("gid", chown("f", static_cast<uid_t>(-1), 1003))
           .Number("uid", Look("f").st_uid)
           .Number("gid", Look("f").st_gid);
       l.Call("fd", fchown(Fd("f", O_RDONLY), 1, 2)).Number("uid", Look("f").st_uid).Call("missing", chown("x", 1, 1));
     }},
    {"chown-permission",
     [](Line& l) {
       Owned("f", 1000, 1000, 0644);
       As(1000, 1000, [&] {
         l.Call("give", chown("f", 1001, static_cast<gid_t>(-1)))
             .Call("own-group", chown("f", static_cast<uid_t>(-1), 1000));
         l.Call("other-group", chown("f", static_cast<uid_t>(-1), 1001))
             .Call("nothing", chown("f", static_cast<uid_t>(-1), static_cast<gid_t>(-1)));
       });
       As(1001, 1001, [&] { l.Call("others", chown("f", 1001, 1001)); });
     }},
    {"chown-takes-set-id-bits",
     [](Line& l) {
       Owned("f", 1000, 1000, 06755);
       As(1000, 1000, [&] { l.Call("by-owner", chown("f", static_cast<uid_t>(-1), 1000)); });
       l.Octal("mode", Mode("f"));
       chmod("f", 06755);
       l.Call("by-root", chown("f", 1001, 1001)).Octal("mode", Mode("f"));
       Owned("g", 1000, 1000, 06745);
       l.Call("no-group-exec", chown("g", 1001, 1001)).Octal("mode", Mode("g"));
       mkdir("d", 0755);
       chmod("d", 06755);
       l.Call("directory", chown("d", 1001, 1001)).Octal("mode", Mode("d"));
     }},
    {"write-takes-set-id-bits",
     [](Line& l) {
       Owned("f", 1000, 1000, 06777);
       As(1001, 1001, [&] { l.Count("by-other", write(Fd("f", O_WRONLY), "x", 1)); });
       l.Octal("mode", Mode("f"));
       // As root: the kernel lets only the machine's root keep the bits, not the root of a user namespace.
       Owned("g", 1000, 1000, 02767);
       As(1001, 1001, [&] { l.Count("no-group-exec", write(Fd("g", O_WRONLY), "x", 1)); });
       l.Octal("mode", Mode("g"));
     }},
    {"truncate-takes-set-id-bits",
     [](Line& l) {
       Owned("f", 1000, 1000, 06777);
       As(1001, 1001, [&] { l.Call("truncate", truncate("f", 1)); });
       l.Octal("mode", Mode("f"));
       chmod("f", 06777);
       As(1001, 1001, [&] { l.Call("ftruncate", ftruncate(Fd("f", O_RDWR), 3)); });
       l.Octal("mode", Mode("f"));
       chmod("f", 06777);
       As(1001, 1001, [&] { l.Call("open", Fd("f", O_WRONLY | O_TRUNC)); });
       l.Octal("mode", Mode("f"));
     }},
    {"fallocate-takes-set-id-bits",
     [](Line& l) {
       Owned("f", 1000, 1000, 06777);
       As(1001, 1001, [&] { l.Call("fallocate", fallocate(Fd("f", O_WRONLY), 0, 0, 8192)); });
       l.Octal("mode", Mode("f"));
     }},
    {"set-uid-program",
     [](Line& l) {
       Owned("f", 1000, 1000, 04755);
       // Whether the kernel allows it depends on the mount. Both sides must agree, otherwise the result differs.
       l.Octal("mode", Mode("f"));
       As(1000, 1000, [&] { l.Call("chmod", chmod("f", 06711)); });
       l.Octal("mode", Mode("f"));
     }},
    {"access",
     [](Line& l) {
       Owned("f", 1000, 1001, 0754);
       mkdir("d", 0700);
       Make("d/x");
       const auto all = [&l](const char* who) {
         for (const auto& [name, mask] :
              {std::pair("r", R_OK), std::pair("w", W_OK), std::pair("x", X_OK), std::pair("f", F_OK)}) {
           l.Call(std::string(who) + name, faccessat(AT_FDCWD, "f", mask, AT_EACCESS));
         }
       };
       all("root-");
       As(1000, 1000, [&] { all("owner-"); });
       As(1002, 1001, [&] { all("group-"); });
       As(1002, 1002, [&] { all("other-"), l.Call("below", faccessat(AT_FDCWD, "d/x", F_OK, AT_EACCESS)); });
       chmod("f", 0644);
       l.Call("root-exec", access("f", X_OK))
           .Call("missing", access("y", F_OK))
           .Call("link", symlink("y", "s"))
           .Call("dangling", access("s", F_OK));
       l.Call("itself", faccessat(AT_FDCWD, "s", F_OK, AT_SYMLINK_NOFOLLOW));
     }},
    {"access-real-uid",
     [](Line& l) {
       Owned("f", 1000, 1000, 0600);
       l.Number("status", InChild([] {
                  if (setresgid(1000, 0, 0) != 0 || setresuid(1000, 0, 0) != 0) return 9;
                  return (access("f", R_OK) == 0 ? 1 : 0) + (faccessat(AT_FDCWD, "f", R_OK, AT_EACCESS) == 0 ? 2 : 0);
                }));
     }},
    {"supplementary-groups",
     [](Line& l) {
       Owned("f", 0, 1234, 0640);
       l.Number("status", InChild([] {
                  const gid_t groups[] = {5, 1234};
                  if (setgroups(2, groups) != 0 || setgid(1000) != 0 || setuid(1000) != 0) return 9;
                  return Fd("f", O_RDONLY) >= 0 ? 0 : 1;
                }));
     }},
    {"umask",
     [](Line& l) {
       for (const mode_t mask : {0U, 022U, 077U, 0777U, 0111U}) {
         umask(mask);
         const std::string name = std::to_string(mask);
         open(("f" + name).c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0777);
         mkdir(("d" + name).c_str(), 0777);
         mkfifo(("p" + name).c_str(), 0666);
         l.Octal("f", Mode(("f" + name).c_str()))
             .Octal("d", Mode(("d" + name).c_str()))
             .Octal("p", Mode(("p" + name).c_str()));
       }
     }},
    {"root-overrides",
     [](Line& l) {
       Owned("f", 1000, 1000, 0);
       mkdir("d", 0);
       chown("d", 1000, 1000);
       l.Text("content", Content("f"))
           .Call("write", Fd("f", O_WRONLY))
           .Call("in", Fd("d/x", O_CREAT | O_WRONLY))
           .Text("names", Names("d"));
       l.Number("exec", InChild([] {
                  execl("./f", "f", static_cast<char*>(nullptr));
                  return errno;
                }));
     }},
    {"stat-fields",
     [](Line& l) {
       Make("f", Pattern(5'000));
       const auto st = Look("f");
       l.Number("size", st.st_size)
           .Number("nlink", static_cast<int64_t>(st.st_nlink))
           .Number("uid", st.st_uid)
           .Number("rdev", static_cast<int64_t>(st.st_rdev));
       l.Octal("mode", st.st_mode)
           .Number("blksize", st.st_blksize)
           .Number("same-device", st.st_dev == Look(".").st_dev);
       struct stat fd {};
       const Fd open("f", O_RDONLY);
       l.Call("fstat", fstat(open, &fd))
           .Number("same", fd.st_ino == st.st_ino)
           .Call("empty", fstatat(open, "", &fd, AT_EMPTY_PATH));
     }},
    {"statx-fields",
     [](Line& l) {
       Make("f", "text");
       struct statx s {};
       l.Call("statx", statx(AT_FDCWD, "f", AT_STATX_FORCE_SYNC, STATX_BASIC_STATS, &s))
           .Number("mask", (s.stx_mask & STATX_BASIC_STATS) == STATX_BASIC_STATS);
       l.Number("size", static_cast<int64_t>(s.stx_size))
           .Call("cached", statx(AT_FDCWD, "f", AT_STATX_DONT_SYNC, STATX_SIZE, &s));
       l.Number("size", static_cast<int64_t>(s.stx_size));
     }},
    {"inode-stays",
     [](Line& l) {
       Make("f", "text");
       const ino_t before = Look("f").st_ino;
       const Fd fd("f", O_RDWR | O_APPEND);
       write(fd, "more", 4);
       const bool written = Look("f").st_ino == before;
       chmod("f", 0600);
       rename("f", "g");
       link("g", "h");
       l.Number("written", written)
           .Number("open", Look(fd).st_ino == before)
           .Number("renamed", Look("g").st_ino == before);
       l.Number("linked", Look("h").st_ino == before);
     }},
    {"mknod",
     [](Line& l) {
       l.Call("file", mknod("f", S_IFREG | 0640, 0))
           .Octal("f", Look("f").st_mode)
           .Call("fifo", mknod("p", S_IFIFO | 0600, 0))
           .Octal("p", Look("p").st_mode);
       l.Call("again", mknod("f", S_IFREG | 0640, 0))
           .Call("directory", mknod("d", S_IFDIR | 0755, 0))
           .Call("socket", mknod("s", S_IFSOCK | 0600, 0));
       chmod(".", 0777);
       As(1000, 1000, [&] {
         l.Call("device", mknod("dev", S_IFCHR | 0600, makedev(1, 3))).Call("fifo", mknod("q", S_IFIFO | 0600, 0));
       });
     }},
};

}  // namespace

std::span<const Case> AttributeCases() { return kCases; }

}  // namespace vrun::suites
