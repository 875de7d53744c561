/// Blocks of a device for tests: written from the CPU, and read back.

#ifndef HVD_SPARSE_TESTS_CSRC_CUDA_DEVICE_BLOCKS_H_
#define HVD_SPARSE_TESTS_CSRC_CUDA_DEVICE_BLOCKS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "csrc/cuda/base/device_block.h"
#include "csrc/cuda/base/memory.h"
#include "tests/csrc/cuda/device_array.h"
#include "tests/csrc/entries.h"

namespace hvd_sparse {

inline void CopyBytes(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  cuda::Check(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), "copy");
  cuda::Check(cudaDeviceSynchronize(), "finish");  // other streams do not wait for the copy
}

/// A copy of a device's block on the CPU.
struct BlockOnCpu {
  cuda::DeviceBlockHeader header;
  Entries entries;

  explicit BlockOnCpu(const cuda::DeviceBlock& block) {
    cuda::Check(cudaDeviceSynchronize(), "finish");
    CopyBytes(&header, block.header, sizeof(header));
    const auto count = std::min<std::size_t>(header.count, block.capacity);
    std::vector<Index> indices(count);
    std::vector<float> values(count);
    CopyBytes(indices.data(), block.indices, count * sizeof(Index));
    CopyBytes(values.data(), block.values, count * sizeof(float));
    for (std::size_t i = 0; i < count; ++i) entries.push_back({indices[i], values[i]});
  }
};

/// A block on a device that owns its memory.
class OwnedBlock {
 public:
  explicit OwnedBlock(std::int64_t entries)
      : capacity_(cuda::DeviceBlock::CapacityFor(std::max<std::int64_t>(entries, 1))),
        bytes_(static_cast<std::size_t>(cuda::DeviceBlock::BytesFor(capacity_))) {
    bytes_.Clear(nullptr);  // unused room is read, too: by copies, and for malformed blocks
    cuda::Check(cudaDeviceSynchronize(), "finish");
  }
  explicit OwnedBlock(const Entries& entries, cuda::DeviceBlockHeader header = {})
      : OwnedBlock(static_cast<std::int64_t>(entries.size())) {
    std::vector<Index> indices;
    std::vector<float> values;
    for (const Entry& entry : entries) {
      indices.push_back(entry.index);
      values.push_back(entry.value);
    }
    header.count = static_cast<std::uint32_t>(entries.size());
    SetHeader(header);
    CopyBytes(block().indices, indices.data(), indices.size() * sizeof(Index));
    CopyBytes(block().values, values.data(), values.size() * sizeof(float));
  }

  cuda::DeviceBlock block() const { return cuda::DeviceBlock::In(bytes_.get(), capacity_); }
  void SetHeader(const cuda::DeviceBlockHeader& header) {
    CopyBytes(block().header, &header, sizeof(header));
  }

 private:
  const std::int64_t capacity_;
  const cuda::DeviceBytes bytes_;
};

/// Zeroed scratch memory for one launch, laid out by T::From(divider, capacity).
template <typename T>
class ZeroedScratch {
 public:
  explicit ZeroedScratch(std::int64_t capacity)
      : bytes_(cuda::SizeOfAll([&](cuda::Divider* divider) { T::From(divider, capacity); })) {
    bytes_.Clear(nullptr);
    cuda::Divider divider(bytes_.get());
    scratch_ = T::From(&divider, capacity);
  }
  const T& get() const { return scratch_; }

 private:
  const cuda::DeviceBytes bytes_;
  T scratch_;
};

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_TESTS_CSRC_CUDA_DEVICE_BLOCKS_H_
