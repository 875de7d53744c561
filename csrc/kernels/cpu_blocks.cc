/// Merging and trimming of blocks, and putting back of taken entries, on the CPU.
///
/// No branch predictor can guess which of two blocks holds the next entry, so the hot loops select
/// by arithmetic. Blocks from other ranks may be malformed (a broken peer), so their positions
/// never address memory here.

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "csrc/kernels/compact.h"
#include "csrc/kernels/cpu_kernels.h"
#include "csrc/kernels/half.h"
#include "csrc/kernels/radix.h"

namespace hvd_sparse::cpu {
namespace {

HVD_SPARSE_INLINE std::uint32_t Magnitude(float x) { return FloatBits(x) & 0x7fffffffu; }

/// Returns the k-th largest magnitude of more than k entries, and in `ties` how many of that
/// magnitude are among the k largest. A radix select as in cpu_top_k.cc, but with memory for the
/// remaining candidates.
std::uint32_t FindCut(const float* values, std::int64_t count, std::int64_t k, std::int64_t* ties) {
  constexpr int kUpperShift = 2 * kLowerBits;
  Turns turns{};
  for (std::int64_t i = 0; i < count; ++i) ++turns[i & 3][Magnitude(values[i]) >> kUpperShift];
  const Histogram& uppers = AddUp(&turns);
  const std::uint32_t upper = FindDigit(uppers, &k);

  thread_local std::vector<std::uint32_t> candidates;
  candidates.resize(uppers[upper] + std::size_t{1});  // one more for a write that is discarded
  std::size_t found = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t magnitude = Magnitude(values[i]);
    candidates[found] = magnitude;
    found += magnitude >> kUpperShift == upper;
  }

  Histogram histogram{};
  for (std::size_t i = 0; i < found; ++i) ++histogram[(candidates[i] >> kLowerBits) & kLowerMask];
  const std::uint32_t middle = FindDigit(histogram, &k);
  histogram.fill(0);
  for (std::size_t i = 0; i < found; ++i) {
    if (((candidates[i] >> kLowerBits) & kLowerMask) == middle) {
      ++histogram[candidates[i] & kLowerMask];
    }
  }
  const std::uint32_t lower = FindDigit(histogram, &k);
  *ties = k;
  return upper << kUpperShift | middle << kLowerBits | lower;
}

/// Returns a or b by arithmetic: compilers turn `?:` into a branch, which is mispredicted half of
/// the time.
HVD_SPARSE_INLINE std::uint32_t Choose(bool take_a, std::uint32_t a, std::uint32_t b) {
  return b ^ ((a ^ b) & (0u - static_cast<std::uint32_t>(take_a)));
}

/// A part of the walk through two blocks. No index of one lane occurs in another, so lanes can walk
/// at the same time: each step of a lane depends on the one before, and steps of other lanes hide
/// its latency.
struct Lane {
  std::int64_t a = 0, a_end = 0, b = 0, b_end = 0;
  std::int64_t begin = 0, out = 0;  // where the lane writes: behind the room of the lane before

