// SPDX-License-Identifier: Apache-2.0
// Opening, creating, and files that stay open after their name is removed.
#include <sys/wait.h>

#include <cstdio>
#include <cstring>
#include <string>

#include "suite.h"

namespace vrun::suites {
namespace {

// Gives a name to a file without one.
int Link(int fd, const char* name) {
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  return linkat(AT_FDCWD, path.c_str(), AT_FDCWD, name, AT_SYMLINK_FOLLOW);
}

void CopySelf(const char* name) {
  const Fd from("/proc/self/exe", O_RDONLY);
  const Fd to(name, O_CREAT | O_WRONLY, 0755);
  char piece[65536];
  for (ssize_t n; (n = read(from, piece, sizeof piece)) > 0;) {
    if (write(to, piece, static_cast<size_t>(n)) != n) Fail(name);
  }
}

constexpr Case kCases[] = {
    {"open-missing", [](Line& l) { l.Call("open", Fd("f", O_RDONLY)); }},
    {"open-creat-mode",
     [](Line& l) {
       l.Call("open", Fd("f", O_CREAT | O_WRONLY, 0666)).Octal("mode", Look("f").st_mode);
       umask(0);
       l.Call("open", Fd("g", O_CREAT | O_WRONLY, 06777)).Octal("mode", Look("g").st_mode);
     }},
    {"open-creat-mode-0",
     [](Line& l) {
       const Fd fd("f", O_CREAT | O_RDWR, 0);
       l.Count("write", write(fd, "abc", 3)).Text("content", Content(fd)).Octal("mode", Look("f").st_mode);
     }},
    {"open-excl",
     [](Line& l) {
       l.Call("new", Fd("f", O_CREAT | O_EXCL | O_WRONLY)).Call("again", Fd("f", O_CREAT | O_EXCL | O_WRONLY));
       symlink("nowhere", "s");
       l.Call("dangling", Fd("s", O_CREAT | O_EXCL | O_WRONLY)).Text("names", Names("."));
     }},
    {"open-excl-directory",
     [](Line& l) {
       mkdir("d", 0755);
       l.Call("open", Fd("d", O_CREAT | O_EXCL | O_WRONLY)).Call("creat", Fd("d", O_CREAT | O_WRONLY));
     }},
    {"open-excl-race",
     [](Line& l) {
       int winners = 0;
       for (int round = 0; round < 20; round++) {
         const std::string name = "f" + std::to_string(round);
         pid_t children[4];
         for (pid_t& child : children) {
           child = fork();
           if (child == 0) _exit(Fd(name.c_str(), O_CREAT | O_EXCL | O_WRONLY) >= 0 ? 0 : 1);
         }
         for (const pid_t child : children) {
           int status = 0;
           waitpid(child, &status, 0);
           winners += status == 0;
         }
       }
       l.Number("winners", winners);
     }},
    {"open-creat-through-symlink",
     [](Line& l) {
       symlink("target", "s");
       l.Call("open", Fd("s", O_CREAT | O_WRONLY)).Text("names", Names("."));
     }},
    {"open-nofollow",
     [](Line& l) {
       Make("f");
       symlink("f", "s");
       l.Call("link", Fd("s", O_RDONLY | O_NOFOLLOW)).Call("file", Fd("f", O_RDONLY | O_NOFOLLOW));
       l.Call("path", Fd("s", O_PATH | O_NOFOLLOW));
     }},
    {"open-directory-flag",
     [](Line& l) {
       Make("f");
       mkdir("d", 0755);
       symlink("d", "s");
       l.Call("file", Fd("f", O_RDONLY | O_DIRECTORY)).Call("directory", Fd("d", O_RDONLY | O_DIRECTORY));
       l.Call("link", Fd("s", O_RDONLY | O_DIRECTORY)).Call("both", Fd("s", O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
     }},
    {"open-directory-write",
     [](Line& l) {
       mkdir("d", 0755);
       l.Call("wronly", Fd("d", O_WRONLY)).Call("rdwr", Fd("d", O_RDWR)).Call("trunc", Fd("d", O_RDONLY | O_TRUNC));
       char c;
       const Fd fd("d", O_RDONLY);
       l.Count("read", read(fd, &c, 1)).Count("write", write(fd, "x", 1));
     }},
    {"open-file-as-directory",
     [](Line& l) {
       Make("f");
       l.Call("below", Fd("f/x", O_CREAT | O_WRONLY))
           .Call("slash", Fd("f/", O_RDONLY))
           .Call("dot", Fd("f/.", O_RDONLY));
       l.Call("creat-slash", Fd("new/", O_CREAT | O_WRONLY));
     }},
    {"open-trunc",
     [](Line& l) {
       Make("f", "0123456789");
       l.Call("rdonly", Fd("f", O_RDONLY)).Number("size", Look("f").st_size);
       l.Call("trunc", Fd("f", O_WRONLY | O_TRUNC)).Number("size", Look("f").st_size);
     }},
    {"open-trunc-while-open",
     [](Line& l) {
       Make("f", "0123456789");
       const Fd fd("f", O_RDWR);
       lseek(fd, 8, SEEK_SET);
       Fd("f", O_WRONLY | O_TRUNC);
       char c;
       l.Count("read", read(fd, &c, 1)).Count("write", write(fd, "x", 1)).Text("content", Content("f"));
     }},
    {"open-append",
     [](Line& l) {
       Make("f", "01234");
       const Fd fd("f", O_RDWR | O_APPEND);
       l.Count("write", write(fd, "ab", 2)).Number("at", lseek(fd, 0, SEEK_CUR)).Count("seek", lseek(fd, 1, SEEK_SET));
       l.Count("write", write(fd, "cd", 2)).Count("pwrite", pwrite(fd, "ef", 2, 0)).Text("content", Content("f"));
     }},
    {"open-append-two",
     [](Line& l) {
       const Fd a("f", O_CREAT | O_WRONLY | O_APPEND);
       const Fd b("f", O_WRONLY | O_APPEND);
       for (int i = 0; i < 5; i++) {
         write(a, "a", 1);
         write(b, "b", 1);
       }
       l.Text("content", Content("f"));
     }},
    {"open-append-processes",
     [](Line& l) {
       Make("log");
       pid_t children[4];
       for (pid_t& child : children) {
         child = fork();
         if (child != 0) continue;
         const Fd fd("log", O_WRONLY | O_APPEND);
         for (int i = 0; i < 200; i++) {
           if (write(fd, "a line of 16 by\n", 16) != 16) _exit(1);
         }
         _exit(0);
       }
       int failed = 0;
       for (const pid_t child : children) {
         int status = 0;
         waitpid(child, &status, 0);
         failed += status != 0;
       }
       const std::string all = Content("log");
       size_t whole = 0;
       for (size_t i = 0; i + 16 <= all.size(); i += 16) whole += all.compare(i, 16, "a line of 16 by\n") == 0;
       l.Number("failed", failed).Number("size", Look("log").st_size).Number("lines", static_cast<int64_t>(whole));
     }},
    {"open-append-set-later",
     [](Line& l) {
       Make("f", "01234");
       const Fd fd("f", O_WRONLY);
       l.Call("setfl", fcntl(fd, F_SETFL, O_APPEND)).Count("write", write(fd, "ab", 2));
       l.Call("setfl", fcntl(fd, F_SETFL, 0)).Count("pwrite", pwrite(fd, "c", 1, 0)).Text("content", Content("f"));
     }},
    {"open-wrong-way",
     [](Line& l) {
       Make("f", "01234");
       char c;
       l.Count("read", read(Fd("f", O_WRONLY), &c, 1)).Count("write", write(Fd("f", O_RDONLY), "x", 1));
       l.Call("ftruncate", ftruncate(Fd("f", O_RDONLY), 1)).Count("path-read", read(Fd("f", O_PATH), &c, 1));
     }},
    {"open-path-only",
     [](Line& l) {
       Make("f", "01234");
       const Fd fd("f", O_PATH);
       l.Number("size", Look(fd).st_size).Call("fchmod", fchmod(fd, 0600));
       const std::string again = "/proc/self/fd/" + std::to_string(fd);
       l.Text("content", Content(Fd(again.c_str(), O_RDONLY)));
       unlink("f");
       l.Text("gone", Content(Fd(again.c_str(), O_RDONLY))).Number("nlink", static_cast<int64_t>(Look(fd).st_nlink));
     }},
    {"open-unlinked",
     [](Line& l) {
       const Fd fd("f", O_CREAT | O_RDWR);
       write(fd, "before", 6);
       l.Call("unlink", unlink("f"))
           .Number("nlink", static_cast<int64_t>(Look(fd).st_nlink))
           .Count("write", write(fd, "after", 5));
       l.Text("content", Content(fd))
           .Call("fchmod", fchmod(fd, 0600))
           .Call("ftruncate", ftruncate(fd, 3))
           .Text("cut", Content(fd));
       l.Call("fsync", fsync(fd)).Text("names", Names("."));
     }},
    {"open-unlinked-and-made-again",
     [](Line& l) {
       Make("f", "old");
       const Fd fd("f", O_RDWR);
       unlink("f");
       Make("f", "new one");
       l.Text("old", Content(fd))
           .Text("new", Content("f"))
           .Call("write", write(fd, "OLD", 3))
           .Text("new", Content("f"));
     }},
    {"open-unlinked-reopened",
     [](Line& l) {
       Make("f", "text");
       const Fd fd("f", O_RDONLY);
       unlink("f");
       const Fd again(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_RDWR);
       l.Call("open", again)
           .Count("write", write(again, "TE", 2))
           .Text("content", Content(fd))
           .Call("link", Link(fd, "back"));
     }},
    {"open-replaced",
     [](Line& l) {
       Make("f", "old");
       Make("g", "new");
       const Fd fd("f", O_RDWR);
       l.Call("rename", rename("g", "f")).Text("open", Content(fd)).Text("name", Content("f"));
       l.Number("nlink", static_cast<int64_t>(Look(fd).st_nlink))
           .Count("write", write(fd, "OLD!", 4))
           .Text("open", Content(fd));
     }},
    {"open-renamed",
     [](Line& l) {
       Make("f", "text");
       const Fd fd("f", O_RDWR);
       mkdir("d", 0755);
       rename("f", "d/g");
       l.Count("write", write(fd, "TEXT and more", 13))
           .Text("name", Content("d/g"))
           .Call("ftruncate", ftruncate(fd, 2));
       l.Text("name", Content("d/g"));
     }},
    {"open-directory-removed",
     [](Line& l) {
       mkdir("d", 0755);
       const Fd fd("d", O_RDONLY | O_DIRECTORY);
       l.Call("rmdir", rmdir("d")).Number("nlink", static_cast<int64_t>(Look(fd).st_nlink));
       l.Call("openat", openat(fd, "f", O_CREAT | O_WRONLY, 0644)).Call("mkdirat", mkdirat(fd, "d", 0755));
       l.Call("dotdot", faccessat(fd, "..", F_OK, 0)).Call("dot", faccessat(fd, ".", F_OK, 0));
     }},
    {"open-cwd-removed",
     [](Line& l) {
       mkdir("d", 0755);
       chdir("d");
       l.Call("rmdir", rmdir("../d")).Call("creat", Fd("f", O_CREAT | O_WRONLY)).Text("names", Names("."));
       char path[4096];
       l.Text("cwd", getcwd(path, sizeof path) ? "there" : ErrnoName(errno));
     }},
    {"open-tmpfile",
     [](Line& l) {
       const Fd fd(".", O_TMPFILE | O_RDWR, 0640);
       l.Call("open", fd).Number("nlink", static_cast<int64_t>(Look(fd).st_nlink)).Octal("mode", Look(fd).st_mode);
       l.Count("write", write(fd, "from nowhere", 12)).Text("names", Names(".")).Call("link", Link(fd, "f"));
       l.Text("content", Content("f"))
           .Number("nlink", static_cast<int64_t>(Look(fd).st_nlink))
           .Call("again", Link(fd, "g"));
       l.Number("nlink", static_cast<int64_t>(Look("f").st_nlink)).Call("unlink", unlink("f"));
     }},
    {"open-tmpfile-excl",
     [](Line& l) {
       const Fd fd(".", O_TMPFILE | O_EXCL | O_RDWR, 0640);
       l.Call("open", fd).Call("link", Link(fd, "f")).Call("rdonly", Fd(".", O_TMPFILE | O_RDONLY, 0640));
       l.Call("file", Fd("f", O_TMPFILE | O_RDWR, 0640));
     }},
    {"open-tmpfile-over",
     [](Line& l) {
       Make("f", "there");
       const Fd fd(".", O_TMPFILE | O_RDWR, 0640);
       write(fd, "x", 1);
       l.Call("link", Link(fd, "f")).Text("content", Content("f"));
     }},
    {"open-noatime",
     [](Line& l) {
       Make("f", "text");
       chown("f", 1000, 1000);
       chmod(".", 0777);
       l.Call("root", Fd("f", O_RDONLY | O_NOATIME));
       As(1000, 1000, [&] { l.Call("owner", Fd("f", O_RDONLY | O_NOATIME)); });
       As(1001, 1001, [&] { l.Call("other", Fd("f", O_RDONLY | O_NOATIME)); });
     }},
    {"open-text-busy",
     [](Line& l) {
       CopySelf("program");
       int begins[2], ends[2];
       if (pipe2(begins, O_CLOEXEC) != 0 || pipe2(ends, O_CLOEXEC) != 0) Fail("pipe");
       const pid_t child = fork();
       if (child == 0) {
         dup2(ends[0], 0);
         execl("./program", "program", "wait", static_cast<char*>(nullptr));
         _exit(99);
       }
       close(begins[1]);
       close(ends[0]);
       char c;
       read(begins[0], &c, 1);  // returns without data once the program runs
       l.Call("write", Fd("program", O_WRONLY))
           .Call("truncate", truncate("program", 1))
           .Call("read", Fd("program", O_RDONLY));
       l.Call("rename", rename("program", "other")).Call("write", Fd("other", O_RDWR));
       close(ends[1]);
       int status = 0;
       waitpid(child, &status, 0);
       l.Number("status", status).Call("write", Fd("other", O_WRONLY));
       const Fd writer("other", O_WRONLY);
       l.Number("exec-while-written", InChild([] {
                  execl("./other", "other", "wait", static_cast<char*>(nullptr));
                  return errno;
                }));
       unlink("other");
     }},
    {"open-sync-flags",
     [](Line& l) {
       const Fd a("a", O_CREAT | O_WRONLY | O_SYNC);
       const Fd b("b", O_CREAT | O_WRONLY | O_DSYNC);
       l.Count("sync", write(a, "sync", 4))
           .Count("dsync", write(b, "dsync", 5))
           .Text("a", Content("a"))
           .Text("b", Content("b"));
     }},
    {"open-many",
     [](Line& l) {
       int good = 0;
       int fds[200];
       for (int i = 0; i < 200; i++) fds[i] = open(("f" + std::to_string(i)).c_str(), O_CREAT | O_RDWR, 0644);
       for (int i = 0; i < 200; i++) good += dprintf(fds[i], "%d", i) > 0;
       for (const int fd : fds) good += close(fd) == 0;
       int same = 0;
       for (int i = 0; i < 200; i++) same += Content(("f" + std::to_string(i)).c_str()) == std::to_string(i);
       l.Number("good", good).Number("same", same);
     }},
    {"open-permission",
     [](Line& l) {
       Make("f", "text", 0640);
       chown("f", 1000, 1001);
       As(1000, 1000, [&] { l.Call("owner-r", Fd("f", O_RDONLY)).Call("owner-w", Fd("f", O_WRONLY)); });
       As(1002, 1001, [&] { l.Call("group-r", Fd("f", O_RDONLY)).Call("group-w", Fd("f", O_WRONLY)); });
       As(1002, 1002, [&] { l.Call("other-r", Fd("f", O_RDONLY)).Call("trunc", Fd("f", O_RDONLY | O_TRUNC)); });
       As(1002, 1002,
          [&] { l.Call("creat", Fd("g", O_CREAT | O_WRONLY)).Call("existing", Fd("f", O_CREAT | O_RDONLY)); });
     }},
    {"open-search-permission",
     [](Line& l) {
       mkdir("d", 0700);
       Make("d/f", "text");
       for (const mode_t mode : {0700U, 0711U, 0744U, 0755U}) {
         chmod("d", mode);
         As(1000, 1000, [&] { l.Call("open", Fd("d/f", O_RDONLY)).Text("names", Names("d")); });
       }
     }},
    {"open-group-of-directory",
     [](Line& l) {
       mkdir("d", 0777);
       chmod("d", 02777);
       chown("d", 0, 1001);
       chmod("d", 02777);
       As(1000, 1000, [&] { Make("d/f"), mkdir("d/sub", 0755); });
       l.Number("gid", Look("d/f").st_gid).Number("gid", Look("d/sub").st_gid).Octal("mode", Look("d/sub").st_mode);
     }},
    {"open-setgid-not-in-group",
     [](Line& l) {
       mkdir("d", 0777);
       chown("d", 0, 1001);
       chmod("d", 02777);
       umask(0);
       As(1000, 1000, [&] { l.Call("open", Fd("d/f", O_CREAT | O_WRONLY, 02775)); });
       l.Octal("mode", Look("d/f").st_mode);
     }},
    {"close-and-duplicate",
     [](Line& l) {
       Fd a("f", O_CREAT | O_RDWR);
       const Fd b(dup(a));
       write(a, "one", 3);
       a.Close();
       l.Count("write", write(b, "two", 3)).Text("content", Content("f"));
     }},
};

}  // namespace

std::span<const Case> OpenCases() { return kCases; }

}  // namespace vrun::suites
