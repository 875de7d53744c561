/// What pieces that travel dense take with them in a step, and what they leave behind.
///
/// A residual goes along with the gradient, since nothing of that is held back: it is gone once the
/// step has ended, but for what the gradient's number type rounds away. That waits until all may
/// owe again: gradients of that type would round it away in each step, and sums would go on to
/// matter. With momentum the velocity goes along, too, and goes on: nothing of it is delayed, so
/// nothing is masked, and what waits joins it. Until the step has ended both stay as they are, for
/// it may be refused.
///
/// On a device all of this is work of the stream that the step comes from.

#ifndef HVD_SPARSE_EXCHANGE_PASSAGE_H_
#define HVD_SPARSE_EXCHANGE_PASSAGE_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "csrc/base/device.h"
#include "csrc/base/types.h"
#include "csrc/kernels/kernels.h"

namespace hvd_sparse {

class Passage {
 public:
  /// A piece on its way. Residual and velocity are as long as all gradients together, or empty.
  struct Piece {
    std::size_t number = 0;
    Span<float> residual, velocity;
    Span<float> next;    ///< as long: memory for what the velocity has to be, until the step ends
    float decay = 1;     ///< of the residual
    float momentum = 0;  ///< of the velocity
    float scale = 1;     ///< of the gradients, where they join a residual or a velocity
  };

  /// `kernels` of where everything lies.
  Passage(std::size_t pieces, const Kernels& kernels)
      : kernels_(kernels), owes_(pieces, true), waits_(pieces, false), rests_(pieces) {}

  /// The residual of any rank may hold something, and shall join; on all ranks alike.
  void LetAllOwe();

  /// Whether that of some rank may and shall; alike on all ranks.
  bool OwedAnywhere() const;

  /// Another step, from that stream.
  void Begin(StreamHandle stream);

  /// gradient += (decay * residual + momentum * velocity) / scale, where they join; a residual that
  /// waits decays. From any thread.
  void Join(const Piece& piece, const std::vector<GradView>& gradients);

  /// Nobody applies the step: what joined stays. Residuals have decayed all the same, as others do.
  void Refuse();

  /// The step has ended. Unless it was refused, residuals of what joined have gone, and velocities
  /// are momentum * velocity + scale * gradient. Returns whether it counts.
  bool Settle();

 private:
  struct Joined {
    Piece piece;
    std::vector<std::int64_t> numels;  // of its gradients
  };

  const Kernels& kernels_;
  mutable std::mutex mutex_;
  StreamHandle stream_ = 0;
  std::vector<bool> owes_;   // by piece: this rank's residual may hold something that joins
  std::vector<bool> waits_;  // by piece: it may hold something that does not
  bool owed_anywhere_ = true;
  bool refused_ = false;  // this step
  std::vector<Joined> joined_;
  std::vector<std::vector<std::unique_ptr<Rest>>> rests_;  // by piece, of each of its gradients
};

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_EXCHANGE_PASSAGE_H_
