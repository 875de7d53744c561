#include "csrc/cuda/kernels/merge_work.h"

#include <algorithm>

#include "csrc/base/error.h"
#include "csrc/cuda/base/check.h"
#include "csrc/cuda/base/memory.h"
#include "csrc/cuda/base/stream.h"
#include "csrc/cuda/kernels/cuda_kernels.h"
#include "csrc/cuda/kernels/launches.h"

namespace hvd_sparse::cuda {
namespace {

/// Copies memory and waits until the copy is done; called before the work begins and after it has
/// ended. cudaMemcpy alone may return while pageable memory is still being copied to the device,
/// and the work's stream waits for no other stream.
void Copy(void* to, const void* from, std::int64_t bytes) {
  if (bytes == 0) return;
  Check(cudaMemcpy(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault), "copy memory");
  Check(cudaDeviceSynchronize(), "finish a copy");
}

void Upload(const SparseBlock& block, const DeviceBlock& to) {
  DeviceBlockHeader header;
  header.count = static_cast<std::uint32_t>(block.count());
  Copy(to.header, &header, sizeof(header));
  Copy(to.indices, block.indices(), block.count() * SizeOf(DType::kFloat32));
  Copy(to.values, block.values(), block.count() * SizeOf(DType::kFloat32));
}

class MergeOnDevice final : public MergeWork {
 public:
  MergeOnDevice(int device, const SparseBlock& own, const SparseBlock& theirs, std::int64_t k)
      : device_(device),
        k_(k),
        most_(std::max({own.count(), theirs.count(), k})),
        zeros_([this](Divider* divider) { DivideZeros(divider); }),
        rest_([this](Divider* divider) { DivideRest(divider); }) {
    Upload(own, own_);
    Upload(theirs, theirs_);
  }

  void Enqueue(StreamHandle handle) override {
    const OnDevice current(device_);
    const cudaStream_t stream = StreamOf(handle);
    zeros_.Clear(stream);
    LaunchMerge(own_, theirs_, merged_, merge_, trim_.digits, stream);
    LaunchKeepTopK({k_, true, false, {}}, merged_, result_, trim_, stream);
  }

  void WaitForResult(SparseBlock* result) override {
    const OnDevice current(device_);
    Check(cudaDeviceSynchronize(), "finish its work");
    std::uint32_t made = 0;
    Copy(&made, &result_.header->count, sizeof(made));
    const std::int64_t count = std::min<std::int64_t>(made, result_.capacity);
    result->Reset(count);
    Copy(result->indices(), result_.indices, count * SizeOf(DType::kFloat32));
    Copy(result->values(), result_.values, count * SizeOf(DType::kFloat32));
    result->Finish(count);
  }

 private:
  std::int64_t Both() const { return 2 * DeviceBlock::CapacityFor(most_); }
  void DivideZeros(Divider* divider) {
    merge_ = MergeScratch::From(divider, Both());
    trim_ = TopKScratch::From(divider, Both());
  }
  void DivideRest(Divider* divider) {
    own_ = divider->TakeBlock(most_);
    theirs_ = divider->TakeBlock(most_);
    merged_ = divider->TakeBlock(Both());
    result_ = divider->TakeBlock(k_);
  }

  const int device_;
  const std::int64_t k_, most_;
  MergeScratch merge_;
  TopKScratch trim_;
  DeviceBlock own_, theirs_, merged_, result_;
  const DeviceBytes zeros_, rest_;
};

}  // namespace

std::unique_ptr<MergeWork> MakeMergeWork(int device, const SparseBlock& own,
                                         const SparseBlock& theirs, std::int64_t k) {
  CheckDevice(device);
  Require(k >= 1 && k <= kMostToMerge, "k must lie in [1, ", kMostToMerge, "], got ", k);
  const OnDevice current(device);
  return std::make_unique<MergeOnDevice>(device, own, theirs, k);
}

}  // namespace hvd_sparse::cuda
