/// Random mutations of an input, biased towards those that break the reading of messages.

#ifndef HVD_SPARSE_TESTS_CSRC_FUZZ_MUTATION_H_
#define HVD_SPARSE_TESTS_CSRC_FUZZ_MUTATION_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "tests/csrc/fuzz/target.h"

namespace hvd_sparse::fuzz {

class Mutator {
 public:
  explicit Mutator(std::uint32_t seed) : random_(seed) {}

  /// Returns one of the inputs, changed in one place or a few.
  Bytes Next(const std::vector<Bytes>& corpus) {
    Bytes input = Any(corpus);
    for (std::size_t changes = std::size_t{1} << Below(4); changes > 0; --changes) {
      Change(&input, corpus);
    }
    return input;
  }

 private:
  std::size_t Below(std::size_t end) { return random_() % end; }
  const Bytes& Any(const std::vector<Bytes>& corpus) { return corpus[Below(corpus.size())]; }

  /// Returns a place in the input; half of them lie near the beginning, where headers are.
  std::size_t Place(const Bytes& input) {
    const std::size_t end = Below(2) == 0 ? std::min<std::size_t>(64, input.size()) : input.size();
    return Below(end);
  }

  void Change(Bytes* input, const std::vector<Bytes>& corpus) {
    if (input->empty()) return input->push_back(static_cast<std::uint8_t>(random_()));
    const std::size_t at = Place(*input);
    const auto here = input->begin() + static_cast<std::ptrdiff_t>(at);
    const std::size_t length = 1 + Below(std::min<std::size_t>(64, input->size() - at));
    const auto there = here + static_cast<std::ptrdiff_t>(length);
    switch (Below(9)) {
      case 0:
        *here ^= static_cast<std::uint8_t>(1u << Below(8));
        return;
      case 1:
        *here = static_cast<std::uint8_t>(random_());
        return;
      case 2:
      case 3:
        return ChangeNumber(input, at / 4 * 4);
      case 4:
        input->resize(at);
        return;
      case 5:
        input->erase(here, there);
        return;
      case 6: {
        const Bytes copy(here, there);
        input->insert(here, copy.begin(), copy.end());
        return;
      }
      case 7:
        std::generate(here, there, [this] { return static_cast<std::uint8_t>(random_()); });
        return;
      default: {
        const Bytes& other = Any(corpus);
        const std::size_t from = std::min(at, other.size());
        input->resize(at);
        input->insert(input->end(), other.begin() + static_cast<std::ptrdiff_t>(from), other.end());
      }
    }
  }

  /// Changes a count, position or length: to a limit of its type, or by a little.
  void ChangeNumber(Bytes* input, std::size_t at) {
    static constexpr std::array<std::uint32_t, 8> kBorders = {
        0, 1, 0xffffffffu, 0x7fffffffu, 0x80000000u, 0x7f800000u, 0x7fc00000u, 0xffffu};
    std::uint32_t number = 0;
    const std::size_t size = std::min(sizeof(number), input->size() - at);
    std::memcpy(&number, input->data() + at, size);
    number = Below(2) == 0 ? kBorders[Below(kBorders.size())]
                           : number + static_cast<std::uint32_t>(Below(33)) - 16;
    std::memcpy(input->data() + at, &number, size);
  }

  std::mt19937 random_;
};

}  // namespace hvd_sparse::fuzz

#endif  // HVD_SPARSE_TESTS_CSRC_FUZZ_MUTATION_H_
