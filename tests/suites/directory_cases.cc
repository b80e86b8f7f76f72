// SPDX-License-Identifier: Apache-2.0
// Directories: creating, removing, counting, listing while they change.
#include <dirent.h>

#include <cstring>
#include <set>
#include <string>

#include "suite.h"

namespace vrun::suites {
namespace {

std::string Numbered(int i) { return "d/name-" + std::to_string(i); }

void Fill(int names) {
  mkdir("d", 0755);
  for (int i = 0; i < names; i++) Make(Numbered(i).c_str());
}

bool IsDots(const dirent* e) { return strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0; }

constexpr Case kCases[] = {
    {"mkdir",
     [](Line& l) {
       l.Call("make", mkdir("d", 0777))
           .Octal("mode", Look("d").st_mode)
           .Text("nlink", DirectoryLinks("d", 0))
           .Call("again", mkdir("d", 0755));
       Make("f");
       symlink("nowhere", "s");
       l.Call("file", mkdir("f", 0755))
           .Call("dangling", mkdir("s", 0755))
           .Call("missing", mkdir("x/y", 0755))
           .Call("below", mkdir("f/x", 0755));
       l.Call("slash", mkdir("e/", 0755))
           .Call("dot", mkdir(".", 0755))
           .Call("bits", mkdir("g", 07777))
           .Octal("mode", Look("g").st_mode);
     }},
    {"rmdir",
     [](Line& l) {
       mkdir("d", 0755);
       mkdir("full", 0755);
       Make("full/x");
       Make("f");
       l.Call("full", rmdir("full"))
           .Call("file", rmdir("f"))
           .Call("missing", rmdir("x"))
           .Call("dot", rmdir("d/."))
           .Call("dotdot", rmdir("d/.."));
       l.Call("slash", rmdir("d/"))
           .Text("names", Names("."))
           .Call("unlink", unlink("full/x"))
           .Call("empty", rmdir("full"));
     }},
    {"directory-links",
     [](Line& l) {
       mkdir("d", 0755);
       l.Text("new", DirectoryLinks("d", 0));
       for (int i = 0; i < 5; i++) mkdir(Numbered(i).c_str(), 0755);
       l.Text("five", DirectoryLinks("d", 5));
       Make("d/file");
       rmdir(Numbered(0).c_str());
       l.Text("four", DirectoryLinks("d", 4))
           .Call("out", rename(Numbered(1).c_str(), "out"))
           .Text("three", DirectoryLinks("d", 3));
       l.Call("over", rename("out", Numbered(2).c_str())).Text("three", DirectoryLinks("d", 3));
     }},
    {"mkdir-permission",
     [](Line& l) {
       mkdir("d", 0755);
       mkdir("open", 0777);
       chmod("open", 0777);
       As(1000, 1000, [&] {
         l.Call("closed", mkdir("d/x", 0755))
             .Call("open", mkdir("open/x", 0755))
             .Call("below", mkdir("open/x/y", 0755))
             .Call("rmdir", rmdir("d"));
       });
       l.Number("uid", Look("open/x").st_uid).Number("gid", Look("open/x").st_gid);
     }},
    {"listing-types",
     [](Line& l) {
       mkdir("d", 0755);
       Make("d/file");
       mkdir("d/directory", 0755);
       symlink("x", "d/link");
       mkfifo("d/fifo", 0644);
       DIR* d = opendir("d");
       std::set<std::string> seen;
       int inodes = 0;
       while (const dirent* e = readdir(d)) {
         seen.insert(std::string(e->d_name) + ":" + std::to_string(e->d_type));
         if (!IsDots(e)) inodes += Look(("d/" + std::string(e->d_name)).c_str()).st_ino == e->d_ino;
       }
       closedir(d);
       for (const auto& one : seen) l.Text("", one);
       l.Number("inodes", inodes);
     }},
    {"listing-large",
     [](Line& l) {
       Fill(2'000);
       DIR* d = opendir("d");
       std::multiset<std::string> seen;
       while (const dirent* e = readdir(d)) seen.insert(e->d_name);
       l.Number("all", static_cast<int64_t>(seen.size()))
           .Number("different", static_cast<int64_t>(std::set(seen.begin(), seen.end()).size()));
       rewinddir(d);
       int64_t again = 0;
       while (readdir(d)) again++;
       closedir(d);
       l.Number("again", again);
       for (int i = 0; i < 2'000; i++) unlink(Numbered(i).c_str());
       l.Call("rmdir", rmdir("d"));
     }},
    {"listing-seek",
     [](Line& l) {
       Fill(300);
       DIR* d = opendir("d");
       long places[302];
       std::string names[302];
       int n = 0;
       places[0] = telldir(d);
       while (const dirent* e = readdir(d)) {
         names[n++] = e->d_name;
         if (n < 302) places[n] = telldir(d);
       }
       int same = 0;
       for (int i = n - 1; i >= 0; i -= 7) {
         seekdir(d, places[i]);
         const dirent* e = readdir(d);
         same += e && names[i] == e->d_name;
       }
       closedir(d);
       l.Number("all", n).Number("same", same);
     }},
    {"listing-while-names-go",
     [](Line& l) {
       Fill(500);
       DIR* d = opendir("d");
       int seen = 0;
       while (const dirent* e = readdir(d)) {
         if (!IsDots(e)) seen += unlink(("d/" + std::string(e->d_name)).c_str()) == 0;
       }
       closedir(d);
       l.Number("seen", seen).Text("left", Names("d"));
     }},
    {"listing-while-names-come",
     [](Line& l) {
       Fill(500);
       DIR* d = opendir("d");
       std::multiset<std::string> seen;
       for (int i = 0; const dirent* e = readdir(d); i++) {
         seen.insert(e->d_name);
         if (i < 100) Make(("d/later-" + std::to_string(i)).c_str());
       }
       closedir(d);
       int once = 0;
       for (int i = 0; i < 500; i++) once += seen.count("name-" + std::to_string(i)) == 1;
       l.Number("once", once);
     }},
    {"listing-while-names-move",
     [](Line& l) {
       Fill(500);
       mkdir("e", 0755);
       DIR* d = opendir("d");
       int moved = 0, rounds = 0;
       while (const dirent* e = readdir(d)) {
         if (!IsDots(e))
           moved += rename(("d/" + std::string(e->d_name)).c_str(), ("e/" + std::string(e->d_name)).c_str()) == 0;
         if (rounds++ > 5'000) break;
       }
       closedir(d);
       l.Number("moved", moved).Number("ends", rounds < 5'000).Text("left", Names("d")).Text("there", Names("e"));
     }},
    {"listing-rename-in-place-ends",
     [](Line& l) {
       Fill(200);
       DIR* d = opendir("d");
       int rounds = 0;
       while (const dirent* e = readdir(d)) {
         if (!IsDots(e)) rename(("d/" + std::string(e->d_name)).c_str(), ("d/x-" + std::to_string(rounds)).c_str());
         if (rounds++ > 100'000) break;
       }
       closedir(d);
       l.Number("ends", rounds < 100'000);
       for (int i = 0; i <= rounds; i++) unlink(("d/x-" + std::to_string(i)).c_str());
     }},
    {"listing-removed-directory",
     [](Line& l) {
       mkdir("d", 0755);
       DIR* d = opendir("d");
       rmdir("d");
       int names = 0;
       while (readdir(d)) names++;
       closedir(d);
       l.Number("names", names);
     }},
    {"listing-permission",
     [](Line& l) {
       Fill(3);
       chmod("d", 0711);
       As(1000, 1000, [&] { l.Text("names", Names("d")).Call("known", access("d/name-1", F_OK)); });
       chmod("d", 0744);
       As(1000, 1000, [&] { l.Text("names", Names("d")).Call("known", access("d/name-1", F_OK)); });
     }},
    {"names-made-and-removed-again",
     [](Line& l) {
       mkdir("d", 0755);
       int good = 0;
       for (int i = 0; i < 200; i++) {
         Make("d/f", std::to_string(i));
         good += Content("d/f") == std::to_string(i) && unlink("d/f") == 0 && access("d/f", F_OK) != 0;
         good += mkdir("d/f", 0755) == 0 && rmdir("d/f") == 0 && symlink("x", "d/f") == 0 && unlink("d/f") == 0;
       }
       l.Number("good", good).Text("left", Names("d"));
     }},
    {"names-in-other-case",
     [](Line& l) {
       Make("File", "upper");
       l.Text("lower", Content("file")).Call("make", Fd("file", O_CREAT | O_EXCL | O_WRONLY)).Text("names", Names("."));
     }},
};

}  // namespace

std::span<const Case> DirectoryCases() { return kCases; }

}  // namespace vrun::suites
