/// Which NCCL a program of this build would use: the one place that knows whether it was built in.

#ifndef HVD_SPARSE_COMM_NCCL_FOR_H_
#define HVD_SPARSE_COMM_NCCL_FOR_H_

#include <string>
#include <vector>

namespace hvd_sparse {

/// Whether this build can use NCCL.
bool BuiltWithNccl();

struct NcclFacts {
  std::string version;  ///< "2.27.3"
  std::string path;     ///< of the file that was loaded
};

/// Loads NCCL, for this process and for good, unless that has happened: the file that
/// HVD_SPARSE_NCCL_LIBRARY names, else libnccl.so.2 where the system's loader looks, else the first
/// of `also_at` that is there.
///
/// Throws Unavailable, and says what to do: there is none, or it is too old, or this build has no
/// NCCL.
NcclFacts FindNccl(const std::vector<std::string>& also_at);

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_COMM_NCCL_FOR_H_
