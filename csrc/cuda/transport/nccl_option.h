/// NCCL as a way to connect devices: the description of a rank's NCCL and device, and whether ranks
/// can use theirs together.

#pragma once

#include <string>
#include <vector>

#include "csrc/collectives/gpu_transport_option.h"
#include "csrc/cuda/transport/nccl_library.h"

namespace hvd_sparse {

namespace nccl {

/// A rank's NCCL and device.
struct Description {
  int version = 0;
  bool may_share = false;  ///< NCCL_MULTI_RANK_GPU_ENABLE=1
  std::string device;      ///< number, host and UUID; the latter two identify a GPU

  /// Text writes the form in which a description is sent, Of parses it.
  std::string Text() const;
  static Description Of(const std::string& text);
};

/// Describes the NCCL of this process, and its `device`. Throws Unavailable without NCCL.
Description Describe(int device);

/// Returns why ranks, described in rank order, cannot use NCCL together; empty if they can.
std::string WhyNot(const std::vector<Description>& ranks);

/// Returns an invitation with a new id. Throws Unavailable if NCCL makes none.
Invitation Invite();

/// Returns the id that an invitation holds.
UniqueId IdIn(const Invitation& invitation);

}  // namespace nccl

namespace cuda {

const GpuTransportOption& NcclOption();

}  // namespace cuda

}  // namespace hvd_sparse
