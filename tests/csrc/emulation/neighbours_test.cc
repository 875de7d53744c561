/// No copy of a dense sum spans two allocations, even if one lies right behind the other.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "csrc/devices/kernels_for.h"
#include "csrc/wire/dense_work.h"
#include "tests/csrc/cuda/device_array.h"

namespace hvd_sparse {
namespace {

TEST(Neighbours, ValuesOfTheOwnShardAreCopiedByThemselves) {
  constexpr std::int64_t kSize = 64;  // 256 bytes: an allocation ends where the next one begins
  alignas(256) static char pinned[1 << 16];
  std::vector<float> gradient(2 * kSize), residual(2 * kSize);
  for (std::int64_t i = 0; i < 2 * kSize; ++i) gradient[i] = static_cast<float>(i);
  emulation::pinned_from = pinned;
  const std::unique_ptr<DenseWork> work = DenseWorkFor(kGpu);
  DenseRoom room{Values::kFloat32, 2 * kSize};
  room.pieces = 2;
  room.longest_piece = room.own_numel = kSize;
  room.code_bytes = 4 * kSize;
  work->Prepare(room);
  emulation::pinned_from = nullptr;
  ASSERT_EQ(static_cast<void*>(work->codes() + room.code_bytes), work->own());

  std::vector<DensePiece> pieces;
  for (const std::int64_t begin : {std::int64_t{0}, kSize}) {
    const GradView view{gradient.data() + begin, kSize, DType::kFloat32};
    pieces.push_back({{view, 1.0f, 1.0f, Span<float>(residual).Sub(begin, kSize)}, begin});
  }
  pieces[0].code = work->codes();
  pieces[1].own = work->own();
  EXPECT_EQ(work->Take({Values::kFloat32}, pieces), 0);
  EXPECT_EQ(std::vector<float>(work->own(), work->own() + kSize),
            std::vector<float>(gradient.begin() + kSize, gradient.end()));
}

}  // namespace
}  // namespace hvd_sparse