  bool HasBoth() const { return a < a_end && b < b_end; }
};
constexpr std::size_t kLanes = 2;

std::array<Lane, kLanes> Split(const SparseBlock& first, const SparseBlock& second) {
  std::array<Lane, kLanes> lanes;
  std::int64_t a = 0, b = 0;
  for (std::size_t i = 0; i < kLanes; ++i) {
    Lane& lane = lanes[i];
    lane.a = a;
    lane.b = b;
    lane.begin = lane.out = a + b;
    const std::int64_t share = first.count() * static_cast<std::int64_t>(i + 1);
    a = share / static_cast<std::int64_t>(kLanes);
    const bool last = i + 1 == kLanes;
    // A malformed block may be out of order, but no lane may begin before the previous one ends.
    b = last
            ? second.count()
            : std::max(b, LowerBound(second, a < first.count() ? Position(first.indices()[a]) : 0));
    lane.a_end = a;
    lane.b_end = b;
  }
  return lanes;
}

template <typename Step>
HVD_SPARSE_INLINE void RunLanes(std::array<Lane, kLanes>* lanes, Step step) {
  std::array<Lane, kLanes> now = *lanes;
  while (now[0].HasBoth() && now[1].HasBoth()) {
    step(now[0]);
    step(now[1]);
  }
  for (Lane& lane : now) {
    while (lane.HasBoth()) step(lane);
  }
  *lanes = now;
}

/// Puts back `count` entries of a block, of which the i-th is number entry(i). Their places lie far
/// apart in memory and are prefetched, so that the cache misses overlap.
template <typename Entry>
HVD_SPARSE_INLINE void PutBackEach(const SparseBlock& block, std::int64_t count,
                                   Span<float> residual, Entry entry) {
  constexpr std::int64_t kAhead = 24;
  const auto place = [&](std::int64_t i) {
    return residual.data + Position(block.indices()[entry(i)]);
  };
  for (std::int64_t i = 0; i < count; ++i) {
    if (i + kAhead < count) __builtin_prefetch(place(i + kAhead), 1);
    *place(i) = block.values()[entry(i)];
  }
}

/// Writes the entries that KeepTopK is going to drop back to the residual, where taken entries are
/// zero.
void ReturnDropped(const Index* indices, const float* values, std::int64_t count, std::uint32_t cut,
                   std::int64_t ties, Span<float> residual) {
  for (std::int64_t i = 0; i < count; ++i) {
    const bool tie = (Magnitude(values[i]) == cut) & (ties > 0);
    const bool keep = (Magnitude(values[i]) > cut) | tie;
    ties -= tie;
    residual[Position(indices[i])] = BitsFloat(Choose(keep, 0, FloatBits(values[i])));
  }
}

}  // namespace

std::int64_t LowerBound(const SparseBlock& block, Index position) {
  const Index* begin = block.indices();
  const Index* found =
      std::lower_bound(begin, begin + block.count(), position,
                       [](Index marked, Index wanted) { return Position(marked) < wanted; });
  return found - begin;
}

void KernelsOfCpu::Merge(const SparseBlock& own, const SparseBlock& theirs,
                         SparseBlock* out) const {
  const std::int64_t own_count = own.count(), their_count = theirs.count();
  const BlockHeader header = own.header();
  out->Reset(own_count + their_count);
  const Index* own_indices = own.indices();
  const Index* their_indices = theirs.indices();
  const float* own_values = own.values();
  const float* their_values = theirs.values();
  Index* indices = out->indices();
  float* values = out->values();

  std::array<Lane, kLanes> lanes = Split(own, theirs);
  const auto step = [&](Lane& lane) {
    const Index mine = own_indices[lane.a];
    const Index other = Position(their_indices[lane.b]);
    const bool take_own = Position(mine) <= other, take_their = other <= Position(mine);
    const std::uint32_t x = FloatBits(own_values[lane.a]), y = FloatBits(their_values[lane.b]);
    const std::uint32_t sum = FloatBits(own_values[lane.a] + their_values[lane.b]);
    indices[lane.out] = static_cast<Index>(
        Choose(take_own, static_cast<std::uint32_t>(mine), static_cast<std::uint32_t>(other)));
    values[lane.out] = BitsFloat(Choose(take_own & take_their, sum, Choose(take_own, x, y)));
    ++lane.out;
    lane.a += take_own;
    lane.b += take_their;
  };
  RunLanes(&lanes, step);

  std::int64_t written = 0;
  for (Lane& lane : lanes) {
    for (; lane.a < lane.a_end; ++lane.a, ++lane.out) {
      indices[lane.out] = own_indices[lane.a];
      values[lane.out] = own_values[lane.a];
    }
    for (; lane.b < lane.b_end; ++lane.b, ++lane.out) {
      indices[lane.out] = Position(their_indices[lane.b]);
      values[lane.out] = their_values[lane.b];
    }
    // Merged entries leave a gap behind each lane.
    const auto count = static_cast<std::size_t>(lane.out - lane.begin);
    std::memmove(indices + written, indices + lane.begin, count * sizeof(Index));
    std::memmove(values + written, values + lane.begin, count * sizeof(float));
    written += lane.out - lane.begin;
  }
  out->header() = header;
  out->Finish(written);
}

