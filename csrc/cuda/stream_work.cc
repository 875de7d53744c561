#include "csrc/cuda/stream_work.h"

#include <algorithm>

#include "csrc/base/error.h"
#include "csrc/cuda/block_merge.h"
#include "csrc/cuda/block_top_k.h"
#include "csrc/cuda/cuda_kernels.h"
#include "csrc/cuda/device_selector.h"
#include "csrc/cuda/residual_top_k.h"
#include "csrc/cuda/stream.h"

namespace hvd_sparse::cuda {
namespace {

/// Copies that wait: before the work begins, and after it has ended.
void Copy(void* to, const void* from, std::int64_t bytes) {
  if (bytes == 0) return;
  Check(cudaMemcpy(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault), "copy memory");
}

void Upload(const SparseBlock& block, const DeviceBlock& to) {
  DeviceBlockHeader header;
  header.count = static_cast<std::uint32_t>(block.count());
  Copy(to.header, &header, sizeof(header));
  Copy(to.indices, block.indices(), block.count() * SizeOf(DType::kFloat32));
  Copy(to.values, block.values(), block.count() * SizeOf(DType::kFloat32));
}

/// What the pieces have in common: a device, a block that they make, memory of their own.
class WorkOnDevice : public StreamWork {
 public:
  void Give(StreamHandle stream) final {
    const OnDevice current(device_);
    GiveTo(reinterpret_cast<cudaStream_t>(stream));  // NOLINT: frameworks pass streams as numbers
  }

  void Fetch(SparseBlock* result) final {
    const OnDevice current(device_);
    Check(cudaDeviceSynchronize(), "finish its work");
    DeviceBlockHeader header;
    Copy(&header, result_.header, sizeof(header));
    const std::int64_t count = std::min<std::int64_t>(header.count, result_.capacity);
    result->Reset(count);
    Copy(result->indices(), result_.indices, count * SizeOf(DType::kFloat32));
    Copy(result->values(), result_.values, count * SizeOf(DType::kFloat32));
    result->Finish(count);
  }

 protected:
  explicit WorkOnDevice(int device) : device_(device) {}
  virtual void GiveTo(cudaStream_t stream) = 0;

  const int device_;
  DeviceBlock result_;
};

class MergeWork final : public WorkOnDevice {
 public:
  MergeWork(int device, const SparseBlock& own, const SparseBlock& theirs, std::int64_t k)
      : WorkOnDevice(device),
        k_(k),
        most_(std::max({own.count(), theirs.count(), k})),
        zeros_(SizeOfAll([this](Divider* divider) { DivideZeros(divider); })),
        rest_(SizeOfAll([this](Divider* divider) { DivideRest(divider); })) {
    Divider zeros(zeros_.get()), rest(rest_.get());
    DivideZeros(&zeros);
    DivideRest(&rest);
    Upload(own, own_);
    Upload(theirs, theirs_);
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
  void GiveTo(cudaStream_t stream) override {
    zeros_.Clear(stream);
    LaunchMerge(own_, theirs_, merged_, merge_, trim_.digits, stream);
    LaunchKeepTopK({k_, true, false, {}}, merged_, result_, trim_, stream);
  }

  const std::int64_t k_, most_;
  MergeScratch merge_;
  TopKScratch trim_;
  DeviceBlock own_, theirs_, merged_;
  const DeviceBytes zeros_, rest_;
};

class PassWork final : public WorkOnDevice {
 public:
  PassWork(int device, GradView gradient, Span<float> residual, float threshold,
           std::int64_t capacity)
      : WorkOnDevice(device),
        feedback_{gradient, 1, 1, residual},
        zeros_(SizeOfAll([this](Divider* divider) { DivideZeros(divider); })),
        rest_(SizeOfAll([&](Divider* divider) { DivideRest(divider, capacity); })) {
    Divider zeros(zeros_.get()), rest(rest_.get());
    DivideZeros(&zeros);
    DivideRest(&rest, capacity);
    Copy(threshold_, &threshold, sizeof(threshold));
  }

 private:
  void DivideZeros(Divider* divider) {
    take_ = TakeScratch::From(divider, feedback_.residual.size);
  }
  void DivideRest(Divider* divider, std::int64_t capacity) {
    result_ = divider->TakeBlock(capacity);
    threshold_ = divider->Take<float>(1);
  }
  void GiveTo(cudaStream_t stream) override {
    zeros_.Clear(stream);
    LaunchTakeAbove(feedback_, threshold_, {result_.indices, result_.values, result_.capacity, 0},
                    take_, stream);
    LaunchSeal(result_, {}, take_, {}, nullptr, stream);
  }

  const Feedback feedback_;
  TakeScratch take_;
  float* threshold_ = nullptr;
  const DeviceBytes zeros_, rest_;
};

class SelectWork final : public WorkOnDevice {
 public:
  SelectWork(int device, GradView gradient, Span<float> residual, std::int64_t k)
      : WorkOnDevice(device),
        feedback_{gradient, 1, 1, residual},
        selector_(residual.size, k),
        memory_(SizeOfAll([&](Divider* divider) { Divide(divider, k); })) {
    Divider divider(memory_.get());
    Divide(&divider, k);
    const SelectionState none;
    Copy(state_, &none, sizeof(none));
  }

 private:
  void Divide(Divider* divider, std::int64_t k) {
    result_ = divider->TakeBlock(k);
    state_ = divider->Take<SelectionState>(1);
  }
  void GiveTo(cudaStream_t stream) override {
    selector_.Select(feedback_, {}, state_, result_, stream);
  }

  const Feedback feedback_;
  DeviceSelector selector_;
  SelectionState* state_ = nullptr;
  const DeviceBytes memory_;
};

void CheckSizes(GradView gradient, Span<float> residual) {
  Require(gradient.numel == residual.size && residual.size > 0,
          "gradient and residual must have the same size, at least 1; got ", gradient.numel,
          " and ", residual.size);
  Require(residual.size <= kMaxBucketNumel, "a residual has at most ", kMaxBucketNumel,
          " entries, got ", residual.size);
}

}  // namespace

std::unique_ptr<StreamWork> MakeMergeWork(int device, const SparseBlock& own,
                                          const SparseBlock& theirs, std::int64_t k) {
  CheckDevice(device);
  Require(k >= 1 && k <= kMaxBucketNumel / 2, "k must lie in [1, ", kMaxBucketNumel / 2, "], got ",
          k);
  const OnDevice current(device);
  return std::make_unique<MergeWork>(device, own, theirs, k);
}

std::unique_ptr<StreamWork> MakePassWork(int device, GradView gradient, Span<float> residual,
                                         float threshold, std::int64_t capacity) {
  CheckDevice(device);
  CheckSizes(gradient, residual);
  Require(capacity >= 1 && capacity <= residual.size, "capacity must lie in [1, ", residual.size,
          "], got ", capacity);
  const OnDevice current(device);
  return std::make_unique<PassWork>(device, gradient, residual, threshold, capacity);
}

std::unique_ptr<StreamWork> MakeSelectWork(int device, GradView gradient, Span<float> residual,
                                           std::int64_t k) {
  CheckDevice(device);
  CheckSizes(gradient, residual);
  const OnDevice current(device);
  return std::make_unique<SelectWork>(device, gradient, residual, k);
}

}  // namespace hvd_sparse::cuda
