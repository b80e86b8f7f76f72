// SPDX-License-Identifier: Apache-2.0
// Reading, writing, mappings, and copies between files.
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/uio.h>

#include <signal.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "suite.h"

namespace vrun::suites {
namespace {

char* Map(int fd, size_t size, int protection, int flags, off_t at = 0) {
  void* p = mmap(nullptr, size, protection, flags, fd, at);
  if (p == MAP_FAILED) Fail("mmap");
  return static_cast<char*>(p);
}

// The signal that ends a process which touches the byte, or 0.
int Touch(const char* p) {
  const int status = InChild([p] {
    signal(SIGBUS, SIG_DFL);
    return *static_cast<const volatile char*>(p) == 1 ? 0 : 0;
  });
  return status >= 128 ? status - 128 : 0;
}

// For O_DIRECT: aligned, and of a whole number of blocks.
struct Block {
  explicit Block(size_t size, char fill) : size(size) {
    if (posix_memalign(&p, 4096, size) != 0) Fail("memory");
    memset(p, fill, size);
  }
  ~Block() { free(p); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  std::string_view text() const { return {static_cast<char*>(p), size}; }
  void* p = nullptr;
  size_t size;
};

constexpr Case kCases[] = {
    {"data-write-read",
     [](Line& l) {
       const Fd fd("f", O_CREAT | O_RDWR);
       const std::string bytes = Pattern(300'000);
       l.Count("write", write(fd, bytes.data(), bytes.size()))
           .Number("same", Content("f") == bytes)
           .Text("content", Content("f"));
     }},
    {"data-sparse-write",
     [](Line& l) {
       const Fd fd("f", O_CREAT | O_RDWR);
       l.Count("pwrite", pwrite(fd, "end", 3, 200'000)).Number("size", Look(fd).st_size).Text("content", Content(fd));
       l.Count("pwrite", pwrite(fd, "middle", 6, 100'000)).Text("content", Content(fd));
     }},
    {"data-seek",
     [](Line& l) {
       Make("f", "0123456789");
       const Fd fd("f", O_RDWR);
       l.Count("end", lseek(fd, -3, SEEK_END))
           .Count("beyond", lseek(fd, 100, SEEK_END))
           .Count("before", lseek(fd, -1, SEEK_SET));
       char c;
       l.Count("read", read(fd, &c, 1)).Count("whence", lseek(fd, 0, 99)).Number("size", Look(fd).st_size);
     }},
    {"data-read-at-end",
     [](Line& l) {
       Make("f", "0123456789");
       const Fd fd("f", O_RDONLY);
       char b[20];
       l.Count("across", pread(fd, b, 20, 5)).Count("at", pread(fd, b, 20, 10)).Count("beyond", pread(fd, b, 20, 1000));
       l.Count("negative", pread(fd, b, 20, -1)).Count("nothing", read(fd, b, 0));
     }},
    {"data-vectors",
     [](Line& l) {
       const Fd fd("f", O_CREAT | O_RDWR);
       char a[] = "one", b[] = "two", c[] = "three";
       const iovec out[] = {{a, 3}, {b, 3}, {c, 5}};
       l.Count("writev", writev(fd, out, 3)).Count("pwritev", pwritev(fd, out, 3, 5)).Text("content", Content(fd));
       char x[4], y[100];
       const iovec in[] = {{x, 4}, {y, 100}};
       l.Count("preadv", preadv(fd, in, 2, 1)).Text("x", {x, 4}).Text("y", {y, 11});
       l.Count("append", pwritev2(fd, out, 1, 0, RWF_APPEND)).Count("dsync", pwritev2(fd, out, 1, 0, RWF_DSYNC));
       l.Text("content", Content(fd));
     }},
    {"data-write-beyond-limit",
     [](Line& l) {
       signal(SIGXFSZ, SIG_IGN);
       const rlimit limit{10'000, 10'000};
       setrlimit(RLIMIT_FSIZE, &limit);
       const Fd fd("f", O_CREAT | O_RDWR);
       const std::string bytes = Pattern(8'000);
       l.Count("first", write(fd, bytes.data(), bytes.size())).Count("short", write(fd, bytes.data(), bytes.size()));
       l.Count("none", write(fd, bytes.data(), bytes.size()))
           .Call("truncate", ftruncate(fd, 20'000))
           .Number("size", Look(fd).st_size);
     }},
    {"data-limit-signal",
     [](Line& l) {
       l.Number("status", InChild([] {
                  const rlimit limit{10, 10};
                  setrlimit(RLIMIT_FSIZE, &limit);
                  const Fd fd("f", O_CREAT | O_RDWR);
                  return write(fd, "0123456789abc", 13) == 10 && write(fd, "x", 1) < 0 ? 0 : 1;
                }));
     }},
    {"data-huge-offset",
     [](Line& l) {
       const Fd fd("f", O_CREAT | O_RDWR);
       l.Count("write", pwrite(fd, "x", 1, int64_t{3} << 40)).Number("size", Look(fd).st_size);
       l.Count("too-far", pwrite(fd, "x", 1, INT64_MAX))
           .Call("truncate", ftruncate(fd, 5))
           .Text("content", Content(fd));
     }},
    {"data-readers-see-writes",
     [](Line& l) {
       const Fd writer("f", O_CREAT | O_WRONLY);
       const Fd reader("f", O_RDONLY);
       const int same = InChild([&] {
         int good = 0;
         for (int i = 0; i < 50; i++) {
           const std::string text = "line " + std::to_string(i) + "\n";
           write(writer, text.data(), text.size());
           char b[100];
           const ssize_t n = read(reader, b, sizeof b);
           good += n == static_cast<ssize_t>(text.size()) && memcmp(b, text.data(), text.size()) == 0;
         }
         return good;
       });
       l.Number("same", same);
     }},
    {"data-sync-calls",
     [](Line& l) {
       const Fd fd("f", O_CREAT | O_RDWR);
       write(fd, "text", 4);
       l.Call("fsync", fsync(fd))
           .Call("fdatasync", fdatasync(fd))
           .Call("range", sync_file_range(fd, 0, 4, SYNC_FILE_RANGE_WRITE));
       l.Call("syncfs", syncfs(fd))
           .Call("directory", fsync(Fd(".", O_RDONLY | O_DIRECTORY)))
           .Call("rdonly", fsync(Fd("f", O_RDONLY)));
     }},
    {"data-advise",
     [](Line& l) {
       Make("f", Pattern(100'000));
       const Fd fd("f", O_RDWR);
       for (const int advice : {POSIX_FADV_SEQUENTIAL, POSIX_FADV_RANDOM, POSIX_FADV_WILLNEED, POSIX_FADV_DONTNEED}) {
         l.Number("advise", posix_fadvise(fd, 0, 0, advice));
       }
       l.Call("readahead", readahead(fd, 0, 50'000)).Text("content", Content(fd));
     }},
    {"map-shared-write",
     [](Line& l) {
       Make("f", Pattern(10'000));
       const Fd fd("f", O_RDWR);
       char* p = Map(fd, 10'000, PROT_READ | PROT_WRITE, MAP_SHARED);
       memcpy(p + 4090, "across pages", 12);
       l.Text("seen", Content("f"))
           .Call("msync", msync(p, 10'000, MS_SYNC))
           .Text("seen", Content(fd))
           .Call("munmap", munmap(p, 10'000));
       l.Text("after", Content("f"));
     }},
    {"map-shared-sees-writes",
     [](Line& l) {
       Make("f", Pattern(10'000));
       const Fd fd("f", O_RDWR);
       const char* p = Map(fd, 10'000, PROT_READ, MAP_SHARED);
       l.Text("before", {p + 5000, 5}).Count("pwrite", pwrite(fd, "WRITE", 5, 5000)).Text("after", {p + 5000, 5});
       const Fd other("f", O_WRONLY);
       l.Count("pwrite", pwrite(other, "OTHER", 5, 5000)).Text("after", {p + 5000, 5});
     }},
    {"map-private",
     [](Line& l) {
       Make("f", Pattern(10'000));
       const Fd fd("f", O_RDONLY);
       char* p = Map(fd, 10'000, PROT_READ | PROT_WRITE, MAP_PRIVATE);
       memcpy(p, "private", 7);
       l.Text("mapped", {p, 7}).Text("file", Content("f").substr(0, 7)).Call("msync", msync(p, 10'000, MS_SYNC));
       l.Text("file", Content("f").substr(0, 7));
     }},
    {"map-after-close",
     [](Line& l) {
       Make("f", Pattern(10'000));
       Fd fd("f", O_RDWR);
       char* p = Map(fd, 10'000, PROT_READ | PROT_WRITE, MAP_SHARED);
       fd.Close();
       memcpy(p + 100, "after the close", 15);
       l.Text("file", Content("f")).Call("unmap", munmap(p, 10'000)).Text("file", Content("f"));
     }},
    {"map-unlinked",
     [](Line& l) {
       Make("f", Pattern(10'000));
       Fd fd("f", O_RDWR);
       char* p = Map(fd, 10'000, PROT_READ | PROT_WRITE, MAP_SHARED);
       fd.Close();
       l.Call("unlink", unlink("f"));
       p[9'999] = 'z';
       l.Text("mapped", {p, 10'000}).Call("msync", msync(p, 10'000, MS_SYNC));
     }},
    {"map-replaced",
     [](Line& l) {
       Make("f", Pattern(10'000));
       Make("g", Pattern(10'000, 'b'));
       const char* p = Map(Fd("f", O_RDONLY), 10'000, PROT_READ, MAP_SHARED);
       rename("g", "f");
       l.Text("mapped", {p, 10'000}).Text("name", Content("f"));
     }},
    {"map-tail-of-page",
     [](Line& l) {
       Make("f", "abc");
       const Fd fd("f", O_RDWR);
       char* p = Map(fd, 4096, PROT_READ | PROT_WRITE, MAP_SHARED);
       l.Number("tail", p[3]).Number("tail", p[4095]);
       p[10] = 'x';
       msync(p, 4096, MS_SYNC);
       munmap(p, 4096);
       l.Text("content", Content("f")).Call("grow", ftruncate(fd, 20)).Text("content", Content("f"));
     }},
    {"map-beyond-end",
     [](Line& l) {
       Make("f", "abc");
       const Fd fd("f", O_RDWR);
       const char* p = Map(fd, 3 * 4096, PROT_READ, MAP_SHARED);
       l.Number("first", Touch(p))
           .Number("second", Touch(p + 4096))
           .Call("grow", ftruncate(fd, 5000))
           .Number("second", Touch(p + 4096));
       l.Call("shrink", ftruncate(fd, 1)).Number("second", Touch(p + 4096)).Number("first", Touch(p + 100));
     }},
    {"map-truncate-zeroes",
     [](Line& l) {
       Make("f", Pattern(8192));
       const Fd fd("f", O_RDWR);
       const char* p = Map(fd, 8192, PROT_READ, MAP_SHARED);
       const char before = p[2000];
       ftruncate(fd, 1500);
       ftruncate(fd, 8192);
       l.Number("before", before)
           .Number("kept", p[1499])
           .Number("cut", p[2000])
           .Number("cut", p[8000])
           .Text("file", Content("f"));
     }},
    {"map-permission",
     [](Line& l) {
       Make("f", "abc");
       const Fd reader("f", O_RDONLY);
       const Fd writer("f", O_WRONLY);
       const auto try_map = [](int fd, int protection, int flags) {
         return mmap(nullptr, 4096, protection, flags, fd, 0) == MAP_FAILED ? -1 : 0;
       };
       l.Call("ro-shared-w", try_map(reader, PROT_READ | PROT_WRITE, MAP_SHARED));
       l.Call("ro-private-w", try_map(reader, PROT_READ | PROT_WRITE, MAP_PRIVATE));
       l.Call("wo-shared", try_map(writer, PROT_WRITE, MAP_SHARED))
           .Call("exec", try_map(reader, PROT_READ | PROT_EXEC, MAP_PRIVATE));
       l.Call("unaligned", mmap(nullptr, 4096, PROT_READ, MAP_SHARED, reader, 100) == MAP_FAILED ? -1 : 0);
     }},
    {"map-two-processes",
     [](Line& l) {
       Make("f", Pattern(8192));
       const Fd fd("f", O_RDWR);
       char* p = Map(fd, 8192, PROT_READ | PROT_WRITE, MAP_SHARED);
       const int status = InChild([] {
         const Fd own("f", O_RDWR);
         char* q = Map(own, 8192, PROT_READ | PROT_WRITE, MAP_SHARED);
         memcpy(q + 4096, "the child", 9);
         return 0;
       });
       l.Number("status", status).Text("seen", {p + 4096, 9});
     }},
    {"map-write-then-read-call",
     [](Line& l) {
       const Fd fd("f", O_CREAT | O_RDWR);
       ftruncate(fd, 200'000);
       char* p = Map(fd, 200'000, PROT_READ | PROT_WRITE, MAP_SHARED);
       for (int i = 0; i < 200'000; i += 997) p[i] = static_cast<char>('a' + i % 26);
       l.Text("content", Content("f"));
       pwrite(fd, Pattern(70'000, 'w').data(), 70'000, 50'000);
       l.Text("mapped", {p, 200'000}).Call("unmap", munmap(p, 200'000)).Text("content", Content("f"));
     }},
    {"map-read-into-own-mapping",
     [](Line& l) {
       Make("f", Pattern(64'000));
       const Fd fd("f", O_RDWR);
       char* p = Map(fd, 64'000, PROT_READ | PROT_WRITE, MAP_SHARED);
       l.Count("read", pread(fd, p + 32'000, 10'000, 0))
           .Count("write", pwrite(fd, p + 1, 10'000, 50'000))
           .Text("content", Content("f"));
     }},
    {"direct-write-read",
     [](Line& l) {
       const Fd fd("f", O_CREAT | O_RDWR | O_DIRECT);
       const Block out(16'384, 'd'), in(16'384, 0);
       l.Call("open", fd)
           .Count("write", pwrite(fd, out.p, out.size, 0))
           .Count("read", pread(fd, in.p, in.size, 0))
           .Text("in", in.text());
       l.Count("tail", pread(fd, in.p, in.size, 12'288))
           .Count("end", pread(fd, in.p, in.size, 16'384))
           .Text("content", Content("f"));
     }},
    {"direct-beside-buffered",
     [](Line& l) {
       Make("f", Pattern(32'768));
       const Fd buffered("f", O_RDWR);
       const Fd direct("f", O_RDWR | O_DIRECT);
       const Block block(4096, 'D');
       l.Text("before", Content(buffered))
           .Count("direct", pwrite(direct, block.p, 4096, 8192))
           .Text("buffered", Content(buffered));
       l.Count("write", pwrite(buffered, "buffered", 8, 8200))
           .Count("read", pread(direct, block.p, 4096, 8192))
           .Text("direct", block.text());
     }},
    {"direct-and-mapping",
     [](Line& l) {
       Make("f", Pattern(16'384));
       const Fd fd("f", O_RDWR | O_DIRECT);
       char* p = Map(fd, 16'384, PROT_READ | PROT_WRITE, MAP_SHARED);
       p[0] = 'M';
       const Block block(4096, 'D');
       l.Count("write", pwrite(fd, block.p, 4096, 4096))
           .Text("mapped", {p, 16'384})
           .Count("read", pread(fd, block.p, 4096, 0));
       l.Text("read", block.text().substr(0, 10));
     }},
    {"copy-range",
     [](Line& l) {
       Make("f", Pattern(200'000));
       const Fd from("f", O_RDONLY);
       const Fd to("g", O_CREAT | O_RDWR);
       off_t in = 1000, out = 5;
       int64_t all = 0;
       for (ssize_t n;
            (n = copy_file_range(from, &in, to, &out, 150'000 - static_cast<size_t>(all), 0)) > 0 && all < 150'000;)
         all += n;
       l.Number("all", all).Number("in", in).Number("out", out).Text("content", Content("g"));
       in = 200'000;
       l.Count("at-end", copy_file_range(from, &in, to, &out, 10, 0));
     }},
    {"copy-range-same-file",
     [](Line& l) {
       Make("f", Pattern(50'000));
       const Fd fd("f", O_RDWR);
       off_t in = 0, out = 40'000;
       l.Count("apart", copy_file_range(fd, &in, fd, &out, 20'000, 0)).Text("content", Content("f"));
       in = 0, out = 100;
       l.Count("overlap", copy_file_range(fd, &in, fd, &out, 1000, 0))
           .Number("flags", copy_file_range(fd, &in, fd, &out, 1, 1));
     }},
    {"copy-range-errors",
     [](Line& l) {
       Make("f", "text");
       mkdir("d", 0755);
       const Fd reader("f", O_RDONLY);
       const Fd append("g", O_CREAT | O_WRONLY | O_APPEND);
       l.Count("readonly", copy_file_range(reader, nullptr, reader, nullptr, 1, 0))
           .Count("append", copy_file_range(reader, nullptr, append, nullptr, 1, 0));
       l.Count("directory", copy_file_range(Fd("d", O_RDONLY), nullptr, Fd("h", O_CREAT | O_WRONLY), nullptr, 1, 0));
     }},
    {"copy-sendfile-splice",
     [](Line& l) {
       Make("f", Pattern(100'000));
       const Fd from("f", O_RDONLY);
       const Fd to("g", O_CREAT | O_WRONLY);
       off_t at = 100;
       l.Count("sendfile", sendfile(to, from, &at, 50'000)).Number("at", at);
       int ends[2];
       if (pipe(ends) != 0) Fail("pipe");
       loff_t in = 60'000;
       l.Count("in", splice(from, &in, ends[1], nullptr, 4096, 0))
           .Count("out", splice(ends[0], nullptr, to, nullptr, 4096, 0));
       l.Text("content", Content("g"));
     }},
};

}  // namespace

std::span<const Case> DataCases() { return kCases; }

}  // namespace vrun::suites
