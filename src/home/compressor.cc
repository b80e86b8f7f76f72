// SPDX-License-Identifier: Apache-2.0
#include "home/compressor.h"

#include <zstd.h>

namespace vrun::home {

Compressor::Compressor() = default;
Compressor::~Compressor() = default;

void Compressor::Free::operator()(ZSTD_CCtx_s* context) const { ::ZSTD_freeCCtx(context); }

bool Compressor::Compress(std::string_view data, std::string* out, int level) {
  if (data.size() < 64) return false;
  Context context;
  {
    std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      context = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (!context) context.reset(::ZSTD_createCCtx());
  if (!context) return false;
  // Room for nine tenths only: zstd gives up by itself when the saving is not worth it.
  size_t room = data.size() - data.size() / 10;
  out->resize(room);
  size_t n = ::ZSTD_compressCCtx(context.get(), out->data(), room, data.data(), data.size(), level);
  {
    std::lock_guard lock(mutex_);
    idle_.push_back(std::move(context));
  }
  if (::ZSTD_isError(n)) return false;
  out->resize(n);
  return true;
}

}  // namespace vrun::home
