/// The options of collectives, which a bucket's description carries. An option belongs to the
/// collective that reads it; the others ignore it.

#pragma once

#include <map>
#include <string>

namespace hvd_sparse {

/// Equal on every rank. To add an option: a member here, and a line of the table in the .cc file.
struct CollectiveOptions {
  double slack = 1;  ///< gtopk keeps slack * k entries in the rounds before the last; at least 1
  double sums = 12;  ///< shard_topk sends on the sums * k largest sums of all; at least 1
  double bad_ranks = 1;  ///< that a rule bears, see aggregation_rule.h; below 2^20
  double scale = 1;      ///< of ternary values, in [1, 2): larger ones send more zeros

  /// Converts options by name. Throws InvalidArgument if there is none of a name.
  static CollectiveOptions From(const std::map<std::string, double>& by_name);

  /// Throws InvalidArgument if an option lies outside its limits; `owner` names the bucket.
  void Check(const std::string& owner) const;

  /// Returns all options with their values, as ranks compare them.
  std::string Describe() const;

  bool operator==(const CollectiveOptions& other) const;
};

}  // namespace hvd_sparse
