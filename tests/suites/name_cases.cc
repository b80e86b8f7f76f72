// SPDX-License-Identifier: Apache-2.0
// Names: renaming, linking, removing; long ones, deep ones, loops.
#include <linux/fs.h>
#include <sys/wait.h>

#include <cstdio>
#include <string>

#include "suite.h"

namespace vrun::suites {
namespace {

int Rename2(const char* from, const char* to, unsigned flags) { return renameat2(AT_FDCWD, from, AT_FDCWD, to, flags); }
int64_t Links(const char* path) { return static_cast<int64_t>(Look(path).st_nlink); }

std::string Target(const char* path) {
  char text[8192];
  const ssize_t n = readlink(path, text, sizeof text);
  return n < 0 ? ErrnoName(errno) : std::string(text, static_cast<size_t>(n));
}

constexpr Case kCases[] = {
    {"rename-file",
     [](Line& l) {
       Make("f", "text");
       const ino_t before = Look("f").st_ino;
       l.Call("rename", rename("f", "g"))
           .Text("names", Names("."))
           .Text("content", Content("g"))
           .Number("same", Look("g").st_ino == before);
       l.Call("missing", rename("f", "h")).Call("itself", rename("g", "g")).Text("names", Names("."));
     }},
    {"rename-over",
     [](Line& l) {
       Make("f", "f");
       Make("g", "g");
       mkdir("d", 0755);
       mkdir("e", 0755);
       mkdir("full", 0755);
       Make("full/x");
       l.Call("file", rename("f", "g"))
           .Text("g", Content("g"))
           .Call("file-dir", rename("g", "d"))
           .Call("dir-file", rename("d", "g"));
       l.Call("dir-full", rename("d", "full"))
           .Call("dir-empty", rename("full", "e"))
           .Text("names", Names("."))
           .Text("e", Names("e"));
     }},
    {"rename-into-itself",
     [](Line& l) {
       mkdir("d", 0755);
       mkdir("d/e", 0755);
       l.Call("below", rename("d", "d/e/f")).Call("child", rename("d", "d/e")).Call("parent", rename("d/e", "d"));
       l.Call("dot", rename("d/.", "x")).Call("dotdot", rename("d/e/..", "x")).Text("names", Names("."));
     }},
    {"rename-hard-link-onto-itself",
     [](Line& l) {
       Make("f", "text");
       link("f", "g");
       l.Call("rename", rename("f", "g")).Text("names", Names(".")).Number("nlink", Links("f"));
     }},
    {"rename-across-directories",
     [](Line& l) {
       mkdir("a", 0755);
       mkdir("b", 0755);
       mkdir("a/d", 0755);
       Make("a/d/f", "deep");
       l.Call("dir", rename("a/d", "b/e"))
           .Text("content", Content("b/e/f"))
           .Text("a", DirectoryLinks("a", 0))
           .Text("b", DirectoryLinks("b", 1));
       const Fd fd("b/e", O_RDONLY | O_DIRECTORY);
       l.Number(
           "dotdot", Look("b").st_ino == [&] {
             struct stat st {};
             fstatat(fd, "..", &st, 0);
             return st.st_ino;
           }());
     }},
    {"rename-slash",
     [](Line& l) {
       Make("f");
       mkdir("d", 0755);
       l.Call("file-slash", rename("f/", "g"))
           .Call("to-slash", rename("f", "g/"))
           .Call("dir-slash", rename("d/", "e/"))
           .Text("names", Names("."));
     }},
    {"rename-noreplace",
     [](Line& l) {
       Make("f", "f");
       Make("g", "g");
       l.Call("there", Rename2("f", "g", RENAME_NOREPLACE))
           .Call("free", Rename2("f", "h", RENAME_NOREPLACE))
           .Text("names", Names("."));
       l.Call("itself", Rename2("g", "g", RENAME_NOREPLACE)).Call("missing", Rename2("x", "g", RENAME_NOREPLACE));
     }},
    {"rename-exchange",
     [](Line& l) {
       Make("f", "f");
       Make("g", "g");
       mkdir("d", 0755);
       Make("d/in");
       l.Call("files", Rename2("f", "g", RENAME_EXCHANGE)).Text("f", Content("f")).Text("g", Content("g"));
       l.Call("file-dir", Rename2("f", "d", RENAME_EXCHANGE)).Text("f", Names("f")).Text("d", Content("d"));
       l.Call("missing", Rename2("f", "x", RENAME_EXCHANGE))
           .Call("both", Rename2("f", "g", RENAME_EXCHANGE | RENAME_NOREPLACE));
       l.Call("below", Rename2("f", "f/in", RENAME_EXCHANGE)).Call("flags", Rename2("f", "g", 1U << 20));
     }},
    {"rename-exchange-directories",
     [](Line& l) {
       mkdir("a", 0755);
       mkdir("b", 0755);
       mkdir("a/x", 0755);
       mkdir("b/y", 0755);
       Make("a/x/1");
       l.Call("exchange", Rename2("a/x", "b/y", RENAME_EXCHANGE)).Text("a", Names("a/x")).Text("b", Names("b/y"));
       l.Text("a", DirectoryLinks("a", 1)).Text("b", DirectoryLinks("b", 1));
     }},
    {"rename-permission",
     [](Line& l) {
       mkdir("mine", 0755);
       chown("mine", 1000, 1000);
       mkdir("roots", 0755);
       Make("mine/f");
       Make("roots/g");
       As(1000, 1000, [&] {
         l.Call("within", rename("mine/f", "mine/h"))
             .Call("out", rename("mine/h", "roots/h"))
             .Call("in", rename("roots/g", "mine/g"));
       });
     }},
    {"rename-sticky",
     [](Line& l) {
       mkdir("d", 0755);
       chmod("d", 01777);
       Make("d/root");
       As(1000, 1000, [&] { Make("d/a"); });
       As(1001, 1001, [&] {
         Make("d/b");
         l.Call("others", rename("d/a", "d/x"))
             .Call("over", rename("d/b", "d/a"))
             .Call("unlink", unlink("d/a"))
             .Call("root", unlink("d/root"));
         l.Call("own", rename("d/b", "d/c")).Call("own", unlink("d/c"));
       });
       chown("d", 1001, 1001);
       As(1001, 1001, [&] { l.Call("owner", unlink("d/a")); });
     }},
    {"rename-directory-of-others",
     [](Line& l) {
       chmod(".", 0777);
       mkdir("a", 0777);
       mkdir("b", 0777);
       chmod("a", 0777);
       chmod("b", 0777);
       mkdir("a/d", 0755);
       As(1000, 1000, [&] { l.Call("same-parent", rename("a/d", "a/e")).Call("other-parent", rename("a/e", "b/e")); });
     }},
    {"rename-while-others-look",
     [](Line& l) {
       Make("f", "0");
       const pid_t child = fork();
       if (child == 0) {
         for (int i = 0; i < 300; i++) {
           Make("new", std::to_string(i));
           if (rename("new", "f") != 0) _exit(1);
         }
         _exit(0);
       }
       int missing = 0, status = 0;
       while (waitpid(child, &status, WNOHANG) == 0) missing += Content("f").find('E') != std::string::npos;
       l.Number("status", status).Number("missing", missing).Text("content", Content("f"));
     }},
    {"link",
     [](Line& l) {
       Make("f", "text");
       l.Call("link", link("f", "g")).Number("nlink", Links("f")).Number("same", Look("f").st_ino == Look("g").st_ino);
       const Fd fd("g", O_WRONLY | O_APPEND);
       write(fd, " more", 5);
       chmod("g", 0600);
       l.Text("content", Content("f"))
           .Octal("mode", Look("f").st_mode)
           .Call("unlink", unlink("f"))
           .Number("nlink", Links("g"));
       l.Text("content", Content("g"));
     }},
    {"link-errors",
     [](Line& l) {
       Make("f");
       mkdir("d", 0755);
       symlink("f", "s");
       l.Call("exists", link("f", "d"))
           .Call("directory", link("d", "e"))
           .Call("missing", link("x", "y"))
           .Call("below", link("f", "f/x"));
       l.Call("symlink", link("s", "t")).Text("t", Target("t")).Number("nlink", Links("s"));
       l.Call("follow", linkat(AT_FDCWD, "s", AT_FDCWD, "u", AT_SYMLINK_FOLLOW)).Number("nlink", Links("f"));
     }},
    {"link-many",
     [](Line& l) {
       Make("f", "text");
       mkdir("d", 0755);
       int good = 0;
       for (int i = 0; i < 100; i++) good += link("f", ("d/" + std::to_string(i)).c_str()) == 0;
       l.Number("good", good).Number("nlink", Links("f"));
       for (int i = 0; i < 100; i += 2) unlink(("d/" + std::to_string(i)).c_str());
       l.Number("nlink", Links("d/1")).Call("unlink", unlink("f")).Text("content", Content("d/99"));
     }},
    {"link-fifo-and-symlink",
     [](Line& l) {
       mkfifo("p", 0644);
       symlink("p", "s");
       l.Call("fifo", link("p", "q")).Call("symlink", link("s", "t")).Number("p", Links("q")).Number("s", Links("t"));
     }},
    {"link-to-others-file",
     [](Line& l) {
       Make("f", "text");
       chmod(".", 0777);
       As(1000, 1000, [&] { l.Call("link", link("f", "g")); });
     }},
    {"symlink",
     [](Line& l) {
       l.Call("make", symlink("some where/../x", "s")).Text("target", Target("s")).Octal("mode", Look("s").st_mode);
       l.Number("size", Look("s").st_size).Call("again", symlink("y", "s")).Call("empty", symlink("", "e"));
       char b[3];
       l.Count("short", readlink("s", b, 3)).Call("open", Fd("s", O_RDONLY)).Call("unlink", unlink("s"));
       Make("f");
       l.Count("file", readlink("f", b, 3)).Call("missing", readlink("x", b, 3)).Call("below", symlink("y", "f/s"));
     }},
    {"symlink-long",
     [](Line& l) {
       l.Call("255", symlink(std::string(255, 'x').c_str(), "a"))
           .Call("4000", symlink(std::string(4000, 'x').c_str(), "b"));
       l.Text("b", Target("b"))
           .Call("4095", symlink(std::string(4095, 'x').c_str(), "c"))
           .Call("4096", symlink(std::string(4096, 'x').c_str(), "d"));
       l.Number("size", Look("b").st_size).Call("open", Fd("a", O_RDONLY)).Call("open", Fd("b", O_RDONLY));
       unlink("c");
     }},
    {"symlink-through",
     [](Line& l) {
       mkdir("d", 0755);
       Make("d/f", "text");
       symlink("d", "s");
       symlink("../d/f", "d/up");
       l.Text("file", Content("s/f"))
           .Text("up", Content("s/up"))
           .Text("names", Names("s"))
           .Call("rmdir", rmdir("s"))
           .Call("slash", rmdir("s/"));
       l.Call("unlink", unlink("s/f")).Call("rename", rename("s", "t")).Text("t", Target("t"));
     }},
    {"symlink-loop",
     [](Line& l) {
       symlink("b", "a");
       symlink("a", "b");
       symlink("self", "self");
       struct stat st {};
       l.Call("open", Fd("a", O_RDONLY))
           .Call("stat", stat("self", &st))
           .Call("below", access("a/x", F_OK))
           .Call("chmod", chmod("a", 0600));
       l.Call("lstat", lstat("a", &st)).Call("unlink", unlink("self"));
     }},
    {"symlink-chain",
     [](Line& l) {
       Make("l0", "text");
       for (int i = 1; i <= 45; i++) symlink(("l" + std::to_string(i - 1)).c_str(), ("l" + std::to_string(i)).c_str());
       l.Text("40", Content("l40")).Text("41", Content("l41")).Text("45", Content("l45"));
     }},
    {"symlink-owner",
     [](Line& l) {
       chmod(".", 0777);
       As(1000, 1000, [&] { symlink("x", "s"); });
       l.Number("uid", Look("s").st_uid)
           .Call("lchown", lchown("s", 1001, 1002))
           .Number("uid", Look("s").st_uid)
           .Number("gid", Look("s").st_gid);
     }},
    {"symlink-protected",
     [](Line& l) {
       mkdir("d", 0777);
       chmod("d", 01777);
       Make("f", "text");
       As(1000, 1000, [&] { symlink("../f", "d/s"); });
       As(1000, 1000, [&] { l.Text("owner", Content("d/s")); });
     }},
    {"unlink",
     [](Line& l) {
       Make("f");
       mkdir("d", 0755);
       l.Call("file", unlink("f"))
           .Call("again", unlink("f"))
           .Call("directory", unlink("d"))
           .Call("below", unlink("f/x"));
       Make("f");
       l.Call("slash", unlink("f/"))
           .Call("empty", unlink(""))
           .Call("dot", unlink("."))
           .Call("dir-flag", unlinkat(AT_FDCWD, "f", AT_REMOVEDIR));
     }},
    {"name-length",
     [](Line& l) {
       const std::string longest(255, 'n'), longer(256, 'n');
       l.Call("255", Fd(longest.c_str(), O_CREAT | O_WRONLY)).Call("256", Fd(longer.c_str(), O_CREAT | O_WRONLY));
       l.Call("mkdir", mkdir(longer.c_str(), 0755))
           .Call("rename", rename(longest.c_str(), longer.c_str()))
           .Call("stat", access(longer.c_str(), F_OK));
       l.Call("symlink", symlink("x", longer.c_str()))
           .Call("link", link(longest.c_str(), longer.c_str()))
           .Call("unlink", unlink(longer.c_str()));
     }},
    {"name-bytes",
     [](Line& l) {
       for (const char* name : {"new\nline", "\xff\xfe", "\xc3\xa9", "e\xcc\x81", " ", "-rf", "a\\b", "*", "...",
                                ".hidden", "CASE", "case"}) {
         Make(name, name);
         l.Text("content", Content(name));
       }
       l.Text("names", Names("."));
     }},
    {"path-length",
     [](Line& l) {
       std::string path;
       while (path.size() < 4090) path += "./";
       Make("f", "text");
       l.Text("fits", Content((path.substr(0, 4092) + "f").c_str()))
           .Text("too-long", Content((path + "./././././f").c_str()));
     }},
    {"path-deep",
     [](Line& l) {
       int depth = 0;
       for (; depth < 300 && mkdir("deeper-and-deeper", 0755) == 0 && chdir("deeper-and-deeper") == 0; depth++) {
       }
       Make("bottom", "here");
       l.Number("depth", depth).Text("content", Content("bottom"));
       char path[16'384];
       l.Number("cwd", getcwd(path, sizeof path) != nullptr);
       unlink("bottom");
       for (; depth > 100; depth--) {  // so that a program that inspects the remaining tree can name all of it
         if (chdir("..") != 0) Fail("..");
         if (rmdir("deeper-and-deeper") != 0) Fail("rmdir");
       }
       Make("bottom", "here");
       l.Text("names", Names("."));
     }},
    {"path-dots",
     [](Line& l) {
       mkdir("d", 0755);
       Make("f", "text");
       l.Text("dotdot", Content("d/../f")).Text("dots", Content("./././f")).Text("slashes", Content(".//d//..///f"));
       l.Text("missing", Content("x/../f")).Text("file", Content("f/../f"));
     }},
};

}  // namespace

std::span<const Case> NameCases() { return kCases; }

}  // namespace vrun::suites
