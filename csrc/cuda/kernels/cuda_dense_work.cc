/// The work of a dense sum on a CUDA device, on a stream of its own.
///
/// Error feedback keeps its results on the device, too: float32 values and the rank's own shard are
/// copied to the CPU from there, and a step that is refused copies all of them back.

#include <algorithm>

#include "csrc/cuda/base/memory.h"
#include "csrc/cuda/base/stream.h"
#include "csrc/cuda/base/work.h"
#include "csrc/cuda/kernels/cuda_kernels.h"
#include "csrc/cuda/kernels/dense_work.h"
#include "csrc/kernels/half.h"
#include "csrc/wire/ternary_coding.h"

namespace hvd_sparse {
namespace cuda {
namespace {

/// Sums of pieces that may be on their way to the device.
constexpr std::int64_t kSlots = 8;

/// Counters in device memory.
enum Counter : std::int64_t { kNotFinite, kOverflows, kCounters };

/// The memory, and the stream, of all steps of a bucket; made while its device is the current one.
class DenseMemory {
 public:
  explicit DenseMemory(const DenseRoom& room)
      : codes(room.code_bytes),
        own(room.own_numel),
        pieces(room.pieces),
        largest(room.pieces),
        counters(kCounters),
        slots(kSlots * room.longest_piece),
        room(room),
        device_([this](Divider* divider) { Divide(divider); }) {
    device_.Clear(stream.get());  // between codes lie headers, which the CPU writes
  }
  ~DenseMemory() { (void)cudaStreamSynchronize(stream.get()); }
  DenseMemory(const DenseMemory&) = delete;
  DenseMemory& operator=(const DenseMemory&) = delete;

  /// Pinned memory of the CPU.
  PinnedArray<std::uint8_t> codes;
  PinnedArray<float> own;
  PinnedArray<TakenPiece> pieces;
  PinnedArray<unsigned> largest, counters;
  PinnedArray<float> slots;

  /// Their likes on the device; what error feedback made of the residual.
  std::uint8_t* device_codes = nullptr;
  TakenPiece* device_pieces = nullptr;
  unsigned *device_largest = nullptr, *device_counters = nullptr;
  float *device_slots = nullptr, *before = nullptr;

  const DenseRoom room;
  const Stream stream;
  Event ready, read[kSlots];

 private:
  void Divide(Divider* divider) {
    const bool has_codes = room.values != Values::kFloat32;
    device_codes = divider->Take<std::uint8_t>(has_codes ? room.code_bytes : 0);
    device_pieces = divider->Take<TakenPiece>(room.pieces);
    device_largest = divider->Take<unsigned>(room.pieces);
    device_counters = divider->Take<unsigned>(kCounters);
    device_slots = divider->Take<float>(slots.size());
    before = divider->Take<float>(room.numel);
  }

  const DeviceBytes device_;
};

class CudaDenseWork final : public DenseWork {
 public:
  explicit CudaDenseWork(int device) : device_(device) {}

  void Prepare(const DenseRoom& room) override {
    if (memory_ != nullptr) return;
    const OnDevice current(device_);
    memory_ = std::make_unique<DenseMemory>(room);
  }

  std::uint8_t* codes() override { return memory_->codes.data(); }
  float* own() override { return memory_->own.data(); }

  std::int64_t Take(DenseFormat format, Span<DensePiece> pieces) override {
    const OnDevice current(device_);
    const cudaStream_t stream = memory_->stream.get();
    memory_->ready.Record(OwnStream(device_).get());  // which waits for the gradients
    memory_->ready.MakeStreamFollow(stream);
    Clear(memory_->device_counters, kCounters, stream);
    Clear(memory_->device_largest, pieces.size, stream);
    SendTable(pieces);
    LaunchTake(format,
               {memory_->device_pieces, pieces.size, memory_->room.longest_piece, memory_->before,
                memory_->device_codes, memory_->device_largest,
                memory_->device_counters + kNotFinite, LargestCarried(format.values)},
               stream);
    memory_->counters.FetchFrom(memory_->device_counters, stream);
    memory_->largest.FetchFrom(memory_->device_largest, stream);
    const bool has_codes = format.values != Values::kFloat32;
    if (has_codes) memory_->codes.FetchFrom(memory_->device_codes, stream);
    FetchValues(pieces, !has_codes);
    memory_->stream.Synchronize();
    for (std::int64_t i = 0; i < pieces.size; ++i) Close(format, memory_->largest[i], &pieces[i]);
    return memory_->counters[kNotFinite];
  }

