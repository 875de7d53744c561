/// The kernels of the CPU for entries that have been taken, and for whole arrays.

#include "csrc/kernels/cpu_kernels.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "csrc/kernels/clones.h"

namespace hvd_sparse {
namespace cpu {

void KernelsOfCpu::Copy(Span<const float> from, Span<float> to, StreamHandle /*stream*/) const {
  std::copy(from.begin(), from.end(), to.begin());
}

void KernelsOfCpu::Decay(Span<float> residual, float decay, StreamHandle /*stream*/) const {
  for (float& value : residual) value *= decay;
}

void CpuCandidates::TakeAt(Span<float> residual, Span<const Index> positions) {
  const Room room = Free();
  const Index offset = OffsetIn(bucket_, residual);
  const std::int64_t count = std::min(positions.size, room.size);
  for (std::int64_t i = 0; i < count; ++i) {
    room.indices[i] = offset + positions[i];
    room.values[i] = residual[positions[i]];
    residual[positions[i]] = 0;
  }
  count_ += count;
}

void CpuCandidates::KeepTopK(std::int64_t k) {
  count_ = CpuKernels().KeepTopK(k, begin_, end(), out_, bucket_) - begin_;
}

void CpuCandidates::Keep(const SignGroup& group) {
  auto keeps = group.Keeps();
  std::int64_t kept = begin_;
  for (std::int64_t i = begin_; i < end(); ++i) {
    if (!keeps(out_->values()[i])) continue;
    std::swap(out_->indices()[kept], out_->indices()[i]);
    std::swap(out_->values()[kept++], out_->values()[i]);
  }
  CpuKernels().PutBack(*out_, kept, end(), bucket_);
  count_ = kept - begin_;
}

void CpuCandidates::PutBack() {
  CpuKernels().PutBack(*out_, begin_, end(), bucket_);
  count_ = 0;
}

float CpuCandidates::Smallest() {
  float smallest = INFINITY;
  for (const float value : values()) smallest = std::min(smallest, std::fabs(value));
  return smallest;
}

SignSums CpuCandidates::LargestOfSigns(std::int64_t k) {
  return hvd_sparse::LargestOfSigns(values(), k);
}

}  // namespace cpu

const Kernels& CpuKernels() {
  static const cpu::KernelsOfCpu kernels;
  return kernels;
}

const char* CpuInstructionSet() {
#if HVD_SPARSE_HAS_CLONES
  if (__builtin_cpu_supports("avx512f")) return "avx512";
  if (__builtin_cpu_supports("avx2")) return "avx2";
#endif
  return "baseline";
}

}  // namespace hvd_sparse
