#include "csrc/exchange/passage.h"

#include <utility>

namespace hvd_sparse {

namespace {

/// Returns the residual and velocity of the gradient that lies at `offset` in its piece.
Along PartOf(const Passage::Piece& piece, std::int64_t offset, std::int64_t numel) {
  Along along;
  if (piece.residual.size > 0) along.residual = piece.residual.Sub(offset, numel);
  if (piece.velocity.size > 0) {
    along.velocity = piece.velocity.Sub(offset, numel);
    along.next = piece.next.Sub(offset, numel);
  }
  along.decay = piece.decay;
  along.momentum = piece.momentum;
  along.scale = piece.scale;
  return along;
}

}  // namespace

void Passage::LetAllOwe() {
  const std::lock_guard lock(mutex_);
  owes_.assign(owes_.size(), true);
  waits_.assign(waits_.size(), false);
  owed_anywhere_ = true;
  for (auto& rests : rests_) rests.clear();
}

bool Passage::OwedAnywhere() const {
  const std::lock_guard lock(mutex_);
  return owed_anywhere_;
}

void Passage::Begin(StreamHandle stream) {
  const std::lock_guard lock(mutex_);
  stream_ = stream;
  joined_.clear();
  refused_ = false;
}

void Passage::Join(const Piece& piece, const std::vector<GradView>& gradients) {
  StreamHandle stream = 0;
  bool joins = false, waits = false;
  {
    const std::lock_guard lock(mutex_);
    joins = piece.velocity.size > 0 || (piece.residual.size > 0 && owes_[piece.number]);
    waits = waits_[piece.number];
    stream = stream_;
  }
  if (!joins) {
    if (waits && piece.decay != 1) kernels_.Decay(piece.residual, piece.decay, stream);
    return;
  }
  Joined joined{piece, {}};
  auto& rests = rests_[piece.number];
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const GradView& gradient = gradients[i];
    if (i == rests.size()) rests.push_back(kernels_.NewRest());
    kernels_.Join(PartOf(piece, offset, gradient.numel), gradient, stream, rests[i].get());
    joined.numels.push_back(gradient.numel);
    offset += gradient.numel;
  }
  const std::lock_guard lock(mutex_);
  joined_.push_back(std::move(joined));
}

void Passage::Refuse() {
  const std::lock_guard lock(mutex_);
  for (const Joined& one : joined_) {
    if (one.piece.decay != 1) kernels_.Decay(one.piece.residual, one.piece.decay, stream_);
  }
  joined_.clear();
  refused_ = true;
}

bool Passage::Settle() {
  const std::lock_guard lock(mutex_);
  if (refused_) return false;
  for (const Joined& one : joined_) {
    const Span<float> residual = one.piece.residual;
    if (one.piece.velocity.size > 0) kernels_.Copy(one.piece.next, one.piece.velocity, stream_);
    if (residual.size == 0) continue;
    bool waits = false;
    std::int64_t offset = 0;
    for (std::size_t i = 0; i < one.numels.size(); ++i) {
      const Span<float> part = residual.Sub(offset, one.numels[i]);
      waits = kernels_.PutRest(*rests_[one.piece.number][i], part, stream_) || waits;
      offset += one.numels[i];
    }
    owes_[one.piece.number] = false;
    waits_[one.piece.number] = waits;
  }
  joined_.clear();
  owed_anywhere_ = false;
  return true;
}

}  // namespace hvd_sparse
