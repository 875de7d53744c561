/// The description of a bucket and the inputs of its steps, with checks that they fit together. All
/// that runs a step takes these two, on the CPU and on a GPU.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "csrc/base/types.h"
#include "csrc/collectives/robust_average.h"
#include "csrc/collectives/sparse_allreduce.h"
#include "csrc/sparsifiers/sparsifier.h"
#include "csrc/wire/wire_format.h"

namespace hvd_sparse {

/// The constants of a bucket; equal on every rank.
struct BucketSpec {
  std::string name;                           ///< for errors and statistics
  std::vector<std::int64_t> gradient_numels;  ///< in the order of the residual
  std::vector<std::int64_t> segment_numels;   ///< units of selection; the same total
  std::vector<std::int64_t> max_ks;           ///< largest k of every segment, bounds the memory
  std::string sparsifier;
  SparsifierOptions sparsifier_options;
  std::string collective;
  CollectiveOptions collective_options = {};
  WireFormat wire = {};
  Device device = {};  ///< of the gradients and the residual
  /// The ranks of a node add up their residuals first; each then has a shard of the node's sum, and
  /// exchanges what it selects there with the owners of that shard, one on each node. A dense sum
  /// does so by itself. See csrc/exchange/node_step.h and dense_node_step.h.
  bool nodes_first = false;
  /// Its blocks go from device to device, if its collective can and devices are connected.
  bool by_devices = true;

  std::int64_t Numel() const;
  std::int64_t MaxAsked() const;  ///< the sum of max_ks over segments that are not empty
};

/// The inputs of a bucket's step. The memory must outlive the step.
struct Launch {
  std::vector<GradView> gradients;  ///< read now, written with the result
  Span<float> residual;             ///< of the whole bucket
  Span<float> velocity = {};        ///< as long, with momentum correction; else empty
  Span<SelectionState> states;      ///< one per segment, from step to step; zeros at first
  std::vector<std::int64_t> ks;     ///< one per segment, the same on every rank
  std::vector<float> decays;        ///< of the residual, one per gradient
  float scale = 1;                  ///< of the gradient, when it is added to the residual
  float output_scale = 1;           ///< of the sum, when it becomes the gradient
  float momentum = 0;               ///< of the velocity, in [0, 1)
  StreamHandle stream = 0;          ///< of a device: the work that writes the gradients is on it
  double ready = 0;                 ///< when the last gradient came, SteadySeconds; 0: now
  bool masks_velocity = true;       ///< the velocity of delivered entries becomes 0
  float loss_scale = 1;             ///< the part of output_scale that is the gradients' loss scale

  /// Returns the velocity of which delivered entries become 0; an empty one if none does.
  Span<float> MaskedVelocity() const { return masks_velocity ? velocity : Span<float>(); }
};

/// Returns true if nodes are summed first among `size` ranks with `local_size` on each node, by a
/// dense sum only if there are several nodes of several ranks. A rule never does: the sum of a node
/// would hide its bad ranks.
bool SumsNodes(const std::string& collective, bool nodes_first, int size, int local_size);

/// Returns the rule by which a dense bucket is averaged, if there is one.
Aggregation AggregationOf(const BucketSpec& spec);

/// Throws InvalidArgument if a rule needs more ranks. A rank alone needs no rule.
void CheckRanks(const BucketSpec& spec, int size);

/// Throws InvalidArgument if the numbers do not fit together.
void CheckSpec(const BucketSpec& spec);

/// Throws InvalidArgument unless `views` are the memory of a bucket's gradients; `argument` names
/// them.
void CheckGradients(const BucketSpec& spec, const char* argument,
                    const std::vector<GradView>& views);

/// Throws InvalidArgument if a launch does not fit the bucket.
void CheckLaunch(const BucketSpec& spec, const Launch& launch);

}  // namespace hvd_sparse
