/// Error feedback on the CPU, fused with selection into one pass.
///
/// They are fused by cache blocking: a chunk of the residual is updated by a loop that the compiler
/// vectorises for every number type, then compacted while it is in the first-level cache. The
/// memory traffic is that of error feedback alone. The usual cases, a float32 gradient or a
/// velocity of such gradients that is added without a factor, have a loop of their own that does
/// all of it (compact.cc).

#include <algorithm>
#include <atomic>

#include "csrc/kernels/compact.h"
#include "csrc/kernels/cpu_kernels.h"
#include "csrc/kernels/parallel.h"
#include "csrc/kernels/stretches.h"

namespace hvd_sparse::cpu {
namespace {

/// Entries that a thread claims at a time, a multiple of kChunk.
constexpr std::int64_t kPart = std::int64_t{1} << 16;
static_assert(kPart % kChunk == 0);

/// The number of taken entries from which copying them by all threads pays for one more barrier.
constexpr std::int64_t kWorthSharing = std::int64_t{1} << 17;

std::int64_t PartsOf(std::int64_t size) { return (size + kPart - 1) / kPart; }

/// Error feedback of one gradient, in parts.
class Accumulator {
 public:
  explicit Accumulator(const Feedback& feedback)
      : feedback_(feedback),
        grad_(static_cast<const std::uint8_t*>(feedback.grad.data)),
        width_(SizeOf(feedback.grad.dtype)),
        has_velocity_(feedback.velocity.size > 0),
        plain_(feedback.grad.dtype == DType::kFloat32 && feedback.decay == 1 &&
               (has_velocity_ || feedback.scale == 1)) {}

  /// Updates `residual`, which holds the entries from `begin` on; returns the number of results
  /// that were not finite.
  std::int64_t Run(std::int64_t begin, std::int64_t size, float* residual) const {
    if (!has_velocity_) return Add(begin, size, feedback_.decay, residual);
    std::int64_t bad = 0;
    for (std::int64_t i = 0; i < size; i += kChunk) {
      bad += RunChunk(begin + i, std::min(kChunk, size - i), feedback_.velocity.data + begin + i,
                      residual + i);
    }
    return bad;
  }

  /// Like Run, but the velocity stays as it is.
  void Preview(std::int64_t begin, std::int64_t size, float* residual) const {
    float velocity[kChunk];
    for (std::int64_t i = 0; i < size; i += kChunk) {
      const std::int64_t chunk = std::min(kChunk, size - i);
      if (has_velocity_) std::copy_n(feedback_.velocity.data + begin + i, chunk, velocity);
      has_velocity_ ? RunChunk(begin + i, chunk, velocity, residual + i)
                    : Add(begin + i, chunk, feedback_.decay, residual + i);
    }
  }

  /// Updates a chunk of the residual and takes entries from it.
  Tally RunAndTake(std::int64_t begin, std::int64_t size, float* residual, float threshold,
                   Index offset, Index* indices, float* values) const {
    if (plain_) {
      const auto* grad = reinterpret_cast<const float*>(grad_) + begin;
      const Momentum momentum{feedback_.velocity.data + begin, feedback_.momentum, feedback_.scale};
      const std::int64_t count =
          AddAndTakeChunk(grad, has_velocity_ ? &momentum : nullptr, residual, size, threshold,
                          offset, indices, values);
      if (count >= 0) return {count, count, 0};
    }
    const std::int64_t bad = Run(begin, size, residual);
    const std::int64_t count = TakeChunk(residual, size, threshold, offset, indices, values);
    return {count, count, bad};
  }

 private:
  /// Adds the gradient to `to`, which holds the entries from `begin` on.
  std::int64_t Add(std::int64_t begin, std::int64_t size, float decay, float* to) const {
    return AddGradient(feedback_.grad.dtype, grad_ + begin * width_, size, decay, feedback_.scale,
                       to);
  }

