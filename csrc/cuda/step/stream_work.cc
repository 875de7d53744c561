#include "csrc/cuda/step/stream_work.h"

#include <algorithm>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/cuda/base/stream.h"
#include "csrc/cuda/kernels/cuda_kernels.h"
#include "csrc/cuda/kernels/launches.h"
#include "csrc/cuda/step/device_exchange.h"
#include "csrc/cuda/step/device_selector.h"
#include "csrc/cuda/step/launches.h"
#include "csrc/sparsifiers/threshold_sparsifier.h"

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

/// Base class of all pieces: holds the device and the result block, and fetches the result.
class WorkOnDevice : public StreamWork {
 public:
  void Enqueue(StreamHandle stream) final {
    const OnDevice current(device_);
    EnqueueOn(StreamOf(stream));
  }

  void WaitForResult(SparseBlock* result) final {
    const OnDevice current(device_);
    Check(cudaDeviceSynchronize(), "finish its work");
    std::uint32_t made = 0;
    Copy(&made, count(), sizeof(made));
    const std::int64_t count = std::min<std::int64_t>(made, result_.capacity);
    result->Reset(count);
    Copy(result->indices(), result_.indices, count * SizeOf(DType::kFloat32));
    Copy(result->values(), result_.values, count * SizeOf(DType::kFloat32));
    result->Finish(count);
  }

 protected:
  explicit WorkOnDevice(int device) : device_(device) {}
  virtual void EnqueueOn(cudaStream_t stream) = 0;

  /// The number of the block's entries, in device memory.
  virtual const std::uint32_t* count() const { return &result_.header->count; }

  const int device_;
  DeviceBlock result_;
};

