/// A segment's candidates on a CUDA device; contract in csrc/kernels/candidates.h.
///
/// They lie in a piece of memory, and are compacted into another one. Both belong to the thread and
/// are used again.

#pragma once

#include <cstdint>
#include <optional>

#include "csrc/base/sparse_block.h"
#include "csrc/cuda/base/device_block.h"
#include "csrc/cuda/base/work.h"
#include "csrc/cuda/kernels/launches.h"
#include "csrc/kernels/kernels.h"

namespace hvd_sparse::cuda {

class DeviceCandidates final : public Candidates {
 public:
  /// See Kernels::NewCandidates. The thread's former candidates on this device must have been
  /// fetched or put back.
  DeviceCandidates(int device, Span<float> bucket, std::int64_t filled, std::int64_t room,
                   SparseBlock* out);

  Tally Take(const Feedback& feedback, float threshold) override;
  void TakeCut(Span<float> residual, TopKCut cut) override;
  void TakeAt(Span<float> residual, Span<const Index> positions) override;
  void KeepTopK(std::int64_t k) override;
  void Keep(const SignGroup& group) override;
  void PutBack() override;
  std::int64_t count() const override { return count_; }
  float Smallest() override;
  SignSums LargestOfSigns(std::int64_t k) override;
  void Fetch() override;

 private:
  /// Returns memory for candidates.
  DeviceBlock NewMemory(Work* work) const;

  /// Takes the other memory if that has not been done.
  void NeedOther(Work* work);

  /// Returns the candidates as a block. Its header counts more than that, which a capacity limits.
  DeviceBlock Own() const;

  /// Returns the memory behind the candidates, for those of a part of the bucket.
  Taken Behind(Span<float> residual) const;

  /// Notes that there are `count` candidates now.
  void NoteCount(std::int64_t count);

  /// Notes that `count` candidates have been compacted into the other memory.
  void NoteKept(std::int64_t count);

  const int device_;
  const Span<float> bucket_;
  const std::int64_t filled_, room_;
  SparseBlock* const out_;
  DeviceBlock own_, other_;
  std::int64_t count_ = 0;
  bool is_fetched_ = false;        // the candidates lie in the block, too
  std::optional<float> smallest_;  // once it is known
};

}  // namespace hvd_sparse::cuda
