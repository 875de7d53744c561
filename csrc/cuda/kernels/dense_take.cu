/// A block of threads takes a tile of a piece, and each of its warps one block of values after the
/// other. Ternary values take a second launch, since their scale depends on a whole piece.

#include "csrc/cuda/base/check.h"
#include "csrc/cuda/kernels/dense_coders.cuh"
#include "csrc/cuda/kernels/dense_work.h"
#include "csrc/wire/values.h"

namespace hvd_sparse::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kWarps = kThreads / kWarp;

/// Entries of a tile: whole blocks of any coder.
constexpr std::int64_t kTile = 5120;

/// The part of a piece that a block of threads takes.
struct TileOfPiece {
  TakenPiece piece;
  std::int64_t number, begin, end;  // of the piece; of the entries in the piece
};

__device__ TileOfPiece OwnTile(const TakeArgs& args, unsigned tiles) {
  const std::int64_t number = blockIdx.x / tiles, begin = kTile * (blockIdx.x % tiles);
  const TakenPiece piece = args.pieces[number];
  return {piece, number, begin, Smaller(begin + kTile, piece.size)};
}

/// Takes a tile. `joins` makes the new values; if it changes any, they are kept in `before`.
/// Returns how many of this thread's values were not finite, or exceed `largest_carried`.
template <typename Coder, typename Joins>
__device__ unsigned TakeTile(const TileOfPiece& tile, const Joins& joins, Coder coder,
                             float* before, float largest_carried) {
  constexpr int kOfLane = Coder::kOfLane;
  constexpr std::int64_t kBlock = Coder::kBlock;
  static_assert(kTile % kBlock == 0);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  unsigned bad = 0;
  for (std::int64_t begin = tile.begin + threadIdx.x / kWarp * kBlock; begin < tile.end;
       begin += kWarps * kBlock) {
    const std::int64_t size = Smaller(kBlock, tile.end - begin);
    float values[kOfLane];
    for (int v = 0; v < kOfLane; ++v) {
      const std::int64_t place = Coder::PlaceIn(size, lane, v), i = begin + place;
      values[v] = place < 0 ? 0 : joins.Join(i, tile.piece.residual[i], &bad);
      if (fabsf(values[v]) > largest_carried) ++bad;
      if (Joins::kChanges && place >= 0) before[tile.piece.begin + i] = values[v];
    }
    coder.Take(begin / kBlock, size, lane, values);
    for (int v = 0; v < kOfLane; ++v) {
      const std::int64_t place = Coder::PlaceIn(size, lane, v);
      if (place >= 0) tile.piece.residual[begin + place] = values[v];
    }
  }
  coder.Finish(lane);
  return bad;
}

/// Makes the coder of a piece in the first launch.
template <typename Coder>
struct FirstCoder {
  static __device__ Coder Of(const TakeArgs& args, const TileOfPiece& tile) {
    return Coder(args.codes + tile.piece.code_at);
  }
};
template <>
struct FirstCoder<AsTheyAre> {
  static __device__ AsTheyAre Of(const TakeArgs& /*args*/, const TileOfPiece& /*tile*/) {
    return {};
  }
};
template <>
struct FirstCoder<LargestOfAll> {
  static __device__ LargestOfAll Of(const TakeArgs& args, const TileOfPiece& tile) {
    return LargestOfAll(args.largest + tile.number);
  }
};

template <typename Coder>
__global__ void __launch_bounds__(kThreads) TakeKernel(TakeArgs args, unsigned tiles) {
  const TileOfPiece tile = OwnTile(args, tiles);
  const TakenPiece& piece = tile.piece;
  unsigned bad = 0;
  WithTypeOnDevice(piece.dtype, [&](auto number) {
    using T = decltype(number);
    const WithGradient<T> joins(piece.gradient, piece.decay, piece.scale);
    bad = piece.code_at < 0 ? TakeTile(tile, joins, AsTheyAre(), args.before, args.largest_carried)
                            : TakeTile(tile, joins, FirstCoder<Coder>::Of(args, tile), args.before,
                                       args.largest_carried);
  });
  bad = WarpSum(bad);
  if (threadIdx.x % kWarp == 0 && bad > 0) atomicAdd(args.not_finite, bad);
}

__global__ void __launch_bounds__(kThreads)
    TernaryKernel(TakeArgs args, float factor, unsigned tiles) {
  const TileOfPiece tile = OwnTile(args, tiles);
  if (tile.piece.code_at < 0) return;
  const float scale = TernaryScale(factor, BitsFloat(args.largest[tile.number]));
  std::uint8_t* const code = args.codes + tile.piece.code_at + kTernaryHeader;
  TakeTile(tile, AsItIs(), TernaryDigits(scale, code), args.before, args.largest_carried);
}

/// Launches the first kernel of a coder.
template <typename Coder>
void TakeBy(const TakeArgs& args, unsigned blocks, unsigned tiles, cudaStream_t stream) {
  TakeKernel<Coder><<<blocks, kThreads, 0, stream>>>(args, tiles);
}

}  // namespace

void LaunchTake(DenseFormat format, const TakeArgs& args, cudaStream_t stream) {
  if (args.piece_count == 0) return;
  const auto tiles = static_cast<unsigned>((args.longest_piece + kTile - 1) / kTile);
  const unsigned blocks = static_cast<unsigned>(args.piece_count) * tiles;
  switch (format.values) {
    case Values::kFloat32:
      TakeBy<AsTheyAre>(args, blocks, tiles, stream);
      break;
    case Values::kFloat16:
      TakeBy<NarrowFloats<Float16>>(args, blocks, tiles, stream);
      break;
    case Values::kBFloat16:
      TakeBy<NarrowFloats<BFloat16>>(args, blocks, tiles, stream);
      break;
    case Values::kInt8:
      TakeBy<ScaledIntegers<Int8>>(args, blocks, tiles, stream);
      break;
    case Values::kInt4:
      TakeBy<ScaledIntegers<Int4>>(args, blocks, tiles, stream);
      break;
    case Values::kTernary:
      TakeBy<LargestOfAll>(args, blocks, tiles, stream);
      CheckLaunch("find the largest entries of a dense sum");
      TernaryKernel<<<blocks, kThreads, 0, stream>>>(args, format.scale, tiles);
      break;
    case Values::kBinary:
      RefuseType(format.values);
  }
  CheckLaunch("take the entries of a dense sum");
}

}  // namespace hvd_sparse::cuda
