// SPDX-License-Identifier: Apache-2.0
#include "control/dashboard/assets.h"

#include <zlib.h>

#include <array>

#include "base/hash/blake3.h"
#include "base/result.h"

// VRUN_WEB is the folder of the finished files.
#define VRUN_ASSET(name, file)                    \
  asm(".pushsection .rodata\n"                    \
      ".globl vrun_web_" name ", vrun_web_" name  \
      "_end\n"                                    \
      ".hidden vrun_web_" name ", vrun_web_" name \
      "_end\n"                                    \
      "vrun_web_" name                            \
      ":\n"                                       \
      ".incbin \"" VRUN_WEB "/" file              \
      "\"\n"                                      \
      "vrun_web_" name                            \
      "_end:\n"                                   \
      ".byte 0\n"                                 \
      ".popsection\n")
VRUN_ASSET("page", "index.html");
VRUN_ASSET("script", "app.js");
VRUN_ASSET("style", "app.css");
VRUN_ASSET("icon", "icon.svg");
extern "C" {
[[gnu::visibility("hidden")]] extern const char vrun_web_page[], vrun_web_page_end[];
[[gnu::visibility("hidden")]] extern const char vrun_web_script[], vrun_web_script_end[];
[[gnu::visibility("hidden")]] extern const char vrun_web_style[], vrun_web_style_end[];
[[gnu::visibility("hidden")]] extern const char vrun_web_icon[], vrun_web_icon_end[];
}

namespace vrun::control {
namespace {

// All comes from here, and no script or style is inline.
constexpr char kPolicy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

struct File {
  std::string_view path, type;
  std::string plain, gzip, tag;
};

std::string Gzip(const std::string& plain) {
  z_stream z{};
  constexpr int kGzip = 15 + 16;
  VRUN_CHECK(::deflateInit2(&z, 9, Z_DEFLATED, kGzip, 9, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string out(::deflateBound(&z, plain.size()), '\0');
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(plain.data()));
  z.avail_in = static_cast<uInt>(plain.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = static_cast<uInt>(out.size());
  VRUN_CHECK(::deflate(&z, Z_FINISH) == Z_STREAM_END);
  out.resize(z.total_out);
  ::deflateEnd(&z);
  return out;
}

File Make(std::string_view path, std::string_view type, const char* begin, const char* end) {
  File file{path, type, std::string(begin, end), "", ""};
  file.gzip = Gzip(file.plain);
  constexpr char kDigits[] = "0123456789abcdef";
  const Digest digest = Blake3(file.plain);
  file.tag = "\"";
  for (const char c : digest.view().substr(0, 12)) {
    file.tag += kDigits[static_cast<unsigned char>(c) >> 4];
    file.tag += kDigits[static_cast<unsigned char>(c) & 15];
  }
  file.tag += '"';
  return file;
}

const std::array<File, 4>& Files() {
  static const std::array<File, 4> files = {
      Make("/", "text/html; charset=utf-8", vrun_web_page, vrun_web_page_end),
      Make("/app.js", "text/javascript; charset=utf-8", vrun_web_script, vrun_web_script_end),
      Make("/app.css", "text/css; charset=utf-8", vrun_web_style, vrun_web_style_end),
      Make("/icon.svg", "image/svg+xml", vrun_web_icon, vrun_web_icon_end)};
  return files;
}

bool Has(const http::Request& request, const char* header, std::string_view what) {
  const auto found = request.headers.find(header);
  return found != request.headers.end() && found->second.find(what) != std::string::npos;
}

}  // namespace

std::vector<std::string_view> AssetPaths() {
  std::vector<std::string_view> paths;
  for (const File& file : Files()) paths.push_back(file.path);
  return paths;
}

http::Response Asset(std::string_view path, const http::Request& request) {
  for (const File& file : Files()) {
    if (file.path != path) continue;
    http::Response response{200, "", std::string(file.type)};
    response.headers = {{"ETag", file.tag},
                        {"Cache-Control", "no-cache"},
                        {"Vary", "Accept-Encoding"},
                        {"Content-Security-Policy", kPolicy}};
    if (Has(request, "if-none-match", file.tag)) {
      response.status = 304;
      return response;
    }
    const bool gzip = Has(request, "accept-encoding", "gzip");
    if (gzip) response.headers.emplace_back("Content-Encoding", "gzip");
    response.body = gzip ? file.gzip : file.plain;
    return response;
  }
  return http::Problem(404, "there is nothing at this path");
}

}  // namespace vrun::control
