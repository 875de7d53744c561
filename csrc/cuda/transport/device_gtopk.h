/// gTop-k between devices: the rounds of csrc/collectives/gtopk.cc, with its bits, enqueued as a
/// whole. The CPU does not learn how many entries there are, and waits between rounds only if the
/// transport does.
///
///     a guest     sends its block to its host, and receives the finished one
///     a host      first merges its guest's block into its own
///     round r     swap blocks with rank XOR 2^r; merge; keep the k largest
///
/// Sent by each rank in a round: 8 bytes for each entry that is kept, rounded up to 64, and a
/// header, however many entries there are.

#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "csrc/collectives/collective_options.h"
#include "csrc/collectives/topology.h"
#include "csrc/cuda/base/device_block.h"
#include "csrc/cuda/base/device_transport.h"
#include "csrc/cuda/base/memory.h"
#include "csrc/cuda/kernels/launches.h"

namespace hvd_sparse::cuda {

class DeviceGTopK {
 public:
  /// Prepares gTop-k of `k` of `numel` entries; all arguments but the transport's rank are the same
  /// on all ranks. Allocates all memory that it will ever need on the current device. The transport
  /// must outlive this object.
  DeviceGTopK(std::int64_t numel, std::int64_t k, const CollectiveOptions& options,
              DeviceTransport* transport);

  /// Enqueues the clearing of all blocks, which precedes all other work: messages are sent as a
  /// whole, and the part behind their entries would be uninitialised.
  void ClearBlocks(cudaStream_t stream) const { rest_.Clear(stream); }

  /// The block that the caller writes before Run: this rank's entries, at most k, all with the
  /// survived bit. Run does not change it.
  const DeviceBlock& selected() const { return selected_; }

  /// The reduced block after Run, with the survived bits and the combined header.
  const DeviceBlock& reduced() const { return cube_.size > 1 ? running_ : selected_; }

  /// Enqueues all rounds. One call's work must be done before the next one's begins, as it is on a
  /// single stream.
  void Run(cudaStream_t stream);

 private:
  struct Merging {
    MergeScratch merge;
    TopKScratch trim;
  };

  void DivideZeros(Divider* divider);
  void DivideRest(Divider* divider);

  /// running = the `count` largest of own + theirs.
  void MergeAndTrim(const DeviceBlock& own, std::int64_t count, bool marks, const Merging& scratch,
                    cudaStream_t stream);

  DeviceTransport& transport_;
  const FoldedCube cube_;
  const std::int64_t k_, kept_;
  std::vector<Merging> mergings_;  // one for each merge: all are cleared at once
  DeviceBlock selected_, theirs_, merged_, running_;
  const DeviceBytes zeros_;
  const MessageBytes rest_;
};

}  // namespace hvd_sparse::cuda
