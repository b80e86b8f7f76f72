// SPDX-License-Identifier: Apache-2.0
// FIFOs, sockets, programs, and notifications of changes.
#include <poll.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <cstring>
#include <string>

#include "suite.h"

namespace vrun::suites {
namespace {

sockaddr_un Address(const char* path) {
  sockaddr_un a{};
  a.sun_family = AF_UNIX;
  strncpy(a.sun_path, path, sizeof a.sun_path - 1);
  return a;
}

int Bind(int fd, const char* path) {
  const sockaddr_un a = Address(path);
  return bind(fd, reinterpret_cast<const sockaddr*>(&a), sizeof a);
}

int Connect(int fd, const char* path) {
  const sockaddr_un a = Address(path);
  return connect(fd, reinterpret_cast<const sockaddr*>(&a), sizeof a);
}

// Adds all events that have arrived, each as its kind and name. With `last`, waits until one of these kinds arrives: a
// file disappears only when its last user releases it, which may be a process that is still handling a close event.
void Events(Line& l, int fd, uint32_t last = 0) {
  std::string all;
  char buffer[65'536];
  for (pollfd ready{fd, POLLIN, 0}; poll(&ready, 1, last == 0 ? 0 : 5'000) > 0;) {
    const ssize_t n = read(fd, buffer, sizeof buffer);
    for (ssize_t at = 0; at < n;) {
      const auto* event = reinterpret_cast<const inotify_event*>(buffer + at);
      char kind[20];
      snprintf(kind, sizeof kind, "%x", event->mask);
      if ((event->mask & last) != 0) last = 0;
      all += std::string(kind) + (event->len ? ":" + std::string(event->name) : "") + " ";
      at += static_cast<ssize_t>(sizeof *event + event->len);
    }
  }
  l.Text("events", all);
}

constexpr Case kCases[] = {
    {"fifo",
     [](Line& l) {
       l.Call("make", mkfifo("p", 0640)).Octal("mode", Look("p").st_mode).Call("again", mkfifo("p", 0640));
       l.Call("writer-alone", Fd("p", O_WRONLY | O_NONBLOCK)).Call("reader-alone", Fd("p", O_RDONLY | O_NONBLOCK));
       const pid_t child = fork();
       if (child == 0) _exit(write(Fd("p", O_WRONLY), "through", 7) == 7 ? 0 : 1);
       l.Text("through", [] {
         const Fd fd("p", O_RDONLY);
         std::string all;
         char piece[100];
         for (ssize_t n; (n = read(fd, piece, sizeof piece)) > 0;) all.append(piece, static_cast<size_t>(n));
         return all;
       }());
       int status = 0;
       waitpid(child, &status, 0);
       l.Number("status", status).Number("size", Look("p").st_size);
     }},
    {"fifo-renamed-and-removed",
     [](Line& l) {
       mkfifo("p", 0600);
       const Fd fd("p", O_RDWR);
       l.Call("rename", rename("p", "q")).Count("write", write(fd, "abc", 3)).Call("unlink", unlink("q"));
       char b[10];
       l.Count("read", read(fd, b, 10)).Count("seek", lseek(fd, 0, SEEK_SET));
     }},
    {"socket",
     [](Line& l) {
       const Fd server(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
       l.Call("bind", Bind(server, "s")).Call("listen", listen(server, 5)).Octal("mode", Look("s").st_mode);
       const Fd client(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
       l.Call("connect", Connect(client, "s"));
       const Fd accepted(accept4(server, nullptr, nullptr, SOCK_CLOEXEC));
       char b[10];
       l.Count("write", write(client, "hello", 5)).Count("read", read(accepted, b, 10));
       const Fd other(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
       l.Call("in-use", Bind(other, "s"))
           .Call("open", Fd("s", O_RDWR))
           .Call("unlink", unlink("s"))
           .Call("gone", Connect(other, "s"));
     }},
    {"socket-renamed",
     [](Line& l) {
       const Fd server(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
       Bind(server, "s");
       l.Call("rename", rename("s", "t"));
       const Fd client(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
       l.Call("old", Connect(client, "s")).Call("new", Connect(client, "t")).Count("send", write(client, "x", 1));
       link("t", "u");
       const Fd again(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
       l.Call("linked", Connect(again, "u"));
     }},
    {"socket-permission",
     [](Line& l) {
       chmod(".", 0777);
       const Fd server(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
       Bind(server, "s");
       listen(server, 5);
       chmod("s", 0600);
       const Fd client(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
       As(1000, 1000, [&] { l.Call("other", Connect(client, "s")); });
       Make("f");
       l.Call("nobody-listens", Connect(client, "f")).Call("directory", Connect(client, "."));
     }},
    {"program-script",
     [](Line& l) {
       Make("ok", "#!/bin/sh\nexit 7\n", 0755);
       Make("no-bit", "#!/bin/sh\nexit 7\n", 0644);
       Make("no-such", "#!/no/such/program\n", 0755);
       Make("no-format", "text\n", 0755);
       mkdir("d", 0755);
       symlink("ok", "s");
       for (const char* name : {"./ok", "./no-bit", "./no-such", "./no-format", "./d", "./s", "./missing", "./ok/x"}) {
         l.Number(name + 2, InChild([name] {
                    execl(name, name, static_cast<char*>(nullptr));
                    return 100 + errno;
                  }));
       }
     }},
    {"program-by-descriptor",
     [](Line& l) {
       Make("ok", "", 0755);
       unlink("ok");
       const Fd from("/proc/self/exe", O_RDONLY);
       const std::string program = Content(from);
       Make("program", program, 0755);
       const Fd fd("program", O_RDONLY);
       l.Call("unlink", unlink("program")).Number("status", InChild([&fd] {
                                                    char* const arguments[] = {const_cast<char*>("program"), nullptr};
                                                    char* const environment[] = {nullptr};
                                                    const int null = open("/dev/null", O_RDWR);
                                                    dup2(null, 2);
                                                    fexecve(fd, arguments, environment);
                                                    return 100 + errno;
                                                  }));
     }},
    {"program-written-and-run-at-once",
     [](Line& l) {
       int good = 0;
       for (int i = 0; i < 20; i++) {
         const std::string name = "./s" + std::to_string(i);
         Make(name.c_str(), "#!/bin/sh\nexit " + std::to_string(i) + "\n", 0755);
         good += InChild([&name] {
                   execl(name.c_str(), name.c_str(), static_cast<char*>(nullptr));
                   return 100;
                 }) == i;
       }
       l.Number("good", good);
     }},
    {"inotify-files",
     [](Line& l) {
       mkdir("d", 0755);
       const Fd fd(inotify_init1(IN_CLOEXEC));
       l.Number("watch", inotify_add_watch(
                             fd, "d", IN_CREATE | IN_DELETE | IN_MOVE | IN_MODIFY | IN_CLOSE_WRITE | IN_ATTRIB) > 0);
       Make("d/f", "text");
       Events(l, fd);
       chmod("d/f", 0600);
       rename("d/f", "d/g");
       Events(l, fd);
       link("d/g", "h");
       rename("h", "d/h");
       unlink("d/g");
       mkdir("d/sub", 0755);
       rmdir("d/sub");
       Events(l, fd);
     }},
    {"inotify-itself",
     [](Line& l) {
       Make("f", "text");
       mkdir("d", 0755);
       const Fd fd(inotify_init1(IN_CLOEXEC));
       inotify_add_watch(fd, "f", IN_MODIFY | IN_ATTRIB | IN_MOVE_SELF | IN_DELETE_SELF);
       truncate("f", 1);
       write(Fd("f", O_WRONLY), "x", 1);
       Events(l, fd);
       rename("f", "g");
       unlink("g");
       Events(l, fd, IN_IGNORED);
       inotify_add_watch(fd, "d", IN_DELETE_SELF);
       rmdir("d");
       Events(l, fd, IN_IGNORED);
     }},
    {"descriptors-passed",
     [](Line& l) {
       int ends[2];
       if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) Fail("socketpair");
       const pid_t child = fork();
       if (child == 0) {
         const Fd fd("f", O_CREAT | O_RDWR);
         write(fd, "from the child", 14);
         unlink("f");
         char byte = 'x', control[CMSG_SPACE(sizeof(int))] = {};
         iovec data{&byte, 1};
         msghdr m{};
         m.msg_iov = &data;
         m.msg_iovlen = 1;
         m.msg_control = control;
         m.msg_controllen = sizeof control;
         cmsghdr* c = CMSG_FIRSTHDR(&m);
         c->cmsg_level = SOL_SOCKET;
         c->cmsg_type = SCM_RIGHTS;
         c->cmsg_len = CMSG_LEN(sizeof(int));
         const int number = fd;
         memcpy(CMSG_DATA(c), &number, sizeof number);
         _exit(sendmsg(ends[1], &m, 0) == 1 ? 0 : 1);
       }
       int status = 0;
       waitpid(child, &status, 0);
       char byte, control[CMSG_SPACE(sizeof(int))] = {};
       iovec data{&byte, 1};
       msghdr m{};
       m.msg_iov = &data;
       m.msg_iovlen = 1;
       m.msg_control = control;
       m.msg_controllen = sizeof control;
       l.Number("status", status).Count("receive", recvmsg(ends[0], &m, MSG_CMSG_CLOEXEC));
       int got = -1;
       if (CMSG_FIRSTHDR(&m)) memcpy(&got, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof got);
       l.Text("content", Content(Fd(got)));
     }},
    {"proc-self-names",
     [](Line& l) {
       Make("f", "text");
       const Fd fd("f", O_RDONLY);
       char path[4096];
       const auto last = [&path](ssize_t n) {
         const std::string whole(path, n > 0 ? static_cast<size_t>(n) : 0);
         return whole.substr(whole.rfind('/') + 1);
       };
       const std::string name = "/proc/self/fd/" + std::to_string(fd);
       l.Text("open", last(readlink(name.c_str(), path, sizeof path)));
       rename("f", "g");
       l.Text("renamed", last(readlink(name.c_str(), path, sizeof path)));
       unlink("g");
       l.Text("unlinked", last(readlink(name.c_str(), path, sizeof path)));
     }},
    {"memory-of-program-text",
     [](Line& l) {
       Make("f", Pattern(20'000), 0755);
       const Fd fd("f", O_RDONLY);
       const void* p = mmap(nullptr, 20'000, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);
       l.Call("map", p == MAP_FAILED ? -1 : 0).Text("bytes", {static_cast<const char*>(p), 20'000});
       Make("new", Pattern(20'000, 'n'), 0755);
       rename("new", "f");
       l.Text("after", {static_cast<const char*>(p), 20'000});
     }},
};

}  // namespace

std::span<const Case> SpecialCases() { return kCases; }

}  // namespace vrun::suites
