/// CUDA-aware MPI as a way to connect devices, used if the exchange's MPI library reports that it
/// is CUDA-aware.

#ifndef HVD_SPARSE_CUDA_TRANSPORT_MPI_MEANS_H_
#define HVD_SPARSE_CUDA_TRANSPORT_MPI_MEANS_H_

#include "csrc/collectives/device_means.h"

namespace hvd_sparse::cuda {

const DeviceMeans& MpiMeans();

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_TRANSPORT_MPI_MEANS_H_
