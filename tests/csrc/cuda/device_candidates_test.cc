/// Candidates that are sifted on a GPU end as those that are sifted on the CPU, to the last bit.

#include "csrc/cuda/kernels/device_candidates.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "csrc/cuda/kernels/cuda_kernels.h"
#include "csrc/sparsifiers/selection.h"
#include "csrc/sparsifiers/sparsifier.h"
#include "tests/csrc/cuda/device_array.h"
#include "tests/csrc/entries.h"
#include "tests/csrc/segment.h"

namespace hvd_sparse {
namespace {

constexpr Index kOffset = 1000;      // of the segment in its bucket
constexpr std::int64_t kFilled = 3;  // entries of the segments before it

/// The outcome of a step.
struct Outcome {
  std::vector<float> bucket;
  Entries taken;
  SelectionState state;
};

/// Selects from a segment of two gradients, one of them not aligned, whose memory is `gradient`,
/// behind what `bucket` holds.
void Select(const Sparsifier& sparsifier, const Kernels& kernels, std::int64_t k,
            Span<float> gradient, Span<float> bucket, SelectionState* state, Entries* taken) {
  const std::int64_t size = gradient.size, first = size / 3 | 1;
  const Span<float> residual = bucket.Sub(kOffset, size);
  std::vector<Feedback> feedback;
  for (const Range& part : {Range{0, first}, Range{first, size}}) {
    const GradView view{gradient.data + part.begin, part.size(), DType::kFloat32};
    feedback.push_back({view, 0.9f, 1.1f, residual.Sub(part.begin, part.size())});
  }
  const std::int64_t room = sparsifier.Room(k, size);
  SparseBlock block;
  block.Reset(kFilled + room);
  Selection selection(feedback, residual, kOffset, kFilled, room, kernels, &block);
  sparsifier.Select(k, state, &selection);
  selection.Finish();
  *taken = EntriesOf(block, kFilled + selection.taken(), kFilled);
}

using CudaCandidates = CudaTest;

/// Expects the same entries, residuals and states in several steps.
void ExpectAlike(const std::string& name, const Draw& draw, std::int64_t size, std::int64_t k) {
  SparsifierOptions options;
  if (name == "hard_threshold") options["threshold"] = 1.5;
  const auto sparsifier = MakeSparsifier(name, options);
  Gradients gradients(draw, size);
  Outcome of_cpu{std::vector<float>(static_cast<std::size_t>(kOffset + size), 0.0f), {}, {}};
  SelectionState state;
  DeviceArray<float> bucket(of_cpu.bucket), gradient(of_cpu.bucket);
  for (int step = 0; step < 4; ++step) {
    std::vector<float> values = gradients.Next();
    Entries taken;
    gradient.Assign(values);
    const Span<float> on_device = gradient.span().Sub(0, size);
    Select(*sparsifier, CudaKernels(0), k, on_device, bucket.span(), &state, &taken);
    Select(*sparsifier, CpuKernels(), k, values, of_cpu.bucket, &of_cpu.state, &of_cpu.taken);
    ASSERT_EQ(taken, of_cpu.taken) << "step " << step;
    ASSERT_TRUE(SameBits(bucket.Values(), of_cpu.bucket)) << "step " << step;
    ASSERT_EQ(FloatBits(state.threshold), FloatBits(of_cpu.state.threshold)) << "step " << step;
    ASSERT_EQ(FloatBits(state.tail_index), FloatBits(of_cpu.state.tail_index)) << "step " << step;
  }
}

TEST_F(CudaCandidates, AllSparsifiersChooseAsOnTheCpu) {
  for (const std::string& name : SparsifierNames()) {
    for (const auto& [title, draw] : kDistributions) {
      SCOPED_TRACE(name + " of " + title);
      ExpectAlike(name, draw, 20000, 300);
    }
  }
}

TEST_F(CudaCandidates, FewOrAllEntriesAreChosenAsOnTheCpu) {
  for (const std::string& name : {"top_k", "one_sign", "gaussian", "hard_threshold"}) {
    for (const auto& [size, k] : {std::pair(7, 1), {7, 7}, {5000, 1}, {5000, 4000}, {9000, 9000}}) {
      SCOPED_TRACE(name + ": " + std::to_string(k) + " of " + std::to_string(size));
      ExpectAlike(name, Gauss, size, k);
    }
  }
}

/// Magnitudes of both signs whose sums are equal, or nearly so: the order of adding decides.
TEST_F(CudaCandidates, EqualSumsOfBothSignsAreComparedAsOnTheCpu) {
  const Draw few = [](auto& random) { return static_cast<double>(random() % 3) - 1.0; };
  const Draw pairs = [n = 0, last = 0.0](auto& random) mutable {
    last = n++ % 2 == 0 ? Gauss(random) : -last;
    return last;
  };
  for (const Draw& draw : {few, Draw(pairs)}) ExpectAlike("one_sign", draw, 6000, 400);
}

TEST_F(CudaCandidates, TheFirstGoWhereThereIsNoRoomForAll) {
  constexpr std::int64_t kSize = 20000, kRoom = 1000;
  const std::vector<float> before = Make(Gauss, kSize);
  for (const float threshold : {0.0f, 0.5f, 1.9f}) {
    std::vector<float> rest = before;
    SparseBlock blocks[2];
    for (SparseBlock& block : blocks) block.Reset(kRoom);
    const Tally expected = CpuKernels().TakeAbove(rest, threshold, 0, 0, kRoom, &blocks[0]);
    DeviceArray<float> residual(before);
    cuda::DeviceCandidates candidates(0, kRoom, residual.span());
    const Tally tally = candidates.Take({{}, 1, 1, residual.span()}, threshold, 0);
    EXPECT_EQ(tally.above, expected.above);
    EXPECT_EQ(tally.taken, expected.taken);
    ASSERT_EQ(candidates.count(), expected.taken);
    candidates.Fetch(0, &blocks[1]);
    EXPECT_EQ(EntriesOf(blocks[1], expected.taken), EntriesOf(blocks[0], expected.taken));
    EXPECT_TRUE(SameBits(residual.Values(), rest));
    candidates.PutBack();
    EXPECT_EQ(candidates.count(), 0);
    EXPECT_TRUE(SameBits(residual.Values(), before));
  }
}

}  // namespace
}  // namespace hvd_sparse
