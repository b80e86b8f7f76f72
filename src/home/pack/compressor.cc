// SPDX-License-Identifier: Apache-2.0
#include "home/pack/compressor.h"

#include <zstd.h>

#include <algorithm>
#include <bit>

namespace vrun::home {
namespace {

constexpr size_t kLeast = 64;  // bytes; less is not worth compressing
constexpr size_t kMostPrefix = 8u << 20;
constexpr int kLeastWindow = 10;  // zstd's minimum, log2

}  // namespace

Compressor::Compressor() = default;
Compressor::~Compressor() = default;

void Compressor::Free::operator()(ZSTD_CCtx_s* context) const { ::ZSTD_freeCCtx(context); }

Compressor::Context Compressor::Take() {
  MutexLock lock(mutex_);
  if (idle_.empty()) return Context(::ZSTD_createCCtx());
  Context context = std::move(idle_.back());
  idle_.pop_back();
  return context;
}

void Compressor::Return(Context context) {
  MutexLock lock(mutex_);
  idle_.push_back(std::move(context));
}

bool Compressor::Compress(std::string_view data, std::string* out, int level) {
  if (data.size() < kLeast) return false;
  Context context = Take();
  if (!context) return false;
  // Room for nine tenths only, so zstd fails by itself if the saving is too small.
  out->resize(data.size() - data.size() / 10);
  const size_t n = ::ZSTD_compressCCtx(context.get(), out->data(), out->size(), data.data(), data.size(), level);
  Return(std::move(context));
  if (::ZSTD_isError(n)) return false;
  out->resize(n);
  return true;
}

bool Compressor::CompressAfter(std::string_view prefix, std::string_view data, std::string* out) {
  if (data.size() < kLeast || std::max(prefix.size(), data.size()) > kMostPrefix) return false;
  Context context = Take();
  if (!context) return false;
  // The window must cover the whole prefix.
  const int window = std::max(static_cast<int>(std::bit_width(prefix.size() + data.size())), kLeastWindow);
  ::ZSTD_CCtx_setParameter(context.get(), ZSTD_c_compressionLevel, 1);
  ::ZSTD_CCtx_setParameter(context.get(), ZSTD_c_windowLog, window);
  ::ZSTD_CCtx_refPrefix(context.get(), prefix.data(), prefix.size());
  out->resize(data.size() - data.size() / 10);
  const size_t n = ::ZSTD_compress2(context.get(), out->data(), out->size(), data.data(), data.size());
  ::ZSTD_CCtx_reset(context.get(), ZSTD_reset_session_and_parameters);
  Return(std::move(context));
  if (::ZSTD_isError(n)) return false;
  out->resize(n);
  return true;
}

}  // namespace vrun::home
