/// NCCL as a way to connect devices: what a rank says of its own, and whether ranks can use theirs
/// together.

#ifndef HVD_SPARSE_CUDA_NCCL_MEANS_H_
#define HVD_SPARSE_CUDA_NCCL_MEANS_H_

#include <string>
#include <vector>

#include "csrc/collectives/device_means.h"
#include "csrc/cuda/nccl_library.h"

namespace hvd_sparse {

namespace nccl {

/// What a rank has.
struct Description {
  int version = 0;
  bool may_share = false;  ///< NCCL_MULTI_RANK_GPU_ENABLE=1
  std::string device;      ///< the same for two ranks that share a GPU, only

  /// Both ways, as it travels.
  std::string Text() const;
  static Description Of(const std::string& text);
};

/// Of this process, with gradients on a device of it. Throws Unavailable without NCCL.
Description Describe(int device);

/// Why such ranks, in their order, cannot use NCCL together; empty if they can.
std::string WhyNot(const std::vector<Description>& ranks);

/// What an invitation holds.
UniqueId IdIn(const Invitation& invitation);

}  // namespace nccl

namespace cuda {

const DeviceMeans& NcclMeans();

}  // namespace cuda

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_CUDA_NCCL_MEANS_H_
