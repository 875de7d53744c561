/// Buffers through which entries taken from a residual on a device reach a block of the CPU.

#ifndef HVD_SPARSE_CUDA_KERNELS_TAKEN_BUFFERS_H_
#define HVD_SPARSE_CUDA_KERNELS_TAKEN_BUFFERS_H_

#include <algorithm>
#include <cstdint>

#include "csrc/cuda/base/work.h"
#include "csrc/cuda/kernels/take.h"
#include "csrc/kernels/cpu_feedback.h"

namespace hvd_sparse::cuda {

/// Buffers for taken entries, on the device and then on the CPU. They are allocated before a pass:
/// after it the entries have left the residual, and must not be lost for lack of memory.
class TakenBuffers {
 public:
  TakenBuffers(const cpu::Room& room, Span<float> residual, Index offset, Work* work)
      : room_(room),
        work_(*work),
        size_(std::min(room.size, residual.size)),
        taken_{work->Scratch<Index>(size_), work->Scratch<float>(size_), size_, offset},
        indices_(work->Staged<Index>(size_)),
        values_(work->Staged<float>(size_)),
        totals_(work->Staged<Totals>(1)) {}

  const Taken& taken() const { return taken_; }

  /// Copies the taken entries to the block, and returns their tally. `ties`: how many entries equal
  /// to the cut were to be taken.
  Tally Receive(const Totals* totals, std::int64_t ties = 0) const {
    work_.Fetch(totals, 1, totals_);
    work_.Finish();
    const auto [above, all_ties, not_finite] = *totals_;
    const std::int64_t count = std::min(above + std::min<std::int64_t>(all_ties, ties), size_);
    if (count > 0) {
      work_.Fetch(taken_.indices, count, indices_);
      work_.Fetch(taken_.values, count, values_);
      work_.Finish();
      std::copy_n(indices_, count, room_.indices);
      std::copy_n(values_, count, room_.values);
    }
    return {above, count, not_finite};
  }

 private:
  const cpu::Room room_;
  Work& work_;
  const std::int64_t size_;
  const Taken taken_;
  Index* const indices_;
  float* const values_;
  Totals* const totals_;
};

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_KERNELS_TAKEN_BUFFERS_H_