  /// Updates velocity and residual, which hold the entries from `begin` on.
  std::int64_t RunChunk(std::int64_t begin, std::int64_t size, float* velocity,
                        float* residual) const {
    const std::int64_t bad = Add(begin, size, feedback_.momentum, velocity);
    return bad + AddGradient(DType::kFloat32, velocity, size, feedback_.decay, 1, residual);
  }

  const Feedback& feedback_;
  const std::uint8_t* grad_;
  const std::int64_t width_;
  const bool has_velocity_;
  const bool plain_;  // residual += grad, or a velocity, in float32
};

/// Fills a room with entries above a threshold, chunk by chunk, and counts those that do not fit.
class Taker {
 public:
  explicit Taker(Room room) : room_(room) {}

  /// Calls take(indices, values), which takes entries from the chunk at `dense`, whose first index
  /// is `offset`.
  template <typename Take>
  void Chunk(float* dense, Index offset, Take take) {
    if (room_.size - tally_.taken >= kChunk) {
      Note(take(room_.indices + tally_.taken, room_.values + tally_.taken));
      return;
    }
    Index indices[kChunk];
    float values[kChunk];
    Tally chunk = take(indices, values);
    const std::int64_t fitting = std::min(chunk.taken, room_.size - tally_.taken);
    std::copy_n(indices, fitting, room_.indices + tally_.taken);
    std::copy_n(values, fitting, room_.values + tally_.taken);
    for (std::int64_t i = fitting; i < chunk.taken; ++i) dense[indices[i] - offset] = values[i];
    chunk.taken = fitting;
    Note(chunk);
  }

  const Tally& tally() const { return tally_; }

 private:
  void Note(const Tally& chunk) {
    tally_.above += chunk.above;
    tally_.taken += chunk.taken;
    tally_.not_finite += chunk.not_finite;
  }

