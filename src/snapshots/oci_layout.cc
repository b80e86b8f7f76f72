// SPDX-License-Identifier: Apache-2.0
#include "snapshots/oci_layout.h"

#include <zstd.h>

#include <ctime>
#include <memory>

#include "base/escape.h"
#include "base/files.h"
#include "base/hash/digest.h"
#include "snapshots/tar_writer.h"
#include "tree/rules.h"

namespace vrun::snapshots {
namespace {

constexpr size_t kLayerPartBytes = 256 * 1024;
constexpr int kLevel = 3;

using Emit = std::function<Status(v1::ExportPart)>;

struct Blob {
  std::string digest;  // "sha256:HEX"
  uint64_t size = 0;
};

std::string PathOf(const Blob& blob) { return "blobs/sha256/" + blob.digest.substr(7); }

// Compresses a tar and emits it; computes both digests.
class LayerWriter {
 public:
  explicit LayerWriter(const Emit& emit) : emit_(emit), context_(::ZSTD_createCCtx(), ::ZSTD_freeCCtx) {
    ::ZSTD_CCtx_setParameter(context_.get(), ZSTD_c_compressionLevel, kLevel);
    ::ZSTD_CCtx_setParameter(context_.get(), ZSTD_c_checksumFlag, 1);
  }

  Status Write(std::string_view data) {
    tar_hash_.Update(data);
    return Compress(data, ZSTD_e_continue);
  }
  // *tar_digest: of the uncompressed tar.
  Result<Blob> Finish(std::string* tar_digest) {
    VRUN_TRY(Compress({}, ZSTD_e_end));
    *tar_digest = "sha256:" + tar_hash_.Finish().Hex();
    const Blob blob{"sha256:" + hash_.Finish().Hex(), size_};
    VRUN_TRY(SendPart(PathOf(blob)));
    return blob;
  }

 private:
  Status Compress(std::string_view data, ZSTD_EndDirective directive) {
    ZSTD_inBuffer in{data.data(), data.size(), 0};
    for (;;) {
      char buffer[64 * 1024];
      ZSTD_outBuffer out{buffer, sizeof buffer, 0};
      const size_t left = ::ZSTD_compressStream2(context_.get(), &out, &in, directive);
      if (::ZSTD_isError(left)) return Error(Code::kInternal, std::string("zstd: ") + ::ZSTD_getErrorName(left));
      const std::string_view made(buffer, out.pos);
      hash_.Update(made);
      size_ += made.size();
      part_ += made;
      if (part_.size() >= kLayerPartBytes) VRUN_TRY(SendPart(""));
      if (directive == ZSTD_e_end ? left == 0 : in.pos == in.size) return {};
    }
  }
  Status SendPart(const std::string& path) {
    v1::ExportPart part;
    part.set_data(std::exchange(part_, {}));
    part.set_path(path);
    return emit_(std::move(part));
  }

  const Emit& emit_;
  std::unique_ptr<ZSTD_CCtx, size_t (*)(ZSTD_CCtx*)> context_;
  Sha256Stream tar_hash_, hash_;
  std::string part_;
  uint64_t size_ = 0;
};

Status WriteTree(const Collection::Snapshot& snapshot, const home::ContentFiles& files, TarWriter* tar) {
  struct Place {
    std::string path;
    tree::DirectoryPtr directory;
    size_t next = 0;
  };
  std::vector<Place> stack{{"/", snapshot.tree->directory, 0}};
  while (!stack.empty()) {
    Place& place = stack.back();
    if (place.next == place.directory->size()) {
      stack.pop_back();
      continue;
    }
    const size_t i = place.next++;
    const tree::Entry entry = place.directory->At(i);
    const std::string path = tree::JoinPath(place.path, entry.name);
    UniqueFd fd;
    if (entry.is_regular() && entry.size > 0) {
      auto opened = files.OpenVersion(path, entry.version());
      // Unreadable files are not part of the snapshot, as reported when it was made and by `show`.
      if (!opened && opened.error().code() == Code::kDenied) continue;
      if (!opened) return std::move(opened).error();
      fd = std::move(*opened);
    }
    VRUN_TRY(tar->Add(path, entry, [&fd](uint64_t offset, char* buffer, size_t n) {
      return PreadUpTo(fd.get(), buffer, n, offset);
    }));
    if (tree::DirectoryPtr child = place.directory->Child(i)) stack.push_back({path, std::move(child), 0});
  }
  return tar->Finish();
}

std::string Time(int64_t wall_us) {
  const time_t seconds = wall_us / 1'000'000;
  tm parts{};
  ::gmtime_r(&seconds, &parts);
  char text[64];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

Result<Blob> WriteJson(const std::string& text, const Emit& emit) {
  const Blob blob{"sha256:" + Sha256(text).Hex(), text.size()};
  v1::ExportPart part;
  part.set_data(text);
  part.set_path(PathOf(blob));
  VRUN_TRY(emit(std::move(part)));
  return blob;
}

std::string Descriptor(const std::string& type, const Blob& blob) {
  return "\"mediaType\":\"application/vnd.oci.image." + type + "\",\"digest\":\"" + blob.digest +
         "\",\"size\":" + std::to_string(blob.size);
}

}  // namespace

Status ExportLayout(const Collection::Snapshot& snapshot, const home::ContentFiles& files, const Emit& emit) {
  LayerWriter layer(emit);
  TarWriter tar([&layer](std::string_view data) { return layer.Write(data); });
  VRUN_TRY(WriteTree(snapshot, files, &tar));
  std::string tar_digest;
  VRUN_ASSIGN(const Blob layer_blob, layer.Finish(&tar_digest));

  // Names of snapshots and architectures need no JSON quoting: the former pass CheckName, the latter come from home.
  const v1::SnapshotInfo& info = snapshot.info;
  const std::string name = info.reference().name(), created = Time(info.created_us());
  const std::string platform = "\"architecture\":\"" + info.architecture() + "\",\"os\":\"linux\"";
  VRUN_ASSIGN(
      const Blob config,
      WriteJson("{\"created\":\"" + created + "\"," + platform +
                    ",\"config\":{\"Env\":[\"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\"],"
                    "\"Cmd\":[\"/bin/sh\"]},\"rootfs\":{\"type\":\"layers\",\"diff_ids\":[\"" +
                    tar_digest + "\"]},\"history\":[{\"created\":\"" + created +
                    "\",\"created_by\":\"vctl snapshot create " + name + "\"}]}",
                emit));
  VRUN_ASSIGN(
      const Blob manifest,
      WriteJson("{\"schemaVersion\":2,\"mediaType\":\"application/vnd.oci.image.manifest.v1+json\",\"config\":{" +
                    Descriptor("config.v1+json", config) + "},\"layers\":[{" +
                    Descriptor("layer.v1.tar+zstd", layer_blob) + "}]}",
                emit));
  const auto file = [&](const std::string& path, const std::string& text) {
    v1::ExportPart part;
    part.set_path(path);
    part.set_data(text);
    return emit(std::move(part));
  };
  VRUN_TRY(file("index.json",
                "{\"schemaVersion\":2,\"mediaType\":\"application/vnd.oci.image.index.v1+json\",\"manifests\":[{" +
                    Descriptor("manifest.v1+json", manifest) + ",\"platform\":{" + platform +
                    "},\"annotations\":{\"org.opencontainers.image.ref.name\":\"" + name + "\"}}]}\n"));
  // Last, because a layout without it is invalid.
  return file("oci-layout", "{\"imageLayoutVersion\":\"1.0.0\"}\n");
}

}  // namespace vrun::snapshots
