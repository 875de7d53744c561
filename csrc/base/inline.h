/// HVD_SPARSE_INLINE: functions that run on the CPU and, where nvcc compiles them, on GPUs.

#ifndef HVD_SPARSE_BASE_INLINE_H_
#define HVD_SPARSE_BASE_INLINE_H_

#ifdef __CUDACC__  // csrc/cuda/ uses the inline functions, too
#define HVD_SPARSE_INLINE __host__ __device__ inline __attribute__((always_inline))
#else
#define HVD_SPARSE_INLINE inline __attribute__((always_inline))
#endif

#endif  // HVD_SPARSE_BASE_INLINE_H_
