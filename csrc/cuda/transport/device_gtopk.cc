#include "csrc/cuda/transport/device_gtopk.h"

#include <cmath>

#include "csrc/base/error.h"
#include "csrc/collectives/collectives.h"

namespace hvd_sparse::cuda {
namespace {

/// Returns how many merges a rank makes.
int MergesOf(const FoldedCube& cube) {
  if (cube.IsGuest()) return 0;
  int merges = cube.HasGuest() ? 1 : 0;
  for (int distance = 1; distance < cube.Core(); distance *= 2) ++merges;
  return merges;
}

std::int64_t Checked(std::int64_t numel, std::int64_t k, const CollectiveOptions& options) {
  Require(1 <= numel && numel <= kMaxBucketNumel, "numel must lie in [1, ", kMaxBucketNumel,
          "], got ", numel);
  Require(1 <= k && k <= numel, "k must lie in [1, ", numel, "], got ", k);
  options.Check("DeviceGTopK");
  return k;
}

/// Returns `kept`, the entries of a block between the rounds, if such blocks can be merged.
std::int64_t CheckedKept(std::int64_t kept, int ranks) {
  Require(ranks == 1 || kept <= kMostToMerge, "the entries that are kept must be at most ",
          kMostToMerge, " where ranks merge their blocks, got ", kept);
  return kept;
}

}  // namespace

DeviceGTopK::DeviceGTopK(std::int64_t numel, std::int64_t k, const CollectiveOptions& options,
                         DeviceTransport* transport)
    : transport_(*transport),
      cube_{transport->Rank(), transport->Size()},
      k_(Checked(numel, k, options)),
      kept_(CheckedKept(KeptBeforeTheLast(k, numel, options), transport->Size())),
      mergings_(static_cast<std::size_t>(MergesOf(cube_))),
      zeros_([this](Divider* divider) { DivideZeros(divider); }),
      rest_(transport_, SizeOfAll([this](Divider* divider) { DivideRest(divider); })) {
  Divider rest(rest_.get());
  DivideRest(&rest);
}

void DeviceGTopK::DivideZeros(Divider* divider) {
  const std::int64_t both = 2 * DeviceBlock::CapacityFor(kept_);
  for (Merging& merging : mergings_) {
    merging = {MergeScratch::From(divider, both), TopKScratch::From(divider, both)};
  }
}

void DeviceGTopK::DivideRest(Divider* divider) {
  selected_ = divider->TakeBlock(kept_);
  if (cube_.size == 1) return;
  running_ = divider->TakeBlock(kept_);
  if (cube_.IsGuest()) return;
  theirs_ = divider->TakeBlock(kept_);
  merged_ = divider->TakeBlock(2 * selected_.capacity);
}

void DeviceGTopK::MergeAndTrim(const DeviceBlock& own, std::int64_t count, bool marks,
                               const Merging& scratch, cudaStream_t stream) {
  LaunchMerge(own, theirs_, merged_, scratch.merge, scratch.trim.digits, stream);
  LaunchKeepTopK({count, true, marks, {}}, merged_, running_, scratch.trim, stream);
}

void DeviceGTopK::Run(cudaStream_t stream) {
  const std::int64_t bytes = selected_.message_bytes();
  if (cube_.IsGuest()) {
    transport_.Exchange(cube_.Host(), selected_.message(), nullptr, bytes, stream);
    transport_.Exchange(cube_.Host(), nullptr, running_.message(), bytes, stream);
    return;
  }
  zeros_.Clear(stream);

  const DeviceBlock* own = &selected_;
  auto merging = mergings_.begin();
  if (cube_.HasGuest()) {
    transport_.Exchange(cube_.Guest(), nullptr, theirs_.message(), bytes, stream);
    MergeAndTrim(*own, kept_, /*marks=*/true, *merging++, stream);  // also for its guest's entries
    own = &running_;
  }

  for (int distance = 1; distance < cube_.Core(); distance *= 2) {
    const bool last = 2 * distance == cube_.Core();
    transport_.Exchange(cube_.Partner(distance), own->message(), theirs_.message(), bytes, stream);
    MergeAndTrim(*own, last ? k_ : kept_, /*marks=*/false, *merging++, stream);
    own = &running_;
  }

  if (cube_.HasGuest()) {
    transport_.Exchange(cube_.Guest(), running_.message(), nullptr, bytes, stream);
  }
}

}  // namespace hvd_sparse::cuda
