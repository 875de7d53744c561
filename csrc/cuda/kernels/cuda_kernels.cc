/// The kernels of a CUDA device: each call enqueues its work, and copies blocks to the device and
/// back.

#include "csrc/cuda/kernels/cuda_kernels.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include "csrc/cuda/base/stream.h"
#include "csrc/cuda/base/work.h"
#include "csrc/cuda/kernels/device_candidates.h"
#include "csrc/cuda/kernels/entry_lists.h"
#include "csrc/cuda/kernels/launches.h"
#include "csrc/kernels/cpu_kernels.h"
#include "csrc/kernels/stretches.h"

namespace hvd_sparse {
namespace cuda {
namespace {

class CudaMark final : public Mark {
 public:
  explicit CudaMark(cudaStream_t stream) { event_.Record(stream); }
  const Event& event() const { return event_; }

 private:
  Event event_;
};

/// Returns the event of a mark; only this device's kernels make the marks that they are given.
const Event& EventOf(const Mark& mark) { return static_cast<const CudaMark&>(mark).event(); }

/// Throws InvalidArgument if the stream is being captured: a graph cannot hold messages, and no
/// thread may wait for a captured mark.
void RequireNotCaptured(cudaStream_t stream) {
  Require(!IsCaptured(stream),
          "the stream is being captured into a CUDA graph, and an exchange cannot be");
}

/// A point in a stream that knows when it was passed.
class CudaTimedMark final : public TimedMark {
 public:
  explicit CudaTimedMark(int device) : device_(device) {}

  void Record(StreamHandle stream) override {
    Check(cudaSetDevice(device_), "use a device");
    if (event_ == nullptr) event_ = std::make_unique<Event>(Timing::kKept);
    event_->Record(StreamOf(stream));
  }
  bool Passed() const override { return event_->Passed(); }
  double SecondsUntil(const TimedMark& later) const override {
    return Event::SecondsBetween(*event_, *static_cast<const CudaTimedMark&>(later).event_);
  }

 private:
  const int device_;
  std::unique_ptr<Event> event_;
};

/// The residual after Join: memory of the current device for a gradient of a narrow number type,
/// nothing for a wide one.
class DeviceResidualAfterJoin final : public ResidualAfterJoin {
 public:
  /// Returns memory for the rounding errors of `gradient`, or null if it has none.
  float* RoomFor(const GradView& gradient) {
    const bool is_narrow = SizeOf(gradient.dtype) < SizeOf(DType::kFloat32);
    const std::size_t bytes = is_narrow ? static_cast<std::size_t>(gradient.numel) * 4 : 0;
    if (bytes == 0) memory_.reset();
    if (bytes > 0 && (memory_ == nullptr || memory_->size() != bytes)) {
      memory_ = std::make_unique<DeviceBytes>(bytes);
    }
    return memory_ == nullptr ? nullptr : static_cast<float*>(memory_->get());
  }

  /// Enqueues residual = after. Returns true if that may be other than zero.
  bool CopyTo(Span<float> residual, cudaStream_t stream) const {
    if (memory_ == nullptr) {
      Clear(residual.data, residual.size, stream);
      return false;
    }
    Copy(static_cast<const float*>(memory_->get()), residual.size, residual.data, stream);
    return true;
  }

 private:
  std::unique_ptr<DeviceBytes> memory_;
};

class CudaKernelsImpl final : public Kernels {
 public:
  explicit CudaKernelsImpl(int device) : device_(device) {}

  // ---- Error feedback and taking ----------------------------------------------------------------

  std::int64_t Accumulate(const Feedback& feedback) const override {
    Work work(device_);
    unsigned* const not_finite = work.Zeros<unsigned>(1);
    unsigned* const counted = work.Staged<unsigned>(1);
    LaunchAccumulate(feedback, not_finite, work.stream());
    work.Fetch(not_finite, 1, counted);
    work.Finish();
    return *counted;
  }

  TopKCut FindTopK(Span<const float> dense, std::int64_t k) const override {
    Work work(device_);
    return cuda::FindTopK(dense, k, &work);
  }

  std::unique_ptr<Candidates> NewCandidates(Span<float> bucket, std::int64_t filled,
                                            std::int64_t room, SparseBlock* out) const override {
    return std::make_unique<DeviceCandidates>(device_, bucket, filled, room, out);
  }

  // ---- Reading only -----------------------------------------------------------------------------

  Moments ComputeMoments(Span<const float> dense) const override {
    Work work(device_);
    return cuda::ComputeMoments(dense, &work);
  }

  std::int64_t CountAbove(Span<const float> dense, float threshold) const override {
    Work work(device_);
    return cuda::CountAbove(dense, threshold, &work);
  }

