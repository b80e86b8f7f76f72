// SPDX-License-Identifier: Apache-2.0
// Logarithms in fixed point with integers only: the same on every machine and compiler. Scores are products of powers,
// which are sums of logarithms here.
#pragma once

#include <bit>
#include <cstdint>

namespace vrun::sched::core {

using Log = int32_t;  // log2 in 1/65536
constexpr Log kLogOne = 1 << 16;

namespace fixed {
struct Tables {
  int32_t log[257];   // log2(1 + i/256), 1/65536
  uint32_t exp[257];  // 2^(i/256), 1/65536
};
// Digit by digit: squaring a number in [1, 2) yields the next binary digit of its logarithm.
consteval Tables MakeTables() {
  Tables t{};
  for (int i = 0; i < 256; ++i) {
    uint64_t x = (uint64_t{1} << 30) + (static_cast<uint64_t>(i) << 22);
    int32_t log = 0;
    for (int bit = 19; bit >= 0; --bit) {
      x = (x * x) >> 30;
      if (x >= (uint64_t{1} << 31)) {
        x >>= 1;
        log |= 1 << bit;
      }
    }
    t.log[i] = (log + 8) >> 4;
  }
  t.log[256] = kLogOne;
  // 2^(1/256) in 1/2^60 times itself; 128-bit products.
  unsigned __int128 root = 0;
  {
    // The 8-fold square root of 2, in 1/2^56, by Newton's method on integers.
    uint64_t v = uint64_t{2} << 56;
    for (int k = 0; k < 8; ++k) {
      unsigned __int128 target = static_cast<unsigned __int128>(v) << 56;
      unsigned __int128 guess = static_cast<unsigned __int128>(2) << 56;
      for (int n = 0; n < 80; ++n) guess = (guess + target / guess) / 2;
      v = static_cast<uint64_t>(guess);
    }
    root = v;
  }
  unsigned __int128 power = static_cast<unsigned __int128>(1) << 56;
  for (int i = 0; i <= 256; ++i) {
    t.exp[i] = static_cast<uint32_t>((power + (uint64_t{1} << 39)) >> 40);
    power = (power * root) >> 56;
  }
  return t;
}
inline constexpr Tables kTables = MakeTables();
}  // namespace fixed

// log2(x); Log2(0) = Log2(1). Error below 1/30000.
constexpr Log Log2(uint64_t x) {
  if (x <= 1) return 0;
  int top = 63 - std::countl_zero(x);
  uint64_t mantissa = top >= 24 ? x >> (top - 24) : x << (24 - top);  // 1.24
  uint32_t fraction = static_cast<uint32_t>(mantissa) & 0xffffff;
  uint32_t i = fraction >> 16;
  int32_t low = fixed::kTables.log[i];
  int32_t high = fixed::kTables.log[i + 1];
  return (top << 16) + low + static_cast<int32_t>((int64_t{high - low} * (fraction & 0xffff)) >> 16);
}

// Thousandths of 2^(q / 65536), at least 0, at most 2^52.
constexpr int64_t Exp2Milli(Log q) {
  q += 653'050;  // log2(1000)
  if (q < 0) return 0;
  int whole = q >> 16;
  if (whole >= 52) return int64_t{1} << 52;
  uint32_t fraction = static_cast<uint32_t>(q) & 0xffff;
  uint32_t i = fraction >> 8;
  int64_t low = fixed::kTables.exp[i];
  int64_t high = fixed::kTables.exp[i + 1];
  int64_t mantissa = low + (((high - low) * (fraction & 0xff)) >> 8);  // 1/65536
  return whole >= 16 ? mantissa << (whole - 16) : mantissa >> (16 - whole);
}

}  // namespace vrun::sched::core
