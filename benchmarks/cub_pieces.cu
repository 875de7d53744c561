/// CUB's compaction and top-k, for comparison: cub_pieces.py compiles this for the device at hand,
/// against the CUB that comes with nvcc. Nothing of the package is linked to it.
///
/// Each function asks CUB for the bytes of temporary memory where `temp` is null, else gives the
/// stream its work. It returns CUDA's error, 0 if there is none.

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

/// The places of all entries of u that exceed a threshold, in order, and how many they are.
int cub_select(void* temp, std::size_t* bytes, const float* u, float threshold, int* places,
               int* count, int numel, cudaStream_t stream) {
  return cub::DeviceSelect::If(temp, *bytes, thrust::counting_iterator<int>(0), places, count,
                               numel, Exceeds{u, threshold}, stream);
}

/// The places of the k largest magnitudes of u, and these, in no order.
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
