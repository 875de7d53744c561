/// Whether the ranks of an exchange use NCCL: all of them, or none.
///
/// A rank that called NCCL while another cannot would wait for ever. So each says beforehand what
/// it has, by way of the exchange's own messages; rank 0 decides, and tells all of them the same.

#ifndef HVD_SPARSE_CUDA_NCCL_AGREEMENT_H_
#define HVD_SPARSE_CUDA_NCCL_AGREEMENT_H_

#include <optional>
#include <string>
#include <vector>

#include "csrc/comm/communicator.h"
#include "csrc/cuda/nccl_library.h"

namespace hvd_sparse::nccl {

/// What HVD_SPARSE_NCCL asks for.
enum class Wish {
  kNever,       ///< unset, or 0
  kIfPossible,  ///< auto
  kAlways,      ///< 1: an exchange without NCCL is refused
};

/// What a rank has.
struct Means {
  Wish wish = Wish::kNever;
  std::string error;    ///< of what the user asked for; empty if there is none
  std::string problem;  ///< why this rank cannot use NCCL; empty if it can
  int version = 0;
  std::string device;      ///< the same for two ranks that share a GPU, only
  bool may_share = false;  ///< NCCL_MULTI_RANK_GPU_ENABLE=1
};

/// Of this process, with gradients on a device of it. Throws nothing: what is wrong is in there.
Means MeansOf(int device);

/// Why ranks with these means, in their order, do not use NCCL together; empty if they do.
std::string WhyNot(const std::vector<Means>& ranks);

struct Agreement {
  std::string problem;    ///< why no rank uses NCCL; empty if all do
  bool declined = false;  ///< because a rank does not want to
  UniqueId id = {};       ///< of the new communicator
};

/// Decides for all ranks of `comm`. Collective.
///
/// Throws, on all ranks alike, InvalidArgument if HVD_SPARSE_NCCL has no such value on one of them,
/// and Unavailable if one of them insists on NCCL and it cannot be used.
Agreement Agree(Communicator* comm, const Means& own);

}  // namespace hvd_sparse::nccl

#endif  // HVD_SPARSE_CUDA_NCCL_AGREEMENT_H_
