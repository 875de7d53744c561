/// Function clones: one source compiled for several instruction sets.
///
/// A function marked HVD_SPARSE_CLONES is compiled for AVX-512, AVX2 and the baseline; the loader
/// picks one. Functions that it calls must be HVD_SPARSE_INLINE, or they would be compiled for the
/// baseline. The build forbids fused multiply-adds (-ffp-contract=off), so all clones give the same
/// bits.

#pragma once

#include <cstdint>  // also defines __GLIBC__ if the C library is glibc

#include "csrc/base/types.h"

// The loader picks a clone before a sanitizer's runtime is ready, which crashes; only glibc's can.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define HVD_SPARSE_HAS_CLONES 0
#elif defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__)
#define HVD_SPARSE_HAS_CLONES 1
#else
#define HVD_SPARSE_HAS_CLONES 0
#endif
#if defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#undef HVD_SPARSE_HAS_CLONES
#define HVD_SPARSE_HAS_CLONES 0
#endif
#endif

#if HVD_SPARSE_HAS_CLONES
#define HVD_SPARSE_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define HVD_SPARSE_CLONES
#endif