  void Sample(const Feedback& feedback, std::int64_t count, std::uint64_t seed,
              std::vector<float>* sample) const override {
    Work work(device_);
    const std::int64_t size = feedback.residual.size, entries = cpu::SampleSize(size, count);
    if (entries == 0) return;
    // Samples either all entries, as one stretch, or stretches of the same length.
    const std::int64_t length = entries == size ? size : cpu::kStretch;
    Index* const begins = work.Staged<Index>(entries / length);
    cpu::ForEachStretch(size, count, seed,
                        [&](std::int64_t begin, std::int64_t, std::int64_t place) {
                          begins[place / length] = static_cast<Index>(begin);
                        });
    float* const values = work.Scratch<float>(entries);
    float* const fetched = work.Staged<float>(entries);
    LaunchSample(feedback, work.Upload(begins, entries / length), length, entries, values,
                 work.stream());
    work.Fetch(values, entries, fetched);
    work.Finish();
    sample->insert(sample->end(), fetched, fetched + entries);
  }

  const Kernels& OfSamples() const override { return CpuKernels(); }

  // ---- Blocks, and settling entries that were taken ---------------------------------------------

  void Merge(const SparseBlock& own, const SparseBlock& theirs, SparseBlock* out) const override {
    CpuKernels().Merge(own, theirs, out);
  }

  std::int64_t KeepTopK(std::int64_t k, std::int64_t begin, std::int64_t end, SparseBlock* block,
                        Span<float> residual) const override {
    EntryList before;
    if (residual.data != nullptr && end - begin > k) {
      before.positions.assign(block->indices() + begin, block->indices() + end);
      before.values.assign(block->values() + begin, block->values() + end);
    }
    const std::int64_t new_end = CpuKernels().KeepTopK(k, begin, end, block);
    Put(Dropped(std::move(before), *block, begin, new_end), residual);
    return new_end;
  }

  void PutBack(const SparseBlock& block, std::int64_t begin, std::int64_t end,
               Span<float> residual) const override {
    Put(block.indices() + begin, block.values() + begin, end - begin, residual);
  }

  void Settle(const SparseBlock& selected, const SparseBlock& reduced,
              Span<float> residual) const override {
    Put(Undelivered(selected, reduced), residual);
  }

  void AddErrors(Span<const std::pair<Index, float>> errors, Span<float> residual,
                 std::vector<std::pair<Index, float>>* undo) const override {
    EntryList places = PlacesOf(errors, residual.size);
    if (places.count() == 0) return;
    {
      Work work(device_);
      float* const values = work.Scratch<float>(places.count());
      float* const fetched = work.Staged<float>(places.count());
      LaunchGather(residual.data, work.Send(places.positions.data(), places.count()),
                   places.count(), values, work.stream());
      work.Fetch(values, places.count(), fetched);
      work.Finish();
      std::copy_n(fetched, places.count(), places.values.begin());
    }
    AddErrorsTo(&places, errors, undo);
    Put(places, residual);
  }

  void Restore(Span<const std::pair<Index, float>> undo, Span<float> residual) const override {
    Put(FirstValues(undo), residual);
  }

  std::int64_t Scatter(const SparseBlock& reduced, float scale, Index offset, GradView grad,
                       Span<float> residual, std::vector<std::pair<Index, float>>* undo,
                       float loss_scale) const override {
    Work work(device_);
    const std::int64_t begin = cpu::LowerBound(reduced, offset);
    const std::int64_t behind = std::int64_t{offset} + grad.numel;
    const std::int64_t end =
        behind > INT32_MAX ? reduced.count() : cpu::LowerBound(reduced, static_cast<Index>(behind));
    const std::int64_t count = std::max<std::int64_t>(end - begin, 0);  // malformed: not ascending
    const Index* const indices = reduced.indices() + begin;
    const float* const values = reduced.values() + begin;
    const bool is_narrow = SizeOf(grad.dtype) < SizeOf(DType::kFloat32);
    const std::int64_t told = is_narrow ? count : 0;
    Narrowed* const narrowed = work.Scratch<Narrowed>(told);
    float* const former = work.Scratch<float>(told);
    Narrowed* const outcomes = work.Staged<Narrowed>(told);
    float* const before = work.Staged<float>(told);
    undo->reserve(undo->size() + static_cast<std::size_t>(told));
    LaunchScatter({work.Send(indices, count), work.Send(values, count), count, scale, offset, grad,
                   residual, loss_scale, narrowed, former},
                  work.stream());
    if (!is_narrow) {
      work.Leave();
      return std::count_if(values, values + count,
                           [scale](float value) { return !(std::fabs(scale * value) <= FLT_MAX); });
    }
    work.Fetch(narrowed, count, outcomes);
    work.Fetch(former, count, before);
    work.Finish();
    for (std::int64_t n = 0; n < count; ++n) {
      if (outcomes[n] == Narrowed::kRounded) undo->emplace_back(Position(indices[n]), before[n]);
    }
    return std::count(outcomes, outcomes + count, Narrowed::kNotFinite);
  }