  Span<float> Sums(std::int64_t count) override { return {NextSlot(), count}; }

  void Keep(Span<const float> errors, Span<float> residual) override {
    StayOn(device_);
    float* const slot = NextSlot();
    std::copy_n(errors.data, errors.size, slot);
    Copy(slot, errors.size, residual.data, memory_->stream.get());
    NoteRead(slot);
  }

  void Write(const DenseOutput& output) override {
    StayOn(device_);
    const cudaStream_t stream = memory_->stream.get();
    DenseOutput there = output;
    float* const sums = memory_->device_slots + (output.sums.data - memory_->slots.begin());
    Copy(output.sums.data, output.sums.size, sums, stream);
    there.sums.data = sums;
    LaunchWriteSums(there, memory_->device_counters + kOverflows, stream);
    NoteRead(output.sums.data);
  }

  std::int64_t Finish() override {
    const OnDevice current(device_);
    memory_->counters.FetchFrom(memory_->device_counters, memory_->stream.get());
    memory_->stream.Synchronize();
    return memory_->counters[kOverflows];
  }

  void PutBack(DenseFormat /*format*/, Span<const DensePiece> /*pieces*/,
               Span<float> residual) override {
    const OnDevice current(device_);
    Copy(memory_->before, residual.size, residual.data, memory_->stream.get());
    memory_->stream.Synchronize();
  }

 private:
  void SendTable(Span<const DensePiece> pieces) {
    for (std::int64_t i = 0; i < pieces.size; ++i) {
      const DensePiece& piece = pieces[i];
      const Feedback& feedback = piece.feedback;
      const bool is_own = piece.own != nullptr;
      memory_->pieces[i] = {feedback.grad.data,
                            feedback.residual.data,
                            feedback.residual.size,
                            piece.begin,
                            is_own ? -1 : piece.code - codes(),
                            feedback.grad.dtype,
                            feedback.decay,
                            feedback.scale};
    }
    memory_->pieces.SendTo(memory_->device_pieces, memory_->stream.get());
  }

  /// Copies values from the device that need no code: those of the own shard or, if `all`, of all
  /// pieces. Neighbours travel together, but for those of the own shard and others: one copy must
  /// not span two allocations, even if one lies right behind the other.
  void FetchValues(Span<const DensePiece> pieces, bool all) {
    std::int64_t begin = 0, count = 0;  // not copied yet
    std::uint8_t* to = nullptr;
    bool into_own = false;
    const auto copy = [&] {
      Copy(memory_->before + begin, count, reinterpret_cast<float*>(to), memory_->stream.get());
    };
    for (const DensePiece& piece : pieces) {
      if (piece.own == nullptr && !all) continue;
      const bool is_own = piece.own != nullptr;
      auto* const next = is_own ? reinterpret_cast<std::uint8_t*>(piece.own) : piece.code;
      const bool follows =
          is_own == into_own && begin + count == piece.begin && to + 4 * count == next;
      if (!follows) {
        copy();
        begin = piece.begin;
        to = next;
        into_own = is_own;
        count = 0;
      }
      count += piece.feedback.residual.size;
    }
    copy();
  }

  /// Completes the code of a piece.
  static void Close(DenseFormat format, unsigned largest, DensePiece* piece) {
    if (piece->own != nullptr) return;
    const std::int64_t count = piece->feedback.residual.size;
    if (format.values != Values::kTernary) {
      piece->code_bytes = ValueBytes(format.values, count);
      return;
    }
    const float scale = TernaryScale(format.scale, BitsFloat(largest));
    piece->code_bytes = ShortenTernary(scale, count, piece->code);
  }

  /// Returns the slot whose last copy is the longest ago, once the device has read it.
  float* NextSlot() {
    StayOn(device_);
    slot_ = (slot_ + 1) % kSlots;
    memory_->read[slot_].Wait();
    return memory_->slots.data() + slot_ * memory_->room.longest_piece;
  }

  /// Notes that the work enqueued so far reads the slot at `slot`.
  void NoteRead(const float* slot) {
    const std::int64_t number = (slot - memory_->slots.begin()) / memory_->room.longest_piece;
    memory_->read[number].Record(memory_->stream.get());
  }

  const int device_;
  std::unique_ptr<DenseMemory> memory_;
  std::int64_t slot_ = 0;
};

}  // namespace
}  // namespace cuda

std::unique_ptr<DenseWork> NewCudaDenseWork(int device) {
  cuda::CheckDevice(device);
  return std::make_unique<cuda::CudaDenseWork>(device);
}

}  // namespace hvd_sparse
