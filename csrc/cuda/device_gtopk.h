/// gTop-k between devices: the rounds of csrc/collectives/gtopk.cc, with its bits, given to a
/// stream as a whole. The CPU does not learn how many entries there are, nor wait between rounds
/// unless the transport does.
///
///     a guest     sends its block to its host, and receives the finished one
///     a host      first merges its guest's block into its own
///     round r     swap blocks with rank XOR 2^r; merge; keep the k largest
///
/// Launches: one that clears scratch memory and four for each merge (merge with the first digit's
/// counts, two more digits, compaction): 4 log2 P + 1 for a power of two, at most 4 log2 P + 5
/// else. Sent by each rank in a round: 8 ceil(slack k) bytes and a header, however many entries
/// there are.

#ifndef HVD_SPARSE_CUDA_DEVICE_GTOPK_H_
#define HVD_SPARSE_CUDA_DEVICE_GTOPK_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "csrc/collectives/topology.h"
#include "csrc/cuda/block_merge.h"
#include "csrc/cuda/block_top_k.h"
#include "csrc/cuda/device_block.h"
#include "csrc/cuda/device_memory.h"
#include "csrc/cuda/device_transport.h"
#include "csrc/cuda/message_memory.h"

namespace hvd_sparse::cuda {

class DeviceGTopK {
 public:
  /// Of at most `max_k` of `numel` entries; all arguments but the transport's rank are the same on
  /// all ranks. Allocates on the current device all that it will ever need. The transport outlives
  /// it.
  DeviceGTopK(std::int64_t numel, std::int64_t max_k, double slack, DeviceTransport* transport);

  /// Gives the stream the clearing of all blocks, before anything else: messages are sent as a
  /// whole, and what lies behind their entries would never have been written.
  void ClearBlocks(cudaStream_t stream) const { rest_.Clear(stream); }

  /// From now on k entries are asked for, at first max_k; the same on all ranks, since messages are
  /// as long as that takes. Where blocks lie changes.
  void Ask(std::int64_t k);

  /// Where this rank's block is to be before Run: at most k entries, all with the survived bit. It
  /// stays as it is.
  const DeviceBlock& selected() const { return selected_; }

  /// The agreed block after Run, with the survived bits and the joined header.
  const DeviceBlock& reduced() const { return reduced_; }

  /// Gives the stream all rounds. One call's work must be done before the next one's begins, which
  /// it is on one stream.
  void Run(cudaStream_t stream);

  /// What Run gives a stream, besides the transport's work: kernels, and one clearing of memory.
  int launches() const;

 private:
  struct Merging {
    MergeScratch merge;
    TopKScratch trim;
  };

  void DivideZeros(Divider* divider);

  /// For k and kept entries as they are asked for.
  void DivideRest(Divider* divider);

  /// running = the `count` largest of own + theirs.
  void MergeAndTrim(const DeviceBlock& own, std::int64_t count, bool marks, const Merging& scratch,
                    cudaStream_t stream);

  DeviceTransport& transport_;
  const FoldedCube cube_;
  const std::int64_t numel_, max_k_;
  const double slack_;
  std::int64_t k_ = 0, kept_ = 0;
  std::vector<Merging> mergings_;  // one for each merge: all are cleared at once
  DeviceBlock selected_, theirs_, merged_, running_, reduced_;
  const DeviceBytes zeros_;
  const MessageBytes rest_;
};

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_DEVICE_GTOPK_H_
