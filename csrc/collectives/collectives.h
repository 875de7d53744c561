/// Declarations of the collectives; each is defined and described in the file of its name.

#ifndef HVD_SPARSE_COLLECTIVES_COLLECTIVES_H_
#define HVD_SPARSE_COLLECTIVES_COLLECTIVES_H_

#include <cstdint>

#include "csrc/collectives/sparse_allreduce.h"

namespace hvd_sparse {

/// The most messages to different ranks that a collective has in flight at once; others wait.
inline constexpr int kMessagesAtOnce = 32;

/// Steps after which split_allgather divides the bucket anew among the ranks.
inline constexpr std::uint64_t kStepsBetweenRegions = 64;

class Allgather final : public SparseAllreduce {
 public:
  bool DeliversAll() const override { return true; }
  bool IsExact() const override { return true; }
  void Run(SparseBlock* block, CollectiveContext& ctx) const override;
};

class GTopK final : public SparseAllreduce {
 public:
  /// Returns how many entries the merges before the last one keep, of k that are asked for.
  static std::int64_t KeptBeforeTheLast(std::int64_t k, std::int64_t numel,
                                        const CollectiveOptions& options);

  bool DeliversAll() const override { return false; }
  bool IsExact() const override { return false; }
  void Trim(std::int64_t k, Span<float> residual, const Kernels& kernels,
            SparseBlock* selected) const override;
  void Run(SparseBlock* block, CollectiveContext& ctx) const override;
};

class Hierarchical final : public SparseAllreduce {
 public:
  bool DeliversAll() const override { return false; }
  bool IsExact() const override { return false; }
  bool SumsNodesFirst() const override { return true; }
  void Trim(std::int64_t k, Span<float> residual, const Kernels& kernels,
            SparseBlock* selected) const override;
  void Run(SparseBlock* block, CollectiveContext& ctx) const override;
};

class RecursiveDoubling final : public SparseAllreduce {
 public:
  bool DeliversAll() const override { return true; }
  bool IsExact() const override { return true; }
  void Run(SparseBlock* block, CollectiveContext& ctx) const override;
};

/// The guarantees of shard_sum, which a ShardSum runs.
class ShardSums final : public Collective {
 public:
  bool DeliversAll() const override { return true; }
  bool IsExact() const override { return true; }
  bool SumsNodesFirst() const override { return true; }
};

class SplitAllgather final : public SparseAllreduce {
 public:
  bool DeliversAll() const override { return false; }
  bool IsExact() const override { return true; }
  void Run(SparseBlock* block, CollectiveContext& ctx) const override;
};

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_COLLECTIVES_COLLECTIVES_H_
