/// Candidates that are sifted on a GPU end as those that are sifted on the CPU, to the last bit.

#include "csrc/cuda/kernels/device_candidates.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "csrc/cuda/kernels/cuda_kernels.h"
#include "csrc/sparsifiers/selection.h"
#include "csrc/sparsifiers/sparsifier.h"
#include "tests/csrc/cuda/device_array.h"
#include "tests/csrc/entries.h"
#include "tests/csrc/segment.h"
#include "tests/csrc/taking.h"

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
  for (const std::string name : {"top_k", "one_sign", "gaussian", "hard_threshold"}) {
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
    const Tally expected = TakeAbove(CpuKernels(), rest, threshold, {kRoom}, &blocks[0]);
    DeviceArray<float> residual(before);
    cuda::DeviceCandidates candidates(0, residual.span(), 0, kRoom, &blocks[1]);
    const Tally tally = candidates.Take({{}, 1, 1, residual.span()}, threshold);
    EXPECT_EQ(tally.above, expected.above);
    EXPECT_EQ(tally.taken, expected.taken);
    ASSERT_EQ(candidates.count(), expected.taken);
    candidates.Fetch();
    EXPECT_EQ(EntriesOf(blocks[1], expected.taken), EntriesOf(blocks[0], expected.taken));
    EXPECT_TRUE(SameBits(residual.Values(), rest));
    candidates.PutBack();
    EXPECT_EQ(candidates.count(), 0);
    EXPECT_TRUE(SameBits(residual.Values(), before));
  }
}

/// Expects the same bits in the parts of a sum that are exact.
void ExpectSame(const SignSum& of_gpu, const SignSum& of_cpu) {
  EXPECT_EQ(of_gpu.group.negative, of_cpu.group.negative);
  EXPECT_EQ(of_gpu.group.cut, of_cpu.group.cut);
  EXPECT_EQ(of_gpu.group.ties, of_cpu.group.ties);
  EXPECT_EQ(of_gpu.group.count, of_cpu.group.count);
  EXPECT_EQ(of_gpu.least, of_cpu.least);
  EXPECT_EQ(of_cpu.error, 0);
  EXPECT_NEAR(of_gpu.sum, of_cpu.sum, of_gpu.error);
}

TEST_F(CudaCandidates, HoweverTheyAreTakenTheyAreSiftedAsOnTheCpu) {
  constexpr std::int64_t kSize = 20000, kRoom = 5000;
  const std::vector<float> before = Make(Gauss, kOffset + kSize);
  std::vector<Index> positions;
  for (Index i = 0; i < kSize; i += 7) positions.push_back(i);
  const TopKCut cut = CpuKernels().FindTopK(before, 3000);
  using Take = std::function<void(Candidates*, Span<float>)>;
  const Take takes[] = {
      [](Candidates* own, Span<float> segment) { own->Take({{}, 1, 1, segment}, 1.2f); },
      [&](Candidates* own, Span<float> segment) { own->TakeCut(segment, cut); },
      [&](Candidates* own, Span<float> segment) { own->TakeAt(segment, positions); }};
  for (const Take& take : takes) {
    std::vector<float> on_cpu = before;
    DeviceArray<float> on_gpu(before);
    const Span<float> buckets[2] = {on_cpu, on_gpu.span()};
    SparseBlock blocks[2];
    std::unique_ptr<Candidates> both[2];
    for (int i = 0; i < 2; ++i) {
      const Kernels& kernels = i == 0 ? CpuKernels() : CudaKernels(0);
      blocks[i].Reset(kFilled + kRoom);
      both[i] = kernels.NewCandidates(buckets[i], kFilled, kRoom, &blocks[i]);
      take(both[i].get(), buckets[i].Sub(kOffset, kSize));
    }
    const auto expect_alike = [&] {
      const std::int64_t count = both[0]->count();
      ASSERT_EQ(both[1]->count(), count);
      for (const auto& candidates : both) candidates->Fetch();
      EXPECT_EQ(EntriesOf(blocks[1], kFilled + count, kFilled),
                EntriesOf(blocks[0], kFilled + count, kFilled));
      EXPECT_TRUE(SameBits(on_gpu.Values(), on_cpu));
    };
    expect_alike();
    ASSERT_GT(both[0]->count(), 2000);
    EXPECT_EQ(both[1]->Smallest(), both[0]->Smallest());
    for (const auto& candidates : both) candidates->KeepTopK(2000);
    expect_alike();
    EXPECT_EQ(both[1]->Smallest(), both[0]->Smallest());
    const SignSums of_cpu = both[0]->LargestOfSigns(500), of_gpu = both[1]->LargestOfSigns(500);
    for (int sign = 0; sign < 2; ++sign) ExpectSame(of_gpu[sign], of_cpu[sign]);
    for (const auto& candidates : both) candidates->Keep(of_cpu[1].group);
    expect_alike();
    for (const auto& candidates : both) candidates->PutBack();
    EXPECT_EQ(both[1]->count(), 0);
    EXPECT_TRUE(SameBits(on_gpu.Values(), before));
    EXPECT_TRUE(SameBits(on_cpu, before));
  }
}

}  // namespace
}  // namespace hvd_sparse
