// SPDX-License-Identifier: Apache-2.0
// Locks: flock, process locks, open file locks.
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>

#include <string>

#include "suite.h"

namespace vrun::suites {
namespace {

int Lock(int fd, int command, short type, off_t start, off_t length, struct flock* got = nullptr) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = start;
  lock.l_len = length;
  const int r = fcntl(fd, command, &lock);
  if (got) *got = lock;
  return r;
}

// The errno of an attempt in another process, or 0.
int InOther(const std::function<int()>& attempt) {
  return InChild([&] { return attempt() == 0 ? 0 : errno; });
}

std::string OtherFlock(const char* path, int operation) {
  const int error = InOther([&] { return flock(open(path, O_RDWR | O_CLOEXEC), operation | LOCK_NB); });
  return error == 0 ? "ok" : ErrnoName(error);
}

std::string OtherLock(const char* path, short type, off_t start, off_t length) {
  const int error = InOther([&] { return Lock(open(path, O_RDWR | O_CLOEXEC), F_SETLK, type, start, length); });
  return error == 0 ? "ok" : ErrnoName(error);
}

constexpr Case kCases[] = {
    {"flock",
     [](Line& l) {
       Make("f");
       const Fd fd("f", O_RDWR);
       l.Call("shared", flock(fd, LOCK_SH)).Text("sh", OtherFlock("f", LOCK_SH)).Text("ex", OtherFlock("f", LOCK_EX));
       l.Call("exclusive", flock(fd, LOCK_EX))
           .Text("sh", OtherFlock("f", LOCK_SH))
           .Call("unlock", flock(fd, LOCK_UN))
           .Text("ex", OtherFlock("f", LOCK_EX));
       const Fd directory(".", O_RDONLY | O_DIRECTORY);
       l.Call("directory", flock(directory, LOCK_EX | LOCK_NB))
           .Call("read-only", flock(Fd("f", O_RDONLY), LOCK_EX | LOCK_NB));
     }},
    {"flock-same-process",
     [](Line& l) {
       Make("f");
       Fd a("f", O_RDWR);
       const Fd b("f", O_RDWR);
       const Fd copy(dup(a));
       l.Call("a", flock(a, LOCK_EX | LOCK_NB))
           .Call("b", flock(b, LOCK_EX | LOCK_NB))
           .Call("dup", flock(copy, LOCK_EX | LOCK_NB));
       a.Close();
       l.Call("b", flock(b, LOCK_EX | LOCK_NB))
           .Call("by-dup", flock(copy, LOCK_UN))
           .Call("b", flock(b, LOCK_EX | LOCK_NB));
     }},
    {"flock-inherited",
     [](Line& l) {
       Make("f");
       Fd a("f", O_RDWR);
       flock(a, LOCK_EX);
       int ends[2];
       if (pipe2(ends, O_CLOEXEC) != 0) Fail("pipe");
       const pid_t child = fork();
       if (child == 0) {
         close(ends[1]);
         char c;
         read(ends[0], &c, 1);
         _exit(0);
       }
       a.Close();
       l.Text("child-has-it", OtherFlock("f", LOCK_EX));
       close(ends[1]);
       int status = 0;
       waitpid(child, &status, 0);
       l.Text("child-gone", OtherFlock("f", LOCK_EX));
     }},
    {"flock-waits",
     [](Line& l) {
       Make("f");
       Fd a("f", O_RDWR);
       flock(a, LOCK_EX);
       const pid_t child = fork();
       if (child == 0) {
         a.Close();
         _exit(flock(open("f", O_RDWR | O_CLOEXEC), LOCK_EX) == 0 ? 7 : 8);
       }
       Tick();
       int status = 0;
       l.Number("waits", waitpid(child, &status, WNOHANG)).Call("unlock", flock(a, LOCK_UN));
       waitpid(child, &status, 0);
       l.Number("got-it", WEXITSTATUS(status));
     }},
    {"lock-ranges",
     [](Line& l) {
       Make("f", Pattern(1000));
       const Fd fd("f", O_RDWR);
       l.Call("lock", Lock(fd, F_SETLK, F_WRLCK, 100, 100))
           .Text("same", OtherLock("f", F_WRLCK, 100, 100))
           .Text("overlap", OtherLock("f", F_RDLCK, 150, 100));
       l.Text("before", OtherLock("f", F_WRLCK, 0, 100))
           .Text("after", OtherLock("f", F_WRLCK, 200, 0))
           .Call("split", Lock(fd, F_SETLK, F_UNLCK, 140, 20));
       l.Text("middle", OtherLock("f", F_WRLCK, 140, 20))
           .Text("left", OtherLock("f", F_WRLCK, 139, 1))
           .Text("right", OtherLock("f", F_WRLCK, 160, 1));
       l.Call("downgrade", Lock(fd, F_SETLK, F_RDLCK, 0, 0))
           .Text("read", OtherLock("f", F_RDLCK, 0, 0))
           .Text("write", OtherLock("f", F_WRLCK, 500, 1));
     }},
    {"lock-asked-about",
     [](Line& l) {
       Make("f", Pattern(1000));
       const Fd fd("f", O_RDWR);
       const pid_t self = getpid();
       Lock(fd, F_SETLK, F_WRLCK, 100, 100);
       l.Number("status", InChild([self] {
                  struct flock got {};
                  const Fd own("f", O_RDWR);
                  if (Lock(own, F_GETLK, F_RDLCK, 0, 0, &got) != 0) return 9;
                  return (got.l_type == F_WRLCK) + 2 * (got.l_start == 100) + 4 * (got.l_len == 100) +
                         8 * (got.l_pid == self);
                }));
     }},
    {"lock-gone-with-any-close",
     [](Line& l) {
       Make("f");
       const Fd fd("f", O_RDWR);
       Lock(fd, F_SETLK, F_WRLCK, 0, 0);
       l.Text("before", OtherLock("f", F_WRLCK, 0, 0));
       Fd("f", O_RDONLY).Close();
       l.Text("after", OtherLock("f", F_WRLCK, 0, 0));
     }},
    {"lock-gone-with-process",
     [](Line& l) {
       Make("f");
       int ends[2];
       if (pipe2(ends, O_CLOEXEC) != 0) Fail("pipe");
       const pid_t child = fork();
       if (child == 0) {
         const Fd fd("f", O_RDWR);
         Lock(fd, F_SETLK, F_WRLCK, 0, 0);
         write(ends[1], "x", 1);
         pause();
       }
       char c;
       read(ends[0], &c, 1);
       l.Text("held", OtherLock("f", F_WRLCK, 0, 0));
       kill(child, SIGKILL);
       int status = 0;
       waitpid(child, &status, 0);
       l.Text("killed", OtherLock("f", F_WRLCK, 0, 0));
     }},
    {"lock-not-inherited",
     [](Line& l) {
       Make("f");
       const Fd fd("f", O_RDWR);
       Lock(fd, F_SETLK, F_WRLCK, 0, 0);
       l.Number("child", InOther([&fd] { return Lock(fd, F_SETLK, F_WRLCK, 0, 0); }) == EAGAIN);
     }},
    {"lock-needs-the-right-way-of-opening",
     [](Line& l) {
       Make("f");
       l.Call("write", Lock(Fd("f", O_RDONLY), F_SETLK, F_WRLCK, 0, 0))
           .Call("read", Lock(Fd("f", O_WRONLY), F_SETLK, F_RDLCK, 0, 0));
     }},
    {"lock-waits-and-deadlock",
     [](Line& l) {
       Make("f", "ab");
       const Fd fd("f", O_RDWR);
       Lock(fd, F_SETLK, F_WRLCK, 0, 1);
       int ends[2];
       if (pipe2(ends, O_CLOEXEC) != 0) Fail("pipe");
       const pid_t child = fork();
       if (child == 0) {
         const Fd own("f", O_RDWR);
         Lock(own, F_SETLK, F_WRLCK, 1, 1);
         write(ends[1], "x", 1);
         _exit(Lock(own, F_SETLKW, F_WRLCK, 0, 1) == 0 ? 0 : errno);
       }
       char c;
       read(ends[0], &c, 1);
       // One of the two gets EDEADLK; which one depends on timing.
       const int mine = Lock(fd, F_SETLKW, F_WRLCK, 1, 1) == 0 ? 0 : errno;
       Lock(fd, F_SETLK, F_UNLCK, 0, 0);
       int status = 0;
       waitpid(child, &status, 0);
       l.Number("one-told", (mine == EDEADLK) + (WEXITSTATUS(status) == EDEADLK));
     }},
    {"lock-of-open-file",
     [](Line& l) {
       Make("f");
       Fd a("f", O_RDWR);
       const Fd b("f", O_RDWR);
       l.Call("a", Lock(a, F_OFD_SETLK, F_WRLCK, 0, 10))
           .Call("b", Lock(b, F_OFD_SETLK, F_WRLCK, 5, 10))
           .Call("apart", Lock(b, F_OFD_SETLK, F_WRLCK, 10, 10));
       l.Call("classic", Lock(b, F_SETLK, F_WRLCK, 0, 5));
       struct flock got {};
       l.Call("ask", Lock(b, F_OFD_GETLK, F_WRLCK, 0, 5, &got)).Number("pid", got.l_pid).Number("type", got.l_type);
       Fd("f", O_RDONLY).Close();
       l.Call("still", Lock(b, F_OFD_SETLK, F_WRLCK, 0, 5));
       a.Close();
       l.Call("closed", Lock(b, F_OFD_SETLK, F_WRLCK, 0, 5));
     }},
    {"lock-kinds-apart",
     [](Line& l) {
       Make("f");
       const Fd fd("f", O_RDWR);
       l.Call("flock", flock(fd, LOCK_EX)).Text("fcntl", OtherLock("f", F_WRLCK, 0, 0));
     }},
    {"lock-counts",
     [](Line& l) {
       Make("f", "0");
       pid_t children[4];
       for (pid_t& child : children) {
         child = fork();
         if (child != 0) continue;
         for (int i = 0; i < 25; i++) {
           const Fd fd("f", O_RDWR);
           if (Lock(fd, F_SETLKW, F_WRLCK, 0, 0) != 0) _exit(1);
           const std::string next = std::to_string(std::stoi(Content(fd)) + 1);
           pwrite(fd, next.data(), next.size(), 0);
         }
         _exit(0);
       }
       for (const pid_t child : children) {
         int status = 0;
         waitpid(child, &status, 0);
         l.Number("status", status);
       }
       l.Text("count", Content("f"));
     }},
};

}  // namespace

std::span<const Case> LockCases() { return kCases; }

}  // namespace vrun::suites