class MergeWork final : public WorkOnDevice {
 public:
  MergeWork(int device, const SparseBlock& own, const SparseBlock& theirs, std::int64_t k)
      : WorkOnDevice(device),
        k_(k),
        most_(std::max({own.count(), theirs.count(), k})),
        zeros_([this](Divider* divider) { DivideZeros(divider); }),
        rest_([this](Divider* divider) { DivideRest(divider); }) {
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
  void EnqueueOn(cudaStream_t stream) override {
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

/// A bucket with one segment per gradient, and the launch of one step of it.
struct Layers {
  BucketSpec spec;
  DeviceLaunch launch;

  Layers(const std::vector<GradView>& gradients, Span<float> residual,
         const std::vector<std::int64_t>& ks, SelectionState* states) {
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      spec.segment_numels.push_back(gradients[i].numel);
      spec.gradient_numels.push_back(gradients[i].numel);
    }
    spec.max_ks = ks;
    launch.residual = residual;
    launch.gradients = launch.outputs = gradients;
    launch.decays.assign(gradients.size(), 1.0f);
    launch.ks = ks;
    launch.states = {states, static_cast<std::int64_t>(ks.size())};
  }
};

/// Zero states in device memory.
class States {
 public:
  explicit States(std::size_t count) : memory_(count * sizeof(SelectionState)) {
    const std::vector<SelectionState> none(count);
    Copy(get(), none.data(), static_cast<std::int64_t>(memory_.size()));
  }
  SelectionState* get() const { return static_cast<SelectionState*>(memory_.get()); }

 private:
  const DeviceBytes memory_;
};

class PassWork final : public WorkOnDevice {
 public:
  PassWork(int device, GradView gradient, Span<float> residual, float threshold, std::int64_t k)
      : WorkOnDevice(device),
        layers_({gradient}, residual, {k}, nullptr),
        layout_(layers_.spec),
        tables_(layout_),
        zeros_([this](Divider* divider) { work_.DivideZeros(layout_, divider); }),
        rest_([this](Divider* divider) { work_.DivideRest(layout_, divider); }) {
    work_.residual = residual.data;
    Copy(work_.tried, &threshold, sizeof(threshold));
    result_ = {nullptr, work_.indices, work_.values, layout_.candidates};
  }

 private:
  const std::uint32_t* count() const override { return &work_.segments->taken; }
  void EnqueueOn(cudaStream_t stream) override {
    tables_.Update(layers_.launch, stream);
    work_.bucket = tables_.view();
    zeros_.Clear(stream);
    LaunchFeedbackAndTake(work_, stream);
  }

  const Layers layers_;
  const BucketLayout layout_;
  BucketTables tables_;
  SelectionArgs work_;
  const DeviceBytes zeros_, rest_;
};

class SelectWork final : public WorkOnDevice {
 public:
  SelectWork(int device, GradView gradient, Span<float> residual, std::int64_t k)
      : WorkOnDevice(device),
        states_(1),
        layers_({gradient}, residual, {k}, states_.get()),
        tables_(BucketLayout(layers_.spec)),
        selector_(BucketLayout(layers_.spec), RefreshOf(layers_.spec.sparsifier_options)),
        memory_([&](Divider* divider) { result_ = divider->TakeBlock(k); }) {}

 private:
  void EnqueueOn(cudaStream_t stream) override {
    tables_.Update(layers_.launch, stream);
    selector_.Select(layers_.launch, tables_, {}, result_, stream);
  }

  const States states_;
  const Layers layers_;
  BucketTables tables_;
  DeviceSelector selector_;
  const DeviceBytes memory_;
};

/// The transport of a single rank.
class NoPeers final : public DeviceTransport {
 public:
  int Rank() const override { return 0; }
  int Size() const override { return 1; }
  void Exchange(int /*peer*/, const void*, void*, std::int64_t, cudaStream_t) override {}
};

class StepWork final : public WorkOnDevice {
 public:
  StepWork(int device, const std::vector<GradView>& gradients, Span<float> residual,
           const std::vector<std::int64_t>& ks, const std::vector<GradView>& outputs)
      : WorkOnDevice(device),
        states_(gradients.size()),
        layers_(gradients, residual, ks, states_.get()),
        exchange_(layers_.spec, 0, &transport_) {
    layers_.launch.outputs = outputs;
    CheckStep(layers_.spec, layers_.launch);
    result_ = exchange_.reduced();
  }

 private:
  void EnqueueOn(cudaStream_t stream) override { exchange_.Run(layers_.launch, stream); }

  const States states_;
  Layers layers_;
  NoPeers transport_;
  DeviceExchange exchange_;
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
  Require(k >= 1 && k <= kMostToMerge, "k must lie in [1, ", kMostToMerge, "], got ", k);
  const OnDevice current(device);
  return std::make_unique<MergeWork>(device, own, theirs, k);
}

std::unique_ptr<StreamWork> MakePassWork(int device, GradView gradient, Span<float> residual,
                                         float threshold, std::int64_t k) {
  CheckDevice(device);
  CheckSizes(gradient, residual);
  Require(k >= 1 && k <= residual.size, "k must lie in [1, ", residual.size, "], got ", k);
  const OnDevice current(device);
  return std::make_unique<PassWork>(device, gradient, residual, threshold, k);
}

std::unique_ptr<StreamWork> MakeSelectWork(int device, GradView gradient, Span<float> residual,
                                           std::int64_t k) {
  CheckDevice(device);
  CheckSizes(gradient, residual);
  const OnDevice current(device);
  return std::make_unique<SelectWork>(device, gradient, residual, k);
}

std::unique_ptr<StreamWork> MakeStepWork(int device, const std::vector<GradView>& gradients,
                                         Span<float> residual, const std::vector<std::int64_t>& ks,
                                         const std::vector<GradView>& outputs) {
  CheckDevice(device);
  Require(gradients.size() == ks.size(), "there are ", ks.size(), " values of k for ",
          gradients.size(), " gradients");
  const OnDevice current(device);
  return std::make_unique<StepWork>(device, gradients, residual, ks, outputs);
}

}  // namespace hvd_sparse::cuda
