/// The work of a dense sum on the CPU: a piece is taken in one pass, and stays in the cache.

#include <algorithm>
#include <utility>
#include <vector>

#include "csrc/base/buffer.h"
#include "csrc/kernels/cpu_kernels.h"
#include "csrc/wire/dense_work.h"
#include "csrc/wire/value_coding.h"

namespace hvd_sparse {
namespace {

class CpuDenseWork final : public DenseWork {
 public:
  void Prepare(const DenseRoom& room) override {
    codes_.Reserve(room.code_bytes);
    own_.Reserve(room.own_numel * static_cast<std::int64_t>(sizeof(float)));
  }

  std::uint8_t* codes() override { return codes_.data(); }
  float* own() override { return reinterpret_cast<float*>(own_.data()); }

  std::int64_t Take(DenseFormat format, Span<DensePiece> pieces) override {
    rounded_.clear();
    overflows_ = 0;
    std::int64_t refused = 0;
    for (DensePiece& piece : pieces) refused += TakeOne(format, &piece);
    return refused;
  }

  Span<float> Sums(std::int64_t count) override {
    sums_.resize(static_cast<std::size_t>(count));
    return sums_;
  }

  void Keep(Span<const float> errors, Span<float> residual) override {
    std::copy(errors.begin(), errors.end(), residual.data);
  }

  void Write(const DenseOutput& output) override {
    overflows_ += cpu::WriteDense(output.sums, output.scale, output.gradient, output.residual,
                                  static_cast<Index>(output.begin), &rounded_, output.loss_scale);
  }

  std::int64_t Finish() override { return overflows_; }

  void PutBack(DenseFormat format, Span<const DensePiece> pieces, Span<float> residual) override {
    CpuKernels().Restore(rounded_, residual);
    rounded_.clear();
    for (const DensePiece& piece : pieces) {
      const Span<float> left = piece.feedback.residual;
      if (piece.own != nullptr) {
        std::copy_n(piece.own, left.size, left.data);
      } else {
        AddDecoded(format.values, {piece.code, piece.code_bytes}, left);
      }
    }
  }

 private:
  static std::int64_t TakeOne(DenseFormat format, DensePiece* piece) {
    const Feedback& feedback = piece->feedback;
    const Span<float> values = feedback.residual;
    const bool adds = feedback.grad.data != nullptr;
    std::int64_t refused = 0;
    if (piece->own != nullptr) {
      if (adds) refused = CpuKernels().Accumulate(feedback);
      refused += CountNotCarried(format.values, values);
      std::copy_n(values.data, values.size, piece->own);
      std::fill_n(values.data, values.size, 0.0f);
    } else if (adds) {
      piece->code_bytes = AccumulateAndTakeCoded(format, feedback, piece->code, &refused);
    } else {
      piece->code_bytes = TakeCoded(format, values, piece->code, &refused);
    }
    return refused;
  }

  Buffer codes_, own_;
  std::vector<float> sums_;                       // of one piece
  std::vector<std::pair<Index, float>> rounded_;  // residuals before they took rounding errors
  std::int64_t overflows_ = 0;
};

}  // namespace

std::unique_ptr<DenseWork> NewCpuDenseWork() { return std::make_unique<CpuDenseWork>(); }

}  // namespace hvd_sparse
