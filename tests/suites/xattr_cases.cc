// SPDX-License-Identifier: Apache-2.0
// Extended attributes, and how POSIX ACLs, which are stored as such, affect modes and permissions.
#include <sys/xattr.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "suite.h"

namespace vrun::suites {
namespace {

int Set(const char* path, const char* name, std::string_view value, int flags = 0) {
  return setxattr(path, name, value.data(), value.size(), flags);
}

std::string Get(const char* path, const char* name) {
  std::string value(65'536, 0);
  const ssize_t n = lgetxattr(path, name, value.data(), value.size());
  return n < 0 ? ErrnoName(errno) : value.substr(0, static_cast<size_t>(n));
}

std::string List(const char* path) {
  char names[65'536];
  const ssize_t n = llistxattr(path, names, sizeof names);
  if (n < 0) return ErrnoName(errno);
  std::vector<std::string> sorted;
  for (const char* p = names; p < names + n; p += strlen(p) + 1) sorted.emplace_back(p);
  std::sort(sorted.begin(), sorted.end());
  std::string all;
  for (const auto& name : sorted) all += name + " ";
  return all;
}

// The kernel's form of an ACL.
struct Entry {
  uint16_t tag, permissions;
  uint32_t id = ~0U;
};
constexpr uint16_t kUserObject = 1, kUser = 2, kGroupObject = 4, kGroup = 8, kMask = 16, kOther = 32;
constexpr const char* kAccess = "system.posix_acl_access";
constexpr const char* kDefault = "system.posix_acl_default";

std::string Acl(std::initializer_list<Entry> entries) {
  const uint32_t version = 2;
  std::string bytes(reinterpret_cast<const char*>(&version), 4);
  for (const Entry& e : entries) bytes.append(reinterpret_cast<const char*>(&e), sizeof e);
  return bytes;
}

// These permissions for user 1000; the others as in mode 0640.
std::string AclForUser(uint16_t permissions, uint16_t mask) {
  return Acl({{kUserObject, 6}, {kUser, permissions, 1000}, {kGroupObject, 4}, {kMask, mask}, {kOther, 0}});
}

constexpr Case kCases[] = {
    {"xattr-basics",
     [](Line& l) {
       Make("f");
       l.Text("none", List("f"))
           .Text("missing", Get("f", "user.a"))
           .Call("set", Set("f", "user.a", "one"))
           .Text("get", Get("f", "user.a"));
       l.Call("again", Set("f", "user.a", std::string_view("t\0wo", 4)))
           .Text("get", Get("f", "user.a"))
           .Call("empty", Set("f", "user.b", ""));
       l.Text("empty", Get("f", "user.b"))
           .Text("list", List("f"))
           .Call("remove", removexattr("f", "user.a"))
           .Call("remove", removexattr("f", "user.a"));
       l.Text("list", List("f"));
     }},
    {"xattr-flags",
     [](Line& l) {
       Make("f");
       l.Call("replace", Set("f", "user.a", "x", XATTR_REPLACE)).Call("create", Set("f", "user.a", "x", XATTR_CREATE));
       l.Call("create", Set("f", "user.a", "y", XATTR_CREATE))
           .Call("replace", Set("f", "user.a", "z", XATTR_REPLACE))
           .Text("get", Get("f", "user.a"));
     }},
    {"xattr-sizes",
     [](Line& l) {
       Make("f");
       Set("f", "user.a", "0123456789");
       char b[100];
       l.Count("size", getxattr("f", "user.a", nullptr, 0))
           .Count("short", getxattr("f", "user.a", b, 5))
           .Count("list", listxattr("f", nullptr, 0));
       l.Count("list-short", listxattr("f", b, 3))
           .Call("3000", Set("f", "user.big", std::string(3000, 'x')))
           .Text("get", Get("f", "user.big"));
       l.Call("too-big", Set("f", "user.huge", std::string(70'000, 'x')));
     }},
    {"xattr-names",
     [](Line& l) {
       Make("f");
       l.Call("longest", Set("f", ("user." + std::string(250, 'n')).c_str(), "x"))
           .Call("longer", Set("f", ("user." + std::string(251, 'n')).c_str(), "x"));
       l.Call("empty", Set("f", "user.", "x"))
           .Call("no-prefix", Set("f", "plain", "x"))
           .Call("unknown", Set("f", "other.x", "x"));
       l.Text("list", List("f"));
     }},
    {"xattr-kinds",
     [](Line& l) {
       mkdir("d", 0755);
       symlink("d", "s");
       mkfifo("p", 0644);
       l.Call("directory", Set("d", "user.a", "d"))
           .Text("get", Get("d", "user.a"))
           .Call("symlink", lsetxattr("s", "user.a", "x", 1, 0));
       l.Call("fifo", Set("p", "user.a", "x"))
           .Call("through", Set("s", "user.b", "x"))
           .Text("list", List("d"))
           .Text("link", List("s"));
     }},
    {"xattr-descriptor",
     [](Line& l) {
       Make("f");
       const Fd fd("f", O_RDWR);
       char b[10];
       l.Call("set", fsetxattr(fd, "user.a", "one", 3, 0))
           .Count("get", fgetxattr(fd, "user.a", b, 10))
           .Count("list", flistxattr(fd, b, 10));
       unlink("f");
       l.Call("unlinked", fsetxattr(fd, "user.b", "two", 3, 0))
           .Count("get", fgetxattr(fd, "user.b", b, 10))
           .Call("remove", fremovexattr(fd, "user.a"));
     }},
    {"xattr-permission",
     [](Line& l) {
       Make("f", "", 0644);
       Set("f", "user.a", "x");
       As(1000, 1000, [&] {
         l.Text("read", Get("f", "user.a"))
             .Call("write", Set("f", "user.a", "y"))
             .Call("remove", removexattr("f", "user.a"));
       });
       chmod("f", 0600);
       As(1000, 1000, [&] {
         l.Text("read", Get("f", "user.a")).Text("list", List("f")).Call("trusted", Set("f", "trusted.x", "x"));
       });
       l.Text("trusted", Get("f", "trusted.y"));
     }},
    {"xattr-follows-the-file",
     [](Line& l) {
       Make("f");
       Set("f", "user.a", "x");
       link("f", "g");
       rename("f", "h");
       const Fd fd("h", O_WRONLY | O_TRUNC);
       write(fd, "new", 3);
       l.Text("g", Get("g", "user.a")).Text("h", Get("h", "user.a"));
       Make("new");
       rename("new", "h");
       l.Text("replaced", Get("h", "user.a")).Text("g", Get("g", "user.a"));
     }},
    {"xattr-many",
     [](Line& l) {
       Make("f");
       int good = 0;
       for (int i = 0; i < 50; i++) good += Set("f", ("user.n" + std::to_string(i)).c_str(), std::to_string(i)) == 0;
       l.Number("good", good).Text("list", List("f"));
     }},
    {"acl-access",
     [](Line& l) {
       Make("f", "text", 0640);
       l.Call("set", Set("f", kAccess, AclForUser(6, 6)))
           .Octal("mode", Look("f").st_mode & 07777)
           .Text("get", Get("f", kAccess))
           .Text("list", List("f"));
       As(1000, 1000, [&] { l.Call("user-r", Fd("f", O_RDONLY)).Call("user-w", Fd("f", O_WRONLY)); });
       As(1001, 1001, [&] { l.Call("other", Fd("f", O_RDONLY)); });
     }},
    {"acl-mask",
     [](Line& l) {
       Make("f", "text", 0640);
       l.Call("set", Set("f", kAccess, AclForUser(6, 4))).Octal("mode", Look("f").st_mode & 07777);
       As(1000, 1000, [&] { l.Call("user-r", Fd("f", O_RDONLY)).Call("user-w", Fd("f", O_WRONLY)); });
       l.Call("chmod", chmod("f", 0660)).Text("acl", Get("f", kAccess));
       As(1000, 1000, [&] { l.Call("user-w", Fd("f", O_WRONLY)); });
       l.Call("chmod", chmod("f", 0600)).Text("acl", Get("f", kAccess));
       As(1000, 1000, [&] { l.Call("user-r", Fd("f", O_RDONLY)); });
     }},
    {"acl-that-is-a-mode",
     [](Line& l) {
       Make("f", "text", 0640);
       l.Call("set", Set("f", kAccess, Acl({{kUserObject, 7}, {kGroupObject, 5}, {kOther, 1}})))
           .Octal("mode", Look("f").st_mode & 07777);
       l.Text("list", List("f")).Text("get", Get("f", kAccess));
     }},
    {"acl-removed",
     [](Line& l) {
       Make("f", "text", 0640);
       Set("f", kAccess, AclForUser(6, 6));
       l.Call("remove", removexattr("f", kAccess)).Octal("mode", Look("f").st_mode & 07777).Text("list", List("f"));
       As(1000, 1000, [&] { l.Call("user", Fd("f", O_RDONLY)); });
     }},
    {"acl-wrong",
     [](Line& l) {
       Make("f", "text", 0640);
       l.Call("short", Set("f", kAccess, "abc"))
           .Call("empty", Set("f", kAccess, ""))
           .Call("no-mask",
                 Set("f", kAccess, Acl({{kUserObject, 6}, {kUser, 6, 1000}, {kGroupObject, 4}, {kOther, 0}})));
       l.Call("order", Set("f", kAccess, Acl({{kOther, 0}, {kUserObject, 6}, {kGroupObject, 4}})))
           .Call("default-of-file", Set("f", kDefault, AclForUser(6, 6)));
       l.Octal("mode", Look("f").st_mode & 07777).Text("list", List("f"));
     }},
    {"acl-by-other-user",
     [](Line& l) {
       Make("f", "text", 0644);
       As(1000, 1000,
          [&] { l.Call("set", Set("f", kAccess, AclForUser(6, 6))).Call("remove", removexattr("f", kAccess)); });
       l.Text("list", List("f"));
     }},
    {"acl-default",
     [](Line& l) {
       mkdir("d", 0755);
       l.Call("set", Set("d", kDefault, AclForUser(6, 6)))
           .Octal("d", Look("d").st_mode & 07777)
           .Text("list", List("d"));
       Make("d/made-0644", "", 0600);
       open("d/f", O_CREAT | O_WRONLY | O_CLOEXEC, 0666);
       open("d/g", O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
       mkdir("d/sub", 0777);
       mkfifo("d/p", 0666);
       symlink("f", "d/s");
       for (const char* path : {"d/f", "d/g", "d/sub", "d/p"})
         l.Octal("mode", Look(path).st_mode & 07777).Text("acl", Get(path, kAccess));
       l.Text("inherited", Get("d/sub", kDefault)).Text("link", List("d/s"));
       As(1000, 1000, [&] { l.Call("f", Fd("d/f", O_RDWR)).Call("g", Fd("d/g", O_RDONLY)); });
     }},
    {"acl-default-and-umask",
     [](Line& l) {
       mkdir("d", 0755);
       Set("d", kDefault, AclForUser(7, 7));
       umask(077);
       open("d/f", O_CREAT | O_WRONLY | O_CLOEXEC, 0666);
       mkdir("d/sub", 0755);
       l.Octal("f", Look("d/f").st_mode & 07777)
           .Text("acl", Get("d/f", kAccess))
           .Octal("sub", Look("d/sub").st_mode & 07777);
       l.Call("remove", removexattr("d", kDefault));
       open("d/g", O_CREAT | O_WRONLY | O_CLOEXEC, 0666);
       l.Octal("g", Look("d/g").st_mode & 07777).Text("list", List("d/g"));
     }},
    {"acl-of-directory",
     [](Line& l) {
       mkdir("d", 0700);
       Make("d/f", "text", 0644);
       l.Call("set",
              Set("d", kAccess, Acl({{kUserObject, 7}, {kUser, 5, 1000}, {kGroupObject, 0}, {kMask, 5}, {kOther, 0}})));
       As(1000, 1000, [&] {
         l.Text("names", Names("d")).Text("content", Content("d/f")).Call("make", Fd("d/g", O_CREAT | O_WRONLY));
       });
       As(1001, 1001, [&] { l.Text("names", Names("d")); });
     }},
    {"acl-groups",
     [](Line& l) {
       Make("f", "text", 0600);
       l.Call("set", Set("f", kAccess,
                         Acl({{kUserObject, 6}, {kGroupObject, 0}, {kGroup, 4, 1001}, {kMask, 4}, {kOther, 0}})));
       As(1000, 1001, [&] { l.Call("group-r", Fd("f", O_RDONLY)).Call("group-w", Fd("f", O_WRONLY)); });
       As(1000, 1000, [&] { l.Call("other", Fd("f", O_RDONLY)); });
     }},
};

}  // namespace

std::span<const Case> XattrCases() { return kCases; }

}  // namespace vrun::suites
