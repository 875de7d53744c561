/// The kernels of a GPU match those of the CPU to the last bit.

#include "csrc/cuda/kernels/cuda_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "csrc/kernels/half.h"
#include "tests/csrc/cuda/device_array.h"
#include "tests/csrc/entries.h"
#include "tests/csrc/taking.h"

namespace hvd_sparse {
namespace {

/// Sizes around those of vectors, warps and tiles.
const std::vector<std::int64_t> kPassSizes = {0,   1,   3,    4,    127,  128,  129,
                                              511, 513, 4095, 4096, 4097, 12289};

constexpr Index kOffset = 1000;      // of the residual in its bucket
constexpr std::int64_t kFilled = 3;  // entries already in the block

/// Offsets of the residual and the gradient from an aligned address.
struct Shifts {
  std::int64_t residual, gradient;
};
constexpr Shifts kShifts[] = {{0, 0}, {1, 0}, {4, 2}};

struct Scaling {
  float decay, scale;
};
constexpr Scaling kScalings[] = {{1, 1}, {0.9f, 0.3f}};

using Undo = std::vector<std::pair<Index, float>>;

const Kernels& Gpu() { return CudaKernels(0); }

template <typename T>
std::vector<T> GradientOf(std::int64_t size) {
  std::vector<T> gradient;
  for (const float value : Awkward(size, 21)) gradient.push_back(Narrow<T>(value));
  for (std::int64_t i = 5; i < size; i += 97) {
    gradient[i] = Narrow<T>(i % 2 == 0 ? kNan : -kInf);
  }
  if constexpr (std::is_same_v<T, double>) {
    for (double& value : gradient) value *= 1.0 + 1e-9;  // between two floats
  }
  return gradient;
}

/// Results of one pass.
struct Outcome {
  std::vector<float> residual;
  Entries taken;
  Tally tally;
};

void ExpectEqual(const Outcome& actual, const Outcome& expected) {
  EXPECT_TRUE(SameBits(actual.residual, expected.residual));
  EXPECT_EQ(actual.taken, expected.taken);
  EXPECT_EQ(actual.tally.above, expected.tally.above);
  EXPECT_EQ(actual.tally.taken, expected.tally.taken);
  EXPECT_EQ(actual.tally.not_finite, expected.tally.not_finite);
}

/// Runs take(kernels, residual, place, block) on a device and on the CPU, with that room.
template <typename Take>
void ExpectTakesAlike(const std::vector<float>& before, std::int64_t shift, std::int64_t room,
                      Take take) {
  Outcome of_gpu, of_cpu{before, {}, {}};
  DeviceArray<float> residual(before, shift);
  SparseBlock blocks[2];
  for (SparseBlock& block : blocks) block.Reset(kFilled + room);
  const TakingPlace place{room, kOffset, kFilled};
  of_gpu.tally = take(Gpu(), residual.span(), place, &blocks[0]);
  of_cpu.tally = take(CpuKernels(), Span<float>(of_cpu.residual), place, &blocks[1]);
  of_gpu.residual = residual.Values();
  of_gpu.taken = EntriesOf(blocks[0], kFilled + of_gpu.tally.taken, kFilled);
  of_cpu.taken = EntriesOf(blocks[1], kFilled + of_cpu.tally.taken, kFilled);
  ExpectEqual(of_gpu, of_cpu);
}

/// Returns room for none, one, some, all but one, all, and more than all.
std::vector<std::int64_t> Rooms(std::int64_t above) {
  return {0, 1, above / 2, std::max<std::int64_t>(above - 1, 0), above, above + 100};
}

// ---- Error feedback and taking ------------------------------------------------------------------

template <typename T>
class CudaFeedback : public CudaTest {};
TYPED_TEST_SUITE(CudaFeedback, GradientTypes);

TYPED_TEST(CudaFeedback, AccumulateEqualsTheCpu) {
  for (const std::int64_t size : kPassSizes) {
    std::vector<TypeParam> gradient = GradientOf<TypeParam>(size);
    const std::vector<float> before = Awkward(size, 22);
    for (const Shifts shifts : kShifts) {
      DeviceArray<TypeParam> on_gpu(gradient, shifts.gradient);
      for (const Scaling scaling : kScalings) {
        std::vector<float> expected = before;
        DeviceArray<float> residual(before, shifts.residual);
        EXPECT_EQ(Gpu().Accumulate({{on_gpu.data(), size, kDTypeOf<TypeParam>},
                                    scaling.decay,
                                    scaling.scale,
                                    residual.span()}),
                  CpuKernels().Accumulate({{gradient.data(), size, kDTypeOf<TypeParam>},
                                           scaling.decay,
                                           scaling.scale,
                                           expected}));
        EXPECT_TRUE(SameBits(residual.Values(), expected)) << "of " << size;
      }
    }
  }
}

TYPED_TEST(CudaFeedback, NothingBehindTheLastEntryIsCounted) {
  for (const std::int64_t size : {1, 5, 4098}) {
    DeviceArray<TypeParam> gradient(std::vector<TypeParam>(size, Narrow<TypeParam>(0.0f)));
    const std::vector<float> before(size, 2.0f);
    DeviceArray<float> residual(before);
    SparseBlock block;
    block.Reset(size);
    const Feedback feedback{
        {gradient.data(), size, kDTypeOf<TypeParam>}, 1.0f, kInf, residual.span()};
    EXPECT_EQ(Gpu().Accumulate(feedback), size);  // 0 times infinity
    EXPECT_EQ(TakeAbove(Gpu(), feedback, 3.0f, {size}, &block).not_finite, size);
    EXPECT_EQ(residual.Values(), before);
  }
}

TYPED_TEST(CudaFeedback, TakingEqualsTheCpu) {
  for (const std::int64_t size : kPassSizes) {
    std::vector<TypeParam> gradient = GradientOf<TypeParam>(size);
    const std::vector<float> before = Awkward(size, 22);
    for (const Shifts shifts : kShifts) {
      DeviceArray<TypeParam> on_gpu(gradient, shifts.gradient);
      for (const Scaling scaling : kScalings) {
        std::vector<float> after = before;
        const GradView view{gradient.data(), size, kDTypeOf<TypeParam>};
        CpuKernels().Accumulate({view, scaling.decay, scaling.scale, after});
        for (const float threshold : {0.0f, 1.5f}) {
          for (const std::int64_t room : Rooms(CpuKernels().CountAbove(after, threshold))) {
            SCOPED_TRACE(testing::Message() << size << " entries, room " << room);
            ExpectTakesAlike(
                before, shifts.residual, room,
                [&](const Kernels& kernels, Span<float> residual, auto& place, SparseBlock* block) {
                  GradView here = view;
                  if (&kernels == &Gpu()) here.data = on_gpu.data();
                  return TakeAbove(kernels, {here, scaling.decay, scaling.scale, residual},
                                   threshold, place, block);
                });
          }
        }
      }
    }
  }
}

TYPED_TEST(CudaFeedback, SamplesAreThoseOfTheCpu) {
  for (const std::int64_t size : kPassSizes) {
    std::vector<TypeParam> gradient = GradientOf<TypeParam>(size);
    std::vector<float> before = Awkward(size, 22);
    DeviceArray<TypeParam> on_gpu(gradient);
    DeviceArray<float> residual(before);
    for (const std::int64_t count : {1, 1000, 1000000}) {
      std::vector<float> of_gpu = {7}, of_cpu = {7};
      Gpu().Sample({{on_gpu.data(), size, kDTypeOf<TypeParam>}, 0.5f, 2, residual.span()}, count, 7,
                   &of_gpu);
      CpuKernels().Sample({{gradient.data(), size, kDTypeOf<TypeParam>}, 0.5f, 2, before}, count, 7,
                          &of_cpu);
      EXPECT_TRUE(SameBits(of_gpu, of_cpu)) << count << " of " << size;
      Gpu().Sample({{}, 1, 1, residual.span()}, count, 7, &of_gpu);
      CpuKernels().Sample({{}, 1, 1, before}, count, 7, &of_cpu);
      EXPECT_TRUE(SameBits(of_gpu, of_cpu)) << count << " of " << size;
    }
    EXPECT_TRUE(SameBits(residual.Values(), before));
  }
}

using CudaTake = CudaTest;

TEST_F(CudaTake, TakingWithoutAGradientEqualsTheCpu) {
  for (const std::int64_t size : kPassSizes) {
    std::vector<float> before = Awkward(size, 23);
    for (std::int64_t i = 9; i < size; i += 50) before[i] = kNan;
    for (const float threshold : {0.0f, 20 * kTiny, 1.0f, kMax}) {
      for (const std::int64_t room : Rooms(CpuKernels().CountAbove(before, threshold))) {
        for (const std::int64_t shift : {0, 1}) {
          SCOPED_TRACE(testing::Message() << size << " entries, room " << room);
          ExpectTakesAlike(
              before, shift, room,
              [&](const Kernels& kernels, Span<float> residual, auto& place, SparseBlock* block) {
                return TakeAbove(kernels, residual, threshold, place, block);
              });
        }
      }
    }
  }
}

TEST_F(CudaTake, TheExactTopKIsThatOfTheCpu) {
  for (const std::int64_t size : kPassSizes) {
    std::vector<float> before = Awkward(size, 4);
    for (std::int64_t i = 9; i < size; i += 50) before[i] = kNan;
    DeviceArray<float> dense(before);
    for (std::int64_t k = 1; k <= size; k *= 7) {
      const TopKCut cut = CpuKernels().FindTopK(before, k), found = Gpu().FindTopK(dense.span(), k);
      EXPECT_EQ(FloatBits(found.magnitude), FloatBits(cut.magnitude)) << k << " of " << size;
      EXPECT_EQ(found.ties, cut.ties) << k << " of " << size;
      for (const std::int64_t room : {k, k / 2}) {
        ExpectTakesAlike(
            before, 0, room,
            [&](const Kernels& kernels, Span<float> residual, auto& place, SparseBlock* block) {
              return Tally{0, TakeCut(kernels, residual, cut, place, block), 0};
            });
      }
    }
  }
}

TEST_F(CudaTake, TakeAtEqualsTheCpu) {
  const std::vector<Index> positions = {1, 2, 4, 5, 998};
  for (const std::int64_t room : {0, 3, 5, 9}) {
    ExpectTakesAlike(
        Awkward(999, 5), 0, room,
        [&](const Kernels& kernels, Span<float> residual, auto& place, SparseBlock* block) {
          return Tally{0, TakeAt(kernels, residual, positions, place, block), 0};
        });
  }
}

TEST_F(CudaTake, ManyTilesAreAsInOrderAsFew) {
  constexpr std::int64_t kSize = 300000;
  std::vector<float> gradient = GradientOf<float>(kSize);
  DeviceArray<float> on_gpu(gradient);
  const std::vector<float> before = Awkward(kSize, 22);
  for (const std::int64_t room : {kSize, std::int64_t{100000}}) {
    ExpectTakesAlike(
        before, 0, room,
        [&](const Kernels& kernels, Span<float> residual, auto& place, SparseBlock* block) {
          float* const here = &kernels == &Gpu() ? on_gpu.data() : gradient.data();
          return TakeAbove(kernels, {{here, kSize, DType::kFloat32}, 1, 1, residual}, 0.5f, place,
                           block);
        });
  }
  DeviceArray<float> dense(before);
  const TopKCut cut = CpuKernels().FindTopK(before, kSize / 3);
  const TopKCut found = Gpu().FindTopK(dense.span(), kSize / 3);
  EXPECT_EQ(found.magnitude, cut.magnitude);
  EXPECT_EQ(found.ties, cut.ties);
  ExpectTakesAlike(
      before, 0, kSize / 3,
      [&](const Kernels& kernels, Span<float> residual, auto& place, SparseBlock* block) {
        return Tally{0, TakeCut(kernels, residual, cut, place, block), 0};
      });
}

// ---- Reading without taking ---------------------------------------------------------------------

TEST_F(CudaTake, CountsAndMomentsAreThoseOfTheCpu) {
  for (const std::int64_t size : kPassSizes) {
    std::vector<float> values = Awkward(size, 6);
    for (float& value : values) value = std::fabs(value) > 1e9f ? 1e9f : value;
    for (const std::int64_t shift : {0, 1}) {
      DeviceArray<float> dense(values, shift);
      for (const float threshold : {0.0f, 1.0f, 1e8f}) {
        EXPECT_EQ(Gpu().CountAbove(dense.span(), threshold),
                  CpuKernels().CountAbove(values, threshold));
      }
      const Moments of_gpu = Gpu().ComputeMoments(dense.span());
      const Moments of_cpu = CpuKernels().ComputeMoments(values);
      EXPECT_NEAR(of_gpu.mean, of_cpu.mean, 1e-12 * std::fabs(of_cpu.mean));
      EXPECT_NEAR(of_gpu.stddev, of_cpu.stddev, 1e-12 * of_cpu.stddev);
    }
  }
}

// ---- Entries that were taken --------------------------------------------------------------------

using CudaBlocks = CudaTest;

TEST_F(CudaBlocks, KeepingSettlingAndPuttingBackEqualTheCpu) {
  for (const std::int64_t size : {0, 1, 200, 70000}) {
    const Entries entries = EveryThird(size, 7);
    const SparseBlock reduced = MakeBlock(EveryThird(size / 2, 8));
    std::vector<float> before = Awkward(3 * size, 9);
    for (const Entry& entry : entries) before[Position(entry.index)] = 0;
    const auto expect_alike = [&](auto call) {
      std::vector<float> of_cpu = before;
      DeviceArray<float> of_gpu(before);
      SparseBlock blocks[2] = {MakeBlock(entries), MakeBlock(entries)};
      EXPECT_EQ(call(Gpu(), &blocks[0], of_gpu.span()),
                call(CpuKernels(), &blocks[1], Span<float>(of_cpu)));
      EXPECT_EQ(EntriesOf(blocks[0]), EntriesOf(blocks[1]));
      EXPECT_TRUE(SameBits(of_gpu.Values(), of_cpu)) << "of " << size;
    };
    for (const std::int64_t k : {std::int64_t{0}, size / 3, size}) {
      expect_alike([&](const Kernels& kernels, SparseBlock* block, Span<float> residual) {
        block->Finish(kernels.KeepTopK(k, 0, size, block, residual));
        return block->count();
      });
    }
    expect_alike([&](const Kernels& kernels, SparseBlock* block, Span<float> residual) {
      kernels.Settle(*block, reduced, residual);
      kernels.PutBack(*block, size / 2, size, residual);
      return 0;
    });
  }
}

TEST_F(CudaBlocks, ErrorsAreAddedAndRestoredAsOnTheCpu) {
  const std::vector<float> before = {1, 2, 3, 4};
  const Undo errors = {{3, 8}, {0, 8}, {3, 16}, {4, 1}, {-1, 1}};
  std::vector<float> of_cpu = before;
  DeviceArray<float> of_gpu(before);
  Undo undo_of_cpu = {{7, 7}}, undo_of_gpu = {{7, 7}};
  CpuKernels().AddErrors(errors, of_cpu, &undo_of_cpu);
  Gpu().AddErrors(errors, of_gpu.span(), &undo_of_gpu);
  EXPECT_EQ(of_gpu.Values(), of_cpu);
  EXPECT_EQ(undo_of_gpu, undo_of_cpu);
  undo_of_gpu.erase(undo_of_gpu.begin());
  Gpu().Restore(undo_of_gpu, of_gpu.span());
  EXPECT_EQ(of_gpu.Values(), before);
}

template <typename T>
class CudaScatter : public CudaTest {};
TYPED_TEST_SUITE(CudaScatter, GradientTypes);

TYPED_TEST(CudaScatter, EqualsTheCpu) {
  for (const std::int64_t size : {0, 1, 4097, 100000}) {
    Entries entries = EveryThird(size / 2, 32);  // some lie beyond the gradient
    const SparseBlock reduced = MakeBlock(entries);
    const std::vector<TypeParam> dirty(size, Narrow<TypeParam>(-3.0f));
    const std::vector<float> before = Awkward(size, 33);
    std::vector<TypeParam> of_cpu = dirty;
    std::vector<float> left_by_cpu = before;
    DeviceArray<TypeParam> of_gpu(dirty, 1);
    DeviceArray<float> left_by_gpu(before);
    Undo undo_of_cpu, undo_of_gpu;
    constexpr DType kType = kDTypeOf<TypeParam>;
    const Index offset = size > 1000 ? 500 : 0;
    EXPECT_EQ(Gpu().Scatter(reduced, 0.7f, offset, {of_gpu.data(), size, kType}, left_by_gpu.span(),
                            &undo_of_gpu, 0.25f),
              CpuKernels().Scatter(reduced, 0.7f, offset, {of_cpu.data(), size, kType}, left_by_cpu,
                                   &undo_of_cpu, 0.25f));
    const std::vector<TypeParam> written = of_gpu.Values();
    EXPECT_TRUE(size == 0 ||
                std::memcmp(written.data(), of_cpu.data(), sizeof(TypeParam) * size) == 0);
    EXPECT_TRUE(SameBits(left_by_gpu.Values(), left_by_cpu));
    EXPECT_EQ(undo_of_gpu, undo_of_cpu);
  }
}

using CudaPlace = CudaTest;

TEST_F(CudaPlace, AnAddressTellsItsDevice) {
  DeviceArray<float> array(std::vector<float>(3, 1.0f));
  EXPECT_EQ(CudaDeviceOf(reinterpret_cast<std::uintptr_t>(array.data())), 0);
  EXPECT_THROW(CudaDeviceOf(0), Error);
}

using CudaOrder = CudaTest;

TEST_F(CudaOrder, WorkFollowsAStreamAndAStreamFollowsIt) {
  constexpr std::int64_t kSize = 1 << 18;
  std::vector<float> ones(kSize, 1.0f);
  DeviceArray<float> gradient(ones), residual(std::vector<float>(kSize, 0.0f)), copy(ones);
  cudaStream_t stream = nullptr;
  cuda::Check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "make a stream");
  const auto handle = reinterpret_cast<StreamHandle>(stream);
  SparseBlock block = MakeBlock({{5, 1.0f}});
  Undo undo;
  for (int round = 0; round < 5; ++round) {
    cuda::Check(cudaMemsetAsync(residual.data(), 0, kSize * sizeof(float), stream), "clear");
    Gpu().Follow(Gpu().EndOf(handle).get());
    EXPECT_EQ(Gpu().CountAbove(residual.span(), 0), 0);
    Gpu().Accumulate({{gradient.data(), kSize, DType::kFloat32}, 1, 1, residual.span()});
    Gpu().Scatter(block, 1, 0, {copy.data(), kSize, DType::kFloat32}, {}, &undo, 1);
    Gpu().MakeStreamFollow(handle, Gpu().EndOfOwn().get());
    std::vector<float> seen(kSize);
    cuda::Check(
        cudaMemcpyAsync(seen.data(), copy.data(), kSize * sizeof(float), cudaMemcpyDefault, stream),
        "copy");
    cuda::Check(cudaStreamSynchronize(stream), "finish");
    std::vector<float> expected(kSize, 0.0f);
    expected[5] = 1;
    EXPECT_EQ(seen, expected);
    copy.Assign(ones);
  }
  (void)cudaStreamDestroy(stream);
}

}  // namespace
}  // namespace hvd_sparse
