/// Kernels of a dense sum: error feedback and codes whose errors stay in the residual, and writing
/// sums into gradients; contract in csrc/wire/dense_work.h.

#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "csrc/base/types.h"
#include "csrc/wire/dense_work.h"
#include "csrc/wire/value_coding.h"

namespace hvd_sparse::cuda {

/// A DensePiece, as kernels look it up.
struct TakenPiece {
  const void* gradient;
  float* residual;
  std::int64_t size;
  std::int64_t begin;    ///< position in the bucket
  std::int64_t code_at;  ///< in TakeArgs::codes; -1: the values are taken as they are
  DType dtype;
  float decay, scale;
};

/// Arguments of one DenseWork::Take; all memory lies on the device.
struct TakeArgs {
  const TakenPiece* pieces;
  std::int64_t piece_count, longest_piece;
  float* before;        ///< of the bucket: receives the residual after error feedback
  std::uint8_t* codes;  ///< receives codes, but for float32 values; ternary ones have no header yet
  unsigned* largest;    ///< zeros; receives the largest magnitude of each ternary piece, as bits
  unsigned* not_finite;
  float largest_carried;  ///< larger results count as not finite: see LargestCarried
};

/// Takes all pieces. float32 values become zero in the residual, and are those in `before`.
void LaunchTake(DenseFormat format, const TakeArgs& args, cudaStream_t stream);

/// Enqueues DenseWork::Write, of sums on the device; adds the number of results that are not finite
/// to `not_finite`.
void LaunchWriteSums(const DenseOutput& output, unsigned* not_finite, cudaStream_t stream);

}  // namespace hvd_sparse::cuda
