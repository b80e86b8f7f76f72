// SPDX-License-Identifier: Apache-2.0
// Sizes, holes, and what is allocated.
#include <linux/falloc.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>

#include <string>

#include "suite.h"

namespace vrun::suites {
namespace {

constexpr off_t kMiB = 1 << 20;

constexpr Case kCases[] = {
    {"truncate-shrink-grow",
     [](Line& l) {
       Make("f", Pattern(10'000));
       l.Call("shrink", truncate("f", 5'000)).Number("size", Look("f").st_size).Call("grow", truncate("f", 9'000));
       l.Text("content", Content("f"));
     }},
    {"truncate-to-each",
     [](Line& l) {
       for (const off_t size : {0, 1, 4095, 4096, 4097, 65'535, 65'536, 65'537, 131'072}) {
         const std::string name = "f" + std::to_string(size);
         Make(name.c_str(), Pattern(100'000));
         l.Call("truncate", truncate(name.c_str(), size)).Text("content", Content(name.c_str()));
       }
     }},
    {"truncate-large",
     [](Line& l) {
       Make("f", "begin");
       l.Call("grow", truncate("f", int64_t{1} << 40)).Number("size", Look("f").st_size);
       char c = 'x';
       const Fd fd("f", O_RDWR);
       l.Count("read", pread(fd, &c, 1, (int64_t{1} << 40) - 1)).Number("byte", c).Call("cut", ftruncate(fd, 5));
     }},
    {"truncate-errors",
     [](Line& l) {
       Make("f", "text");
       mkdir("d", 0755);
       symlink("f", "s");
       mkfifo("p", 0644);
       l.Call("negative", truncate("f", -1)).Call("directory", truncate("d", 0)).Call("missing", truncate("x", 0));
       l.Call("link", truncate("s", 2))
           .Text("content", Content("f"))
           .Call("fifo", truncate("p", 0))
           .Call("below", truncate("f/x", 0));
       l.Call("too-large", truncate("f", INT64_MAX));
     }},
    {"truncate-permission",
     [](Line& l) {
       Make("f", "text", 0644);
       Make("g", "text", 0666);
       As(1000, 1000, [&] { l.Call("read-only", truncate("f", 0)).Call("writable", truncate("g", 1)); });
       const Fd fd("f", O_RDWR);
       As(1000, 1000, [&] { l.Call("opened-before", ftruncate(fd, 2)); });
       l.Text("f", Content("f")).Text("g", Content("g"));
     }},
    {"truncate-while-others-have-it-open",
     [](Line& l) {
       Make("f", Pattern(100'000));
       const Fd a("f", O_RDWR);
       const Fd b("f", O_RDONLY);
       l.Call("by-name", truncate("f", 50'000))
           .Number("a", Look(a).st_size)
           .Call("by-fd", ftruncate(a, 70'000))
           .Text("b", Content(b));
     }},
    {"hole-seek",
     [](Line& l) {
       const Fd fd("f", O_CREAT | O_RDWR);
       ftruncate(fd, 4 * kMiB);
       pwrite(fd, Pattern(65'536).data(), 65'536, kMiB);
       fsync(fd);
       l.Count("data", lseek(fd, 0, SEEK_DATA))
           .Count("hole", lseek(fd, kMiB, SEEK_HOLE))
           .Count("no-data", lseek(fd, 2 * kMiB, SEEK_DATA));
       l.Count("in-hole", lseek(fd, 10, SEEK_HOLE))
           .Count("end", lseek(fd, 4 * kMiB, SEEK_HOLE))
           .Count("beyond", lseek(fd, 5 * kMiB, SEEK_DATA));
     }},
    {"hole-none",
     [](Line& l) {
       Make("f", Pattern(65'536));
       const Fd fd("f", O_RDWR);
       fsync(fd);
       l.Count("hole", lseek(fd, 0, SEEK_HOLE))
           .Count("data", lseek(fd, 100, SEEK_DATA))
           .Count("end", lseek(fd, 65'536, SEEK_DATA));
     }},
    {"hole-takes-no-space",
     [](Line& l) {
       const Fd fd("f", O_CREAT | O_RDWR);
       ftruncate(fd, 64 * kMiB);
       pwrite(fd, "x", 1, 50 * kMiB);
       fsync(fd);
       l.Number("sparse", Look(fd).st_blocks < 1000).Number("size", Look(fd).st_size);
     }},
    {"fallocate-plain",
     [](Line& l) {
       Make("f", "text");
       const Fd fd("f", O_RDWR);
       l.Call("fallocate", fallocate(fd, 0, 0, kMiB)).Number("size", Look(fd).st_size).Text("content", Content(fd));
       l.Number("allocated", Look(fd).st_blocks * 512 >= kMiB);
     }},
    {"fallocate-keep-size",
     [](Line& l) {
       Make("f", "text");
       const Fd fd("f", O_RDWR);
       l.Call("fallocate", fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, kMiB)).Number("size", Look(fd).st_size);
       l.Number("allocated", Look(fd).st_blocks * 512 >= kMiB).Text("content", Content(fd));
     }},
    {"fallocate-punch",
     [](Line& l) {
       Make("f", Pattern(300'000));
       const Fd fd("f", O_RDWR);
       l.Call("punch", fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 65'536, 131'072))
           .Text("content", Content(fd));
       l.Call("unaligned", fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 1000, 10))
           .Text("content", Content(fd));
       l.Call("beyond", fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 290'000, 100'000))
           .Number("size", Look(fd).st_size);
       l.Call("no-keep", fallocate(fd, FALLOC_FL_PUNCH_HOLE, 0, 10));
     }},
    {"fallocate-zero",
     [](Line& l) {
       Make("f", Pattern(300'000));
       const Fd fd("f", O_RDWR);
       l.Call("zero", fallocate(fd, FALLOC_FL_ZERO_RANGE, 10'000, 100'000)).Text("content", Content(fd));
       l.Call("keep", fallocate(fd, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, 290'000, 100'000))
           .Number("size", Look(fd).st_size);
       l.Call("grow", fallocate(fd, FALLOC_FL_ZERO_RANGE, 290'000, 100'000))
           .Number("size", Look(fd).st_size)
           .Text("content", Content(fd));
     }},
    {"fallocate-errors",
     [](Line& l) {
       Make("f", "text");
       mkdir("d", 0755);
       const Fd fd("f", O_RDWR);
       l.Call("negative", fallocate(fd, 0, -1, 10))
           .Call("empty", fallocate(fd, 0, 0, 0))
           .Call("readonly", fallocate(Fd("f", O_RDONLY), 0, 0, 10));
       l.Call("directory", fallocate(Fd("d", O_RDONLY), 0, 0, 10)).Call("too-large", fallocate(fd, 0, INT64_MAX, 10));
       l.Number("posix", posix_fallocate(fd, 0, 10'000)).Number("size", Look(fd).st_size);
     }},
    {"fallocate-append",
     [](Line& l) {
       Make("f", "text");
       const Fd fd("f", O_WRONLY | O_APPEND);
       l.Call("keep", fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 100'000))
           .Count("write", write(fd, "more", 4))
           .Text("content", Content("f"));
     }},
    {"statfs",
     [](Line& l) {
       struct statvfs s {};
       l.Call("statvfs", statvfs(".", &s))
           .Number("name", static_cast<int64_t>(s.f_namemax))
           .Number("block", s.f_bsize > 0);
       l.Number("blocks", s.f_blocks > 0)
           .Number("free", s.f_bavail > 0 && s.f_bavail <= s.f_blocks)
           .Number("files", s.f_ffree > 0);
       Make("f");
       l.Call("file", fstatvfs(Fd("f", O_RDONLY), &s))
           .Call("missing", statvfs("x", &s))
           .Number("readonly", s.f_flag & ST_RDONLY);
     }},
    {"pathconf",
     [](Line& l) {
       Make("f");
       l.Count("name", pathconf(".", _PC_NAME_MAX))
           .Count("path", pathconf(".", _PC_PATH_MAX))
           .Count("pipe", pathconf(".", _PC_PIPE_BUF));
     }},
};

}  // namespace

std::span<const Case> SpaceCases() { return kCases; }

}  // namespace vrun::suites
