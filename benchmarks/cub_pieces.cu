/// CUB's compaction and top-k, for comparison: cub_pieces.py compiles this for the device in use,
/// with the CUB of the installed nvcc. It is not linked with the package.
///
/// With a null `temp`, each function returns in `bytes` the size of the temporary memory; otherwise
/// it launches its work on the stream. It returns CUDA's error, 0 if there is none.

#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>

#include <cub/device/device_select.cuh>
#include <cub/version.cuh>

#if __has_include(<cub/device/device_topk.cuh>)
#include <cub/device/device_topk.cuh>
#define HAS_TOP_K 1
#else
#define HAS_TOP_K 0
#endif

namespace {

struct Exceeds {
  const float* u;
  float threshold;
  __device__ bool operator()(int place) const { return fabsf(u[place]) > threshold; }
};

#if HAS_TOP_K
struct Magnitude {
  __device__ float operator()(float value) const { return fabsf(value); }
};
#endif

}  // namespace

extern "C" {

int cub_version() { return CUB_VERSION; }
int cub_has_top_k() { return HAS_TOP_K; }

/// Finds the positions, in order, of all entries of u that exceed a threshold, and their count.
int cub_select(void* temp, std::size_t* bytes, const float* u, float threshold, int* places,
               int* count, int numel, cudaStream_t stream) {
  return cub::DeviceSelect::If(temp, *bytes, thrust::counting_iterator<int>(0), places, count,
                               numel, Exceeds{u, threshold}, stream);
}

/// Finds the positions of the k largest magnitudes of u, and these magnitudes, in no order.
int cub_top_k(void* temp, std::size_t* bytes, const float* u, int* places, float* magnitudes,
              int numel, int k, cudaStream_t stream) {
#if HAS_TOP_K
  const auto requirements = cuda::execution::require(cuda::execution::determinism::not_guaranteed,
                                                     cuda::execution::output_ordering::unsorted);
  const auto env = cuda::std::execution::env{cuda::stream_ref{stream}, requirements};
  const auto keys = thrust::make_transform_iterator(u, Magnitude{});
  return cub::DeviceTopK::MaxPairs(temp, *bytes, keys, magnitudes,
                                   thrust::counting_iterator<int>(0), places, numel, k, env);
#else
  (void)temp, (void)bytes, (void)u, (void)places, (void)magnitudes, (void)numel, (void)k;
  (void)stream;
  return cudaErrorNotSupported;
#endif
}

}  // extern "C"
