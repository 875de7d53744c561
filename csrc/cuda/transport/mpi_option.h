/// CUDA-aware MPI as a way to connect devices, used if the exchange's MPI library reports that it
/// is CUDA-aware.

#ifndef HVD_SPARSE_CUDA_TRANSPORT_MPI_OPTION_H_
#define HVD_SPARSE_CUDA_TRANSPORT_MPI_OPTION_H_

#include "csrc/collectives/gpu_transport_option.h"

namespace hvd_sparse::cuda {

const GpuTransportOption& MpiOption();

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_TRANSPORT_MPI_OPTION_H_
