/// CUDA-aware MPI as a way to connect devices, used if the exchange's MPI library reports that it
/// is CUDA-aware.

#pragma once

#include "csrc/collectives/gpu_transport_option.h"

namespace hvd_sparse::cuda {

const GpuTransportOption& MpiOption();

}  // namespace hvd_sparse::cuda
