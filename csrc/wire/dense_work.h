/// The work of a dense sum on a bucket's gradient memory: values become codes, and sums are written
/// into gradients.
///
/// There is one implementation for each type of device: cpu_dense_work.cc and
/// csrc/cuda/kernels/cuda_dense_work.cc; DenseWorkFor (csrc/devices/kernels_for.h) chooses. They
/// have the same bits. Residuals and gradients lie on the device; codes, sums and all other
/// arguments lie in CPU memory.

#pragma once

#include <cstdint>
#include <memory>

#include "csrc/base/types.h"
#include "csrc/kernels/kernels.h"
#include "csrc/wire/value_coding.h"

namespace hvd_sparse {

/// The memory that all steps of a bucket need.
struct DenseRoom {
  Values values = Values::kFloat32;
  std::int64_t numel = 0;
  std::int64_t pieces = 0;
  std::int64_t longest_piece = 0;  ///< entries
  std::int64_t code_bytes = 0;     ///< of all messages
  std::int64_t own_numel = 0;      ///< entries that are taken as they are
};

/// Entries that are coded together.
struct DensePiece {
  Feedback feedback;             ///< without a gradient, the CPU takes the residual as it is
  std::int64_t begin = 0;        ///< position in the bucket
  float* own = nullptr;          ///< place in own() of values that are taken as they are, or null
  std::uint8_t* code = nullptr;  ///< place of the code in codes(), if `own` is null
  std::int64_t code_bytes = 0;   ///< output: the length of the code
};

/// Sums of neighbouring entries of a gradient.
struct DenseOutput {
  Span<const float> sums;
  float scale = 1;         ///< factor of the sums
  GradView gradient;       ///< as long as the sums
  Span<float> residual;    ///< takes the errors of narrow types; as long, or empty
  std::int64_t begin = 0;  ///< position of residual[0] in the residual that PutBack restores
  float loss_scale = 1;    ///< factor of these errors: see Kernels::Scatter
};

/// A step: Take; then Sums, Keep and Write for each part of the sum, all on one thread at a time;
/// then Finish. PutBack undoes all of it, at any time after Take.
class DenseWork {
 public:
  virtual ~DenseWork() = default;

  /// Allocates the memory of all steps, unless that has been done.
  virtual void Prepare(const DenseRoom& room) = 0;

  /// The memory of the messages, and of values that are taken as they are; valid after Prepare.
  virtual std::uint8_t* codes() = 0;
  virtual float* own() = 0;

  /// Applies error feedback, and moves the results to codes, whose errors stay in the residual.
  /// Returns how many results were not finite, or are not carried by the format, also of those
  /// that are taken as they are: their sum could not be sent. Allocates no memory.
  virtual std::int64_t Take(DenseFormat format, Span<DensePiece> pieces) = 0;

  /// Returns memory for sums of a piece, until the next call.
  virtual Span<float> Sums(std::int64_t count) = 0;

  /// Sets a part of the residual to the errors of its sum. The errors are copied.
  virtual void Keep(Span<const float> errors, Span<float> residual) = 0;

  /// Writes sums into a gradient: gradient[i] = scale * sums[i]. A narrow number type rounds like
  /// Kernels::Scatter. The sums lie in what Sums returned, or this is the CPU.
  virtual void Write(const DenseOutput& output) = 0;

  /// Waits until all is written. Returns how many results since Take were not finite in the number
  /// type of their gradient.
  virtual std::int64_t Finish() = 0;

  /// Sets the bucket's residual to what error feedback made of it, bit for bit, given the pieces
  /// that were taken.
  virtual void PutBack(DenseFormat format, Span<const DensePiece> pieces, Span<float> residual) = 0;
};

std::unique_ptr<DenseWork> NewCpuDenseWork();

}  // namespace hvd_sparse
