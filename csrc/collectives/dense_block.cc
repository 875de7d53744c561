#include "csrc/collectives/dense_block.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>

#include "csrc/base/error.h"
#include "csrc/kernels/clones.h"
#include "csrc/kernels/half.h"

namespace hvd_sparse {
namespace {

/// "HVSD" in memory order of a little-endian machine.
constexpr std::uint32_t kDenseMagic = 0x44535648u;

constexpr float kAbsent = -0.0f;

/// Adds `theirs` to `own`. Returns true if all sums are finite.
HVD_SPARSE_CLONES bool AddEach(const float* theirs, std::int64_t count, float* own) {
  int bad = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const float sum = own[i] + theirs[i];
    own[i] = sum;
    bad |= static_cast<int>(!(std::fabs(sum) <= FLT_MAX));
  }
  return bad == 0;
}

}  // namespace

void DenseBlock::Reset(std::int64_t numel) {
  buffer_.Reserve(MessageBytes(numel));
  numel_ = numel;
  header() = BlockHeader{};
  header().magic = kDenseMagic;
  header().count = static_cast<std::int32_t>(numel);
}

void DenseBlock::Clear() { std::fill_n(values(), numel_, kAbsent); }

bool DenseBlock::Add(const SparseBlock& block) {
  const Index* indices = block.indices();
  bool finite = true;
  for (std::int64_t i = 0; i < block.count(); ++i) {
    const Index position = Position(indices[i]);
    if (position >= numel_) {
      Throw(ErrorKind::kExchangeFailed, "received an entry at position ", position,
            " of a bucket with ", numel_, " entries");
    }
    float& sum = values()[position];
    sum += block.values()[i];
    finite &= std::fabs(sum) <= FLT_MAX;
  }
  return finite;
}

bool DenseBlock::Add(const DenseBlock& other) { return AddEach(other.values(), numel_, values()); }

void DenseBlock::ParseInPlace(std::int64_t bytes) {
  BlockHeader received;
  const bool whole = bytes == message_bytes();
  if (whole) std::memcpy(&received, buffer_.data(), sizeof(received));
  if (!whole || received.magic != kDenseMagic || received.count != numel_ ||
      !received.verdict.IsPossible()) {
    Throw(ErrorKind::kExchangeFailed, "received ", bytes, " bytes that are no dense sum of ",
          numel_, " entries: the ranks are out of step, or run different versions");
  }
}

void DenseBlock::ToBlock(SparseBlock* block) const {
  const BlockHeader identity = block->header();
  block->Reset(numel_);
  Index* indices = block->indices();
  float* values_out = block->values();
  const float* sums = values();
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < numel_; ++i) {
    indices[count] = static_cast<Index>(i);
    values_out[count] = sums[i];
    count += FloatBits(sums[i]) != FloatBits(kAbsent);
  }
  block->header() = identity;
  block->Finish(count);
}

void DenseBlock::Identify(const BlockHeader& identity) {
  const BlockHeader format = header();
  header() = identity;
  header().magic = format.magic;
  header().count = format.count;
}

}  // namespace hvd_sparse
