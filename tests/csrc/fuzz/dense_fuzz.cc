/// The code of a dense message, of any type: it is refused, or gives finite values that can be
/// coded again.

#include <algorithm>
#include <cmath>

#include "csrc/wire/value_coding.h"
#include "tests/csrc/fuzz/target.h"

namespace hvd_sparse::fuzz {
namespace {

constexpr std::int64_t kMostValues = 6000;
constexpr Values kTypes[] = {Values::kFloat32, Values::kFloat16, Values::kBFloat16,
                             Values::kInt8,    Values::kInt4,    Values::kTernary};

/// Returns values of which about one in `sparse` is not small.
std::vector<float> Regular(std::int64_t count, std::int64_t sparse) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    const float size = i % sparse == 0 ? 1.0f : 0.001f;
    values[static_cast<std::size_t>(i)] = size * (static_cast<float>(i % 100) - 50.5f);
  }
  return values;
}

Bytes CodeOf(DenseFormat format, std::vector<float>* values) {
  const auto count = static_cast<std::int64_t>(values->size());
  Bytes code(static_cast<std::size_t>(MostCodeBytes(format.values, count)));
  std::int64_t not_carried = 0;
  code.resize(static_cast<std::size_t>(TakeCoded(format, *values, code.data(), &not_carried)));
  return code;
}

}  // namespace

std::vector<Bytes> Seeds() {
  std::vector<Bytes> seeds;
  for (std::uint8_t type = 0; type < std::size(kTypes); ++type) {
    for (const std::int64_t count : {0, 1, 100, 320, 5500}) {
      for (const std::int64_t sparse : {1, 90}) {
        std::vector<float> values = Regular(count, sparse);
        const Bytes code = CodeOf({kTypes[type], 1.5f}, &values);
        Writer writer;
        writer.Put(type).PutBetween(0, count);
        seeds.push_back(writer.PutBytes(code.data(), code.size()).bytes());
      }
    }
  }
  return seeds;
}

}  // namespace hvd_sparse::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace hvd_sparse;
  using namespace hvd_sparse::fuzz;
  Reader reader(data, size);
  const Values type = kTypes[reader.Take<std::uint8_t>() % std::size(kTypes)];
  const std::int64_t count = reader.Between(0, kMostValues);
  const Bytes code = reader.TakeRest();
  std::vector<float> values(static_cast<std::size_t>(count), NAN);
  std::vector<float> sum(static_cast<std::size_t>(count), 1.0f);
  std::int64_t bytes = -1, added = -1;
  try {
    bytes = DecodeInto(type, code, values);
  } catch (const Error& error) {
    DemandEnd(error);
  }
  try {
    added = AddDecoded(type, code, sum);
  } catch (const Error& error) {
    DemandEnd(error);
  }
  Demand(bytes == added, "what can be decoded can be added");
  if (bytes < 0) return 0;
  Demand(bytes <= static_cast<std::int64_t>(code.size()), "a code lies in its bytes");
  for (std::size_t i = 0; i < values.size(); ++i) {
    Demand(std::isfinite(values[i]), "values are finite");
    Demand(sum[i] == 1.0f + values[i], "what is added is what is decoded");
  }
  std::vector<float> errors = values, again = values;
  const Bytes coded = CodeOf({type}, &errors);
  Demand(DecodeInto(type, coded, again) == static_cast<std::int64_t>(coded.size()),
         "what was decoded can be coded");
  for (std::size_t i = 0; i < values.size(); ++i) {
    Demand(errors[i] == 0 && again[i] == values[i], "what was decoded has no errors");
  }
  return 0;
}
