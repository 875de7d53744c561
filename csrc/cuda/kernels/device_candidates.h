/// A selection's candidates on a CUDA device; contract in csrc/kernels/candidates.h.
///
/// They lie in one of two pieces of memory, and are compacted into the other. Both belong to the
/// thread and are used again.

#ifndef HVD_SPARSE_CUDA_KERNELS_DEVICE_CANDIDATES_H_
#define HVD_SPARSE_CUDA_KERNELS_DEVICE_CANDIDATES_H_

#include <array>
#include <cstdint>
#include <optional>
#include <utility>

#include "csrc/cuda/base/device_block.h"
#include "csrc/cuda/base/work.h"
#include "csrc/kernels/kernels.h"

namespace hvd_sparse::cuda {

class DeviceCandidates final : public Candidates {
 public:
  /// Makes room for `room` candidates of a segment of `bucket`. The thread's former candidates on
  /// this device must have been fetched or put back.
  DeviceCandidates(int device, std::int64_t room, Span<float> bucket);

  Tally Take(const Feedback& feedback, float threshold, Index offset) override;
  void KeepTopK(std::int64_t k) override;
  void Keep(const SignGroup& group) override;
  void PutBack() override;
  std::int64_t count() const override { return count_; }
  float Smallest() override;
  std::array<SignSum, 2> LargestOfSigns(std::int64_t k) override;
  void Fetch(std::int64_t filled, SparseBlock* out) override;

 private:
  /// Returns the candidates as a block. Its header counts more than that, which a capacity limits.
  DeviceBlock Own() const;

  /// Notes that `count` candidates have been compacted into the other memory.
  void NoteKept(std::int64_t count);

  const int device_;
  const std::int64_t room_;
  const Span<float> bucket_;
  DeviceBlock own_, other_;
  std::int64_t count_ = 0;
  std::optional<float> smallest_;  // once it is known
};

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_KERNELS_DEVICE_CANDIDATES_H_