  // ---- Dense gradients, as work of a framework's stream -----------------------------------------

  std::unique_ptr<ResidualAfterJoin> NewResidualAfterJoin() const override {
    return std::make_unique<DeviceResidualAfterJoin>();
  }

  void Join(const UnsentParts& parts, GradView gradient, StreamHandle stream,
            ResidualAfterJoin* after) const override {
    const OnDevice current(device_);
    float* const left = static_cast<DeviceResidualAfterJoin*>(after)->RoomFor(gradient);
    LaunchJoin(parts, gradient, left, StreamOf(stream));
  }

  bool SetResidual(const ResidualAfterJoin& after, Span<float> residual,
                   StreamHandle stream) const override {
    const OnDevice current(device_);
    return static_cast<const DeviceResidualAfterJoin&>(after).CopyTo(residual, StreamOf(stream));
  }

  void Copy(Span<const float> from, Span<float> to, StreamHandle stream) const override {
    const OnDevice current(device_);
    cuda::Copy(from.data, from.size, to.data, StreamOf(stream));
  }

  void Decay(Span<float> residual, float decay, StreamHandle stream) const override {
    const OnDevice current(device_);
    LaunchDecay(residual, decay, StreamOf(stream));
  }

  // ---- Order between these calls and a framework's stream ---------------------------------------

  std::shared_ptr<const Mark> EndOf(StreamHandle stream) const override {
    const OnDevice current(device_);
    RequireNotCaptured(StreamOf(stream));
    return std::make_shared<CudaMark>(StreamOf(stream));
  }

  std::shared_ptr<const Mark> EndOfOwn() const override {
    const OnDevice current(device_);
    return std::make_shared<CudaMark>(OwnStream(device_).get());
  }

  void Follow(const Mark* mark) const override {
    StayOn(device_);
    if (mark != nullptr) EventOf(*mark).MakeStreamFollow(OwnStream(device_).get());
  }

  void MakeStreamFollow(StreamHandle stream, const Mark* mark) const override {
    if (mark == nullptr) return;
    const OnDevice current(device_);
    EventOf(*mark).MakeStreamFollow(StreamOf(stream));
  }

  std::unique_ptr<TimedMark> NewTimedMark() const override {
    return std::make_unique<CudaTimedMark>(device_);
  }

 private:
  void Put(const EntryList& entries, Span<float> residual) const {
    Put(entries.positions.data(), entries.values.data(), entries.count(), residual);
  }

  /// Writes entries to a residual. They may exist nowhere else, so they must not be lost for lack
  /// of memory.
  void Put(const Index* positions, const float* values, std::int64_t count,
           Span<float> residual) const {
    if (count == 0) return;
    try {
      Work work(device_);
      LaunchPut(work.Send(positions, count), work.Send(values, count), count, residual.data,
                work.stream());
      work.Finish();
    } catch (...) {  // out of memory; after another error this fails, too
      PutOneByOne(positions, values, count, residual);
    }
  }

  /// Like Put, but slowly, without allocating memory.
  void PutOneByOne(const Index* positions, const float* values, std::int64_t count,
                   Span<float> residual) const {
    const OnDevice current(device_);
    const Stream& stream = OwnStream(device_);
    for (std::int64_t n = 0; n < count; ++n) {
      cuda::Copy(values + n, 1, residual.data + Position(positions[n]), stream.get());
    }
    stream.Synchronize();
  }

  const int device_;
};

int DeviceCount() {
  int count = 0;
  Check(cudaGetDeviceCount(&count), "find a device");
  return count;
}

}  // namespace

void CheckDevice(int device) {
  const int count = DeviceCount();
  if (device >= 0 && device < count) return;
  Throw(ErrorKind::kUnavailable, "there is no device cuda:", device, ", only ", count, " of them");
}

std::vector<std::string> DeviceNames() {
  std::vector<std::string> names;
  for (int device = 0, count = DeviceCount(); device < count; ++device) {
    cudaDeviceProp properties;
    Check(cudaGetDeviceProperties(&properties, device), "ask for the properties of a device");
    names.emplace_back(properties.name);
  }
  return names;
}

int DeviceOf(const void* address) {
  cudaPointerAttributes attributes;
  Check(cudaPointerGetAttributes(&attributes, address), "ask where an address lies");
  Require(attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged,
          "the address lies in no device's memory");
  return attributes.device;
}

}  // namespace cuda

const Kernels& CudaKernels(int device) {
  cuda::CheckDevice(device);
  static std::mutex mutex;
  static std::deque<cuda::CudaKernelsImpl> of_device;  // its elements never move
  const std::lock_guard lock(mutex);
  while (static_cast<int>(of_device.size()) <= device) {
    of_device.emplace_back(static_cast<int>(of_device.size()));
  }
  return of_device[static_cast<std::size_t>(device)];
}

}  // namespace hvd_sparse
