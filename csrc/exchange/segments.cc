#include "csrc/exchange/segments.h"

#include <algorithm>

namespace hvd_sparse {

Segments::Segments(const std::vector<std::int64_t>& numels, const std::vector<std::int64_t>& max_ks,
                   Range range, const Sparsifier& sparsifier, Range spared) {
  std::int64_t begin = 0;
  for (std::size_t s = 0; s < numels.size(); begin += numels[s++]) {
    const Range common = Overlap({begin, begin + numels[s]}, range);
    const Range without = Overlap(common, spared);
    const bool is_cut = without.size() > 0;
    const Range before{common.begin, is_cut ? without.begin : common.end};
    const Range after{is_cut ? without.end : common.end, common.end};
    for (const Range part : {before, without, after}) {
      if (part.size() == 0) continue;
      const bool is_spared = is_cut && part.begin == without.begin;
      parts_.push_back({s,
                        {part.begin - begin, part.end - begin},
                        part.begin - range.begin,
                        numels[s],
                        is_spared});
      if (is_spared) continue;
      const std::int64_t k = parts_.back().Share(max_ks[s]);
      room_ = std::max(room_, capacity_ + sparsifier.Room(k, part.size()));
      capacity_ += sparsifier.Capacity(k, part.size());
    }
  }
}

std::int64_t Segments::Asked(const std::vector<std::int64_t>& ks) const {
  std::int64_t asked = 0;
  for (const Part& part : parts_) asked += part.Share(ks[part.segment]);
  return asked;
}

std::int64_t Segments::Select(const Sparsifier& sparsifier, const GradientsOf& gradients_of,
                              const std::vector<std::int64_t>& ks, Span<SelectionState> states,
                              Span<float> residual, const Kernels& kernels,
                              SparseBlock* out) const {
  out->Reset(room_);
  const auto residual_of = [&](const Part& part) { return residual.Sub(part.begin, part.numel()); };
  const auto feedback_of = [&](const Part& part) {
    return gradients_of ? gradients_of(part.segment, part.in_segment, residual_of(part))
                        : Span<const Feedback>();
  };
  std::int64_t filled = 0, not_finite = 0;
  for (auto part = parts_.begin(); part != parts_.end(); ++part) {
    if (part->is_spared) {
      for (const Feedback& one : feedback_of(*part)) not_finite += kernels.Accumulate(one);
      continue;
    }
    const std::int64_t k = part->Share(ks[part->segment]);
    Selection selection(feedback_of(*part), residual_of(*part), static_cast<Index>(part->begin),
                        filled, sparsifier.Room(k, part->numel()), kernels, out);
    try {
      sparsifier.Select(k, &states[static_cast<std::int64_t>(part->segment)], &selection);
      selection.Finish();
    } catch (...) {  // out of memory
      selection.PutBack();
      kernels.PutBack(*out, 0, filled, residual);
      selection.Dense();
      while (++part != parts_.end()) {
        for (const Feedback& one : feedback_of(*part)) kernels.Accumulate(one);
      }
      throw;
    }
    filled += selection.taken();
    not_finite += selection.not_finite();
  }
  out->Finish(filled);
  return not_finite;
}

}  // namespace hvd_sparse
