/// Scatter on the CPU: zeroing and writing entries in one pass.
///
/// A chunk of the result is composed in the first-level cache. If the gradient is large, the chunk
/// is then streamed past the caches: the processor need not read the lines that it overwrites,
/// which halves the traffic of a memset followed by scattered writes.

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <atomic>
#include <cfloat>
#include <cmath>
#include <cstring>

#include "csrc/kernels/cpu_kernels.h"
#include "csrc/kernels/half.h"
#include "csrc/kernels/parallel.h"

namespace hvd_sparse::cpu {
namespace {

/// Bytes of a chunk, and of a part, which a thread claims at a time.
constexpr std::int64_t kChunkBytes = 4096, kPartBytes = 1 << 18;

#if defined(__x86_64__)

/// The size from which a gradient is streamed; a smaller one may stay in the last-level cache for
/// the optimizer.
constexpr std::int64_t kStreamBytes = 16 << 20;

constexpr std::int64_t kStreamAlignment = 32;

/// Copies a chunk past the caches, half a cache line at a time; quarters take twice as long.
__attribute__((target("avx"))) void Stream(const void* from, void* to, std::int64_t bytes) {
  const auto* source = static_cast<const __m256i*>(from);
  auto* target = static_cast<__m256i*>(to);
  const std::int64_t vectors = bytes / kStreamAlignment;
  for (std::int64_t i = 0; i < vectors; ++i) {
    _mm256_stream_si256(target + i, _mm256_load_si256(source + i));
  }
  std::memcpy(target + vectors, source + vectors, bytes % kStreamAlignment);
}

void FinishStreams() { _mm_sfence(); }

bool CanStream(const void* to, std::int64_t bytes) {
  static const bool avx = __builtin_cpu_supports("avx");
  const bool aligned = reinterpret_cast<std::uintptr_t>(to) % kStreamAlignment == 0;
  return avx && aligned && bytes >= kStreamBytes;
}

#else

void Stream(const void* from, void* to, std::int64_t bytes) {
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

void FinishStreams() {}

bool CanStream(const void*, std::int64_t) { return false; }

#endif

/// One call of Scatter, in the gradient's number type.
template <typename T>
struct ScatterJob {
  const SparseBlock& reduced;
  const float scale;
  const Index offset;
  const Span<T> grad;
  const Span<float> residual;
  std::vector<std::pair<Index, float>>* const undo;
  const float loss_scale;

  static constexpr std::int64_t kChunk = kChunkBytes / sizeof(T);
  static constexpr std::int64_t kPart = kPartBytes / sizeof(T);
  static constexpr bool kRounds = sizeof(T) < sizeof(float);

  /// Returns the place of entry e in the gradient, or grad.size if it lies outside.
  std::int64_t Place(std::int64_t e) const {
    if (e >= reduced.count()) return grad.size;
    const std::int64_t place = std::int64_t{Position(reduced.indices()[e])} - offset;
    return place < 0 ? grad.size : std::min(place, grad.size);
  }

  /// Writes entry e, whose place is i, to `written`; returns true if the result is not finite.
  bool Write(std::int64_t e, std::int64_t i, T* written) const {
    const float value = scale * reduced.values()[e];
    *written = Narrow<T>(value);
    if constexpr (kRounds) {
      const float kept = Widen(*written);
      if (!(std::fabs(kept) <= FLT_MAX)) return true;
      if (kept != value && i < residual.size) {
        undo->emplace_back(Position(reduced.indices()[e]), residual[i]);
        residual[i] += loss_scale * (value - kept);
      }
      return false;
    } else {
      return !(std::fabs(value) <= FLT_MAX);
    }
  }

  /// Writes the places [begin, end); returns the number of results that are not finite.
  std::int64_t Run(std::int64_t begin, std::int64_t end, bool stream) const {
    alignas(64) T composed[kChunk];
    if (stream) std::memset(static_cast<void*>(composed), 0, sizeof(composed));
    std::int64_t bad = 0;
    std::int64_t e = LowerBound(reduced, offset + static_cast<Index>(begin));
    for (std::int64_t from = begin; from < end; from += kChunk) {
      const std::int64_t size = std::min(kChunk, end - from), first = e;
      T* const chunk = stream ? composed : grad.data + from;
      if (!stream) std::memset(static_cast<void*>(chunk), 0, sizeof(T) * size);
      // The entries of a malformed block, which does not ascend, end here.
      for (std::int64_t i = Place(e); from <= i && i < from + size; i = Place(++e)) {
        bad += Write(e, i, chunk + (i - from));
      }
      if (!stream) continue;
      Stream(chunk, grad.data + from, size * sizeof(T));
      for (std::int64_t written = first; written < e; ++written) chunk[Place(written) - from] = {};
    }
    if (stream) FinishStreams();
    return bad;
  }
};

template <typename T>
std::int64_t ScatterAs(const SparseBlock& reduced, float scale, Index offset, Span<T> grad,
                       Span<float> residual, std::vector<std::pair<Index, float>>* undo,
                       float loss_scale) {
  using Job = ScatterJob<T>;
  const Job job{reduced, scale, offset, grad, residual, undo, loss_scale};
  const bool stream = CanStream(grad.data, grad.size * static_cast<std::int64_t>(sizeof(T)));
  if (Job::kRounds || grad.size <= Job::kPart) {  // `undo` has one writer
    return job.Run(0, grad.size, stream);
  }
  std::atomic<std::int64_t> bad{0};
  RunParts((grad.size + Job::kPart - 1) / Job::kPart, [&](std::int64_t part, int) {
    const std::int64_t begin = part * Job::kPart;
    bad += job.Run(begin, std::min(begin + Job::kPart, grad.size), stream);
  });
  return bad;
}

/// Returns the number of results that are not finite; compilers vectorise it.
template <typename T>
HVD_SPARSE_INLINE std::int64_t WriteWide(const float* __restrict sums, std::int64_t size,
                                         float scale, T* __restrict grad) {
  std::int32_t bad = 0;
  for (std::int64_t i = 0; i < size; ++i) {
    const float value = scale * sums[i];
    grad[i] = Narrow<T>(value);
    bad += std::fabs(value) <= FLT_MAX ? 0 : 1;
  }
  return bad;
}

HVD_SPARSE_CLONES
std::int64_t WriteNumbers(const float* sums, std::int64_t size, float scale, float* grad) {
  return WriteWide(sums, size, scale, grad);
}

HVD_SPARSE_CLONES
std::int64_t WriteNumbers(const float* sums, std::int64_t size, float scale, double* grad) {
  return WriteWide(sums, size, scale, grad);
}

template <typename T>
std::int64_t WriteNarrow(Span<const float> sums, float scale, T* grad, Span<float> residual,
                         Index offset, std::vector<std::pair<Index, float>>* undo,
                         float loss_scale) {
  std::int64_t bad = 0;
  for (std::int64_t i = 0; i < sums.size; ++i) {
    const float value = scale * sums[i];
    grad[i] = Narrow<T>(value);
    const float kept = Widen(grad[i]);
    if (!(std::fabs(kept) <= FLT_MAX)) {
      ++bad;
    } else if (kept != value && i < residual.size) {
      undo->emplace_back(offset + static_cast<Index>(i), residual[i]);
      residual[i] += loss_scale * (value - kept);
    }
  }
  return bad;
}

}  // namespace

std::int64_t WriteDense(Span<const float> sums, float scale, GradView grad, Span<float> residual,
                        Index offset, std::vector<std::pair<Index, float>>* undo,
                        float loss_scale) {
  return WithNumbersOf(grad, [&](auto* data) {
    if constexpr (sizeof(*data) < sizeof(float)) {
      return WriteNarrow(sums, scale, data, residual, offset, undo, loss_scale);
    } else {
      return WriteNumbers(sums.data, sums.size, scale, data);
    }
  });
}

std::int64_t KernelsOfCpu::Scatter(const SparseBlock& reduced, float scale, Index offset,
                                   GradView grad, Span<float> residual,
                                   std::vector<std::pair<Index, float>>* undo,
                                   float loss_scale) const {
  return WithNumbersOf(grad, [&](auto* data) {
    return ScatterAs(reduced, scale, offset, Span(data, grad.numel), residual, undo, loss_scale);
  });
}

}  // namespace hvd_sparse::cpu
