/// Whole steps of an exchange with gradients on a GPU: applied values and residuals have the bits
/// of the same steps on the CPU.

#include <string>
#include <vector>

#include "tests/csrc/cuda/exchange_steps.h"

namespace hvd_sparse {
namespace {

constexpr int kRanks = 3;

template <typename T>
class CudaExchange : public CudaTest {};
TYPED_TEST_SUITE(CudaExchange, GradientTypes);

/// Covers every sparsifier with one collective, and the reverse: between the two, blocks lie on the
/// CPU.
TYPED_TEST(CudaExchange, StepsHaveTheBitsOfTheCpu) {
  for (const std::string& sparsifier : SparsifierNames()) {
    for (const std::string& collective : CollectiveNames()) {
      if (sparsifier != "gaussian" && collective != "gtopk") continue;
      for (const WireFormat wire : {WireFormat{}, WireFormat{true, Values::kBFloat16}}) {
        SCOPED_TRACE(sparsifier + ", " + collective);
        const auto of_cpu = RunRanks<TypeParam>(kRanks, SpecOf({}, sparsifier, collective, wire));
        const auto of_gpu = RunRanks<TypeParam>(kRanks, SpecOf(kGpu, sparsifier, collective, wire));
        ExpectSameBits(of_cpu, of_gpu);
      }
    }
  }
}

}  // namespace
}  // namespace hvd_sparse