  const Room room_;
  Tally tally_;
};

/// Takes entries from [begin, end) of an array; take(i, size, indices, values) does so for a chunk.
template <typename Take>
void TakeChunks(Span<float> residual, std::int64_t begin, std::int64_t end, Index offset, Take take,
                Taker* taker) {
  for (std::int64_t i = begin; i < end; i += kChunk) {
    taker->Chunk(residual.data + i, offset + static_cast<Index>(i),
                 [&](Index* indices, float* values) {
                   return take(i, std::min(kChunk, end - i), indices, values);
                 });
  }
}

/// The entries taken by one thread, part after part, before they are copied to the block.
struct Stash {
  std::vector<Index> indices;
  std::vector<float> values;
  std::int64_t filled = 0;
};

/// The result of one part.
struct PartTally {
  const Stash* stash = nullptr;
  std::int64_t begin = 0;  // first entry in the stash
  Tally tally;
  std::int64_t place = 0;  // first entry in the room
};

/// Runs TakeChunks on several threads, with the same result as on one.
///
/// A thread needs no more room than the whole block has: it claims parts in ascending order, so
/// once it has filled that much, its later entries cannot be among the first of all.
template <typename Take>
Tally TakeTogether(Span<float> residual, Index offset, Room room, Take take) {
  const std::int64_t parts = PartsOf(residual.size);
  const int threads = KernelThreads();
  if (threads == 1 || parts <= 1) {
    Taker taker(room);
    TakeChunks(residual, 0, residual.size, offset, take, &taker);
    return taker.tally();
  }

  thread_local std::vector<Stash> stashes;
  thread_local std::vector<PartTally> tallies;
  std::vector<Stash>& of_thread = stashes;  // the caller's instance, shared with all threads
  std::vector<PartTally>& of_part = tallies;
  of_thread.resize(static_cast<std::size_t>(threads));
  of_part.assign(static_cast<std::size_t>(parts), {});
  for (Stash& stash : of_thread) {
    stash.filled = 0;
    if (static_cast<std::int64_t>(stash.indices.size()) >= room.size) continue;
    stash.indices.resize(static_cast<std::size_t>(room.size));
    stash.values.resize(static_cast<std::size_t>(room.size));
  }
  RunParts(parts, threads, [&](std::int64_t part, int thread) {
    Stash& stash = of_thread[static_cast<std::size_t>(thread)];
    const std::int64_t from = stash.filled;
    Taker taker({stash.indices.data() + from, stash.values.data() + from, room.size - from});
    const std::int64_t begin = part * kPart, end = std::min(begin + kPart, residual.size);
    TakeChunks(residual, begin, end, offset, take, &taker);
    stash.filled += taker.tally().taken;
    of_part[static_cast<std::size_t>(part)] = {&stash, from, taker.tally(), 0};
  });

  Tally total;
  for (PartTally& part : of_part) {
    part.place = total.taken;
    total.taken += std::min(part.tally.taken, room.size - total.taken);
    total.above += part.tally.above;
    total.not_finite += part.tally.not_finite;
  }
  const int copiers = total.taken >= kWorthSharing ? threads : 1;
  RunParts(parts, copiers, [&](std::int64_t index, int) {
    const PartTally& part = of_part[static_cast<std::size_t>(index)];
    const Index* indices = part.stash->indices.data() + part.begin;
    const float* values = part.stash->values.data() + part.begin;
    const std::int64_t fitting = std::min(part.tally.taken, room.size - part.place);
    std::copy_n(indices, fitting, room.indices + part.place);
    std::copy_n(values, fitting, room.values + part.place);
    for (std::int64_t i = fitting; i < part.tally.taken; ++i) {
      residual[indices[i] - offset] = values[i];
    }
  });
  return total;
}

}  // namespace

std::int64_t KernelsOfCpu::Accumulate(const Feedback& feedback) const {
  const Accumulator accumulator(feedback);
  const Span<float> residual = feedback.residual;
  std::atomic<std::int64_t> bad{0};
  RunParts(PartsOf(residual.size), [&](std::int64_t part, int) {
    const std::int64_t begin = part * kPart, size = std::min(kPart, residual.size - begin);
    bad += accumulator.Run(begin, size, residual.data + begin);
  });
  return bad;
}

std::unique_ptr<Candidates> KernelsOfCpu::NewCandidates(Span<float> bucket, std::int64_t filled,
                                                        std::int64_t room, SparseBlock* out) const {
  return std::make_unique<CpuCandidates>(bucket, filled, room, out);
}

Tally CpuCandidates::Take(const Feedback& feedback, float threshold) {
  const Accumulator accumulator(feedback);
  const Span<float> residual = feedback.residual;
  const Index offset = OffsetIn(bucket_, residual);
  const bool adds = feedback.grad.data != nullptr;
  const Tally tally = TakeTogether(
      residual, offset, Free(),
      [&](std::int64_t begin, std::int64_t size, Index* indices, float* values) {
        float* const from = residual.data + begin;
        const Index first = offset + static_cast<Index>(begin);
        if (adds)
          return accumulator.RunAndTake(begin, size, from, threshold, first, indices, values);
        const std::int64_t count = TakeChunk(from, size, threshold, first, indices, values);
        return Tally{count, count, 0};
      });
  count_ += tally.taken;
  return tally;
}

void KernelsOfCpu::Sample(const Feedback& feedback, std::int64_t count, std::uint64_t seed,
                          std::vector<float>* sample) const {
  const Accumulator accumulator(feedback);
  const Span<float> residual = feedback.residual;
  const std::size_t filled = sample->size();
  sample->resize(filled + static_cast<std::size_t>(SampleSize(residual.size, count)));
  ForEachStretch(residual.size, count, seed,
                 [&](std::int64_t begin, std::int64_t size, std::int64_t at) {
                   float* const into = sample->data() + filled + at;
                   std::copy_n(residual.data + begin, size, into);
                   if (feedback.grad.data != nullptr) accumulator.Preview(begin, size, into);
                 });
}

}  // namespace hvd_sparse::cpu