std::int64_t KernelsOfCpu::KeepTopK(std::int64_t k, std::int64_t begin, std::int64_t end,
                                    SparseBlock* block, Span<float> residual) const {
  const std::int64_t count = end - begin;
  if (count <= k) return end;
  Index* indices = block->indices() + begin;
  float* values = block->values() + begin;
  if (k <= 0) {
    if (residual.data != nullptr) PutBack(*block, begin, end, residual);
    return begin;
  }
  Compaction at;
  const std::uint32_t cut = FindCut(values, count, k, &at.ties);
  if (residual.data != nullptr) ReturnDropped(indices, values, count, cut, at.ties, residual);
  CompactVectors(indices, values, count, cut, &at);
  for (; at.read < count; ++at.read) {
    const Index index = indices[at.read];
    const float value = values[at.read];
    const bool tie = (Magnitude(value) == cut) & (at.ties > 0);
    const bool keep = (Magnitude(value) > cut) | tie;
    indices[at.written] = index;
    values[at.written] = value;
    at.ties -= tie;
    at.written += keep;
  }
  return begin + at.written;
}

void KernelsOfCpu::PutBack(const SparseBlock& block, std::int64_t begin, std::int64_t end,
                           Span<float> residual) const {
  PutBackEach(block, end - begin, residual, [begin](std::int64_t i) { return begin + i; });
}

void KernelsOfCpu::Settle(const SparseBlock& selected, const SparseBlock& reduced,
                          Span<float> residual) const {
  const Index* own_indices = selected.indices();
  const Index* indices = reduced.indices();
  // Lists the undelivered entries first, so that their places can be prefetched.
  thread_local std::vector<std::int64_t> stays;
  stays.resize(static_cast<std::size_t>(selected.count() + reduced.count()) + kLanes);
  std::int64_t* const list = stays.data();
  std::array<Lane, kLanes> lanes = Split(selected, reduced);
  RunLanes(&lanes, [&](Lane& lane) {
    const Index mine = Position(own_indices[lane.a]);
    const Index marked = indices[lane.b];
    const Index theirs = Position(marked);
    const bool delivered = (mine == theirs) & Survived(marked);
    list[lane.out] = lane.a;
    lane.out += (mine <= theirs) & !delivered;
    lane.a += mine <= theirs;
    lane.b += theirs <= mine;
  });
  for (const Lane& lane : lanes) {
    const std::int64_t* const first = list + lane.begin;
    PutBackEach(selected, lane.out - lane.begin, residual,
                [first](std::int64_t i) { return first[i]; });
    PutBack(selected, lane.a, lane.a_end, residual);
  }
}

void KernelsOfCpu::AddErrors(Span<const std::pair<Index, float>> errors, Span<float> residual,
                             std::vector<std::pair<Index, float>>* undo) const {
  constexpr std::int64_t kAhead = 24;
  const auto is_inside = [&](Index i) { return i >= 0 && i < residual.size; };
  undo->reserve(undo->size() + static_cast<std::size_t>(errors.size));
  for (std::int64_t n = 0; n < errors.size; ++n) {
    if (n + kAhead < errors.size && is_inside(errors[n + kAhead].first)) {
      __builtin_prefetch(residual.data + errors[n + kAhead].first, 1);
    }
    const auto [i, error] = errors[n];
    if (!is_inside(i)) continue;
    undo->emplace_back(i, residual[i]);
    residual[i] += error;
  }
}

void KernelsOfCpu::Restore(Span<const std::pair<Index, float>> undo, Span<float> residual) const {
  for (std::int64_t n = undo.size - 1; n >= 0; --n) residual[undo[n].first] = undo[n].second;
}

}  // namespace hvd_sparse::cpu
