/// The work of a dense sum on a GPU matches that of the CPU to the last bit.

#include "csrc/wire/dense_work.h"

#include <algorithm>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "csrc/kernels/half.h"
#include "tests/csrc/coded.h"
#include "tests/csrc/cuda/device_array.h"
#include "tests/csrc/entries.h"

namespace hvd_sparse {
namespace {

/// Memory of the CPU, with the interface of DeviceArray.
template <typename T>
class HostArray {
 public:
  explicit HostArray(std::vector<T> values) : values_(std::move(values)) {}
  T* data() { return values_.data(); }
  Span<T> span() { return values_; }
  std::vector<T> Values() { return values_; }

 private:
  std::vector<T> values_;
};

template <typename T>
Bytes RawBytes(const std::vector<T>& values) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(values.data());
  return {bytes, bytes + values.size() * sizeof(T)};
}

/// A bucket, cut into pieces.
template <typename T>
struct Job {
  DenseFormat format;
  std::vector<std::int64_t> lengths;
  std::vector<T> gradient;
  std::vector<float> residual, sums;
};

/// Draws a bucket with pieces of these lengths, of every kind of values; some are not finite.
template <typename T>
Job<T> Drawn(DenseFormat format, const std::vector<std::int64_t>& lengths) {
  Job<T> job{format, {}, {}, {}, {}};
  std::mt19937 random(7);
  std::normal_distribution<float> gaussian;
  for (const std::int64_t length : lengths) {
    for (const std::vector<float>& values : ValuesOfLength(length)) {
      job.lengths.push_back(length);
      for (const float value : values) {
        job.gradient.push_back(Narrow<T>(random() % 999 == 0 ? kInf : value));
        job.residual.push_back(random() % 2 == 0 ? gaussian(random) : 0.0f);
        job.sums.push_back(random() % 999 == 0 ? kMax : value);
      }
    }
  }
  return job;
}

/// The results of a step and of undoing it, as bytes.
struct Outcome {
  std::int64_t not_finite = 0, overflows = 0;
  Bytes codes, own, taken, gradient, written, put_back;
  bool operator==(const Outcome& other) const {
    return not_finite == other.not_finite && overflows == other.overflows && codes == other.codes &&
           own == other.own && taken == other.taken && gradient == other.gradient &&
           written == other.written && put_back == other.put_back;
  }
};

/// Takes a bucket, of which every third piece stays as it is; keeps errors there, and writes sums.
template <template <typename> class Array, typename T>
Outcome RunOn(DenseWork& work, const Job<T>& job) {
  Outcome outcome;
  Array<T> gradient(job.gradient);
  Array<float> residual(job.residual);
  DenseRoom room{job.format.values, static_cast<std::int64_t>(job.residual.size())};
  std::vector<DensePiece> pieces;
  std::vector<std::int64_t> places;
  std::int64_t begin = 0;
  for (const std::int64_t length : job.lengths) {
    const bool odd = pieces.size() % 2 == 1, is_own = pieces.size() % 3 == 2;
    const GradView view{gradient.data() + begin, length, kDTypeOf<T>};
    pieces.push_back(
        {{view, odd ? 0.9f : 1.0f, odd ? 0.3f : 1.0f, residual.span().Sub(begin, length)}, begin});
    places.push_back(is_own ? room.own_numel : room.code_bytes);
    (is_own ? room.own_numel : room.code_bytes) +=
        is_own ? length : MostCodeBytes(job.format.values, length) + 3;
    room.longest_piece = std::max(room.longest_piece, length);
    begin += length;
  }
  room.pieces = static_cast<std::int64_t>(pieces.size());
  work.Prepare(room);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (i % 3 == 2) pieces[i].own = work.own() + places[i];
    if (i % 3 != 2) pieces[i].code = work.codes() + places[i];
  }

  outcome.not_finite = work.Take(job.format, pieces);
  outcome.own = RawBytes(std::vector<float>(work.own(), work.own() + room.own_numel));
  for (const DensePiece& piece : pieces) {
    if (piece.own == nullptr) {
      outcome.codes.insert(outcome.codes.end(), piece.code, piece.code + piece.code_bytes);
    }
  }
  outcome.taken = RawBytes(residual.Values());

  for (const DensePiece& piece : pieces) {
    const Span<float> left = piece.feedback.residual;
    const Span<float> sums = work.Sums(left.size);
    std::copy_n(job.sums.data() + piece.begin, left.size, sums.data);
    if (piece.own != nullptr) {
      work.Keep(sums, left);
      for (float& sum : sums) sum *= 0.5f;
    }
    work.Write({sums, 1.25f, piece.feedback.grad, left, piece.begin, 0.8f});
  }
  outcome.overflows = work.Finish();
  outcome.gradient = RawBytes(gradient.Values());
  outcome.written = RawBytes(residual.Values());
  work.PutBack(job.format, pieces, residual.span());
  outcome.put_back = RawBytes(residual.Values());
  return outcome;
}

template <typename T>
void ExpectTheBitsOfTheCpu(const Job<T>& job) {
  const std::unique_ptr<DenseWork> gpu = DenseWorkFor(kGpu), cpu = NewCpuDenseWork();
  const Outcome expected = RunOn<HostArray>(*cpu, job);
  EXPECT_TRUE(RunOn<DeviceArray>(*gpu, job) == expected) << NameOf(job.format.values);
  EXPECT_TRUE(RunOn<DeviceArray>(*gpu, job) == expected) << "the next step";
  EXPECT_GT(expected.not_finite, 0);
  EXPECT_GT(expected.overflows, 0);
}

using DenseWorkOnDevice = CudaTest;

TEST_F(DenseWorkOnDevice, CodesHaveTheBitsOfTheCpu) {
  std::vector<std::int64_t> lengths;
  for (const std::int64_t length : Lengths()) {
    const bool is_near = length <= 66 || (126 <= length && length <= 129);
    if (0 < length && length < 6000 && (is_near || length > 300)) lengths.push_back(length);
  }
  for (const DenseFormat format : kFormats) ExpectTheBitsOfTheCpu(Drawn<float>(format, lengths));
}

TEST_F(DenseWorkOnDevice, GradientsOfAllTypesHaveTheBitsOfTheCpu) {
  const std::vector<std::int64_t> lengths = {1, 63, 319, 321, 5121};
  for (const DenseFormat format : kFormats) {
    ExpectTheBitsOfTheCpu(Drawn<double>(format, lengths));
    ExpectTheBitsOfTheCpu(Drawn<Float16>(format, lengths));
    ExpectTheBitsOfTheCpu(Drawn<BFloat16>(format, lengths));
  }
}

TEST_F(DenseWorkOnDevice, PiecesOfSeveralTilesHaveTheBitsOfTheCpu) {
  for (const DenseFormat format : kFormats) {
    ExpectTheBitsOfTheCpu(Drawn<float>(format, {2 * 5120 + 63}));
  }
}

TEST_F(DenseWorkOnDevice, AnEmptyBucketTakesNothing) {
  const std::unique_ptr<DenseWork> gpu = DenseWorkFor(kGpu);
  gpu->Prepare({});
  EXPECT_EQ(gpu->Take({Values::kInt8}, Span<DensePiece>()), 0);
  EXPECT_EQ(gpu->Finish(), 0);
  gpu->PutBack({Values::kInt8}, {}, {});
}

}  // namespace
}  // namespace hvd_sparse
