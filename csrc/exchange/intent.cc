#include "csrc/exchange/intent.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/exchange/route_of.h"

namespace hvd_sparse {
namespace {

/// The text of a longer intent is cut; its digest still tells it from others.
constexpr std::size_t kMaxText = 1000;

/// FNV-1a, see http://www.isthe.com/chongo/tech/comp/fnv.
class Digest {
 public:
  void Add(const void* data, std::size_t bytes) {
    const auto* byte = static_cast<const std::uint8_t*>(data);
    for (std::size_t i = 0; i < bytes; ++i) value_ = (value_ ^ byte[i]) * 0x100000001b3u;
  }
  void Add(const std::vector<std::int64_t>& numbers) {
    Add(numbers.data(), numbers.size() * sizeof(numbers[0]));
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325u;
};

const char* NameOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "float32";
    case DType::kFloat64:
      return "float64";
    case DType::kFloat16:
      return "float16";
    case DType::kBFloat16:
      return "bfloat16";
  }
  return "unknown";
}

/// An intent as a message: its digest, and as much of the text as fits.
struct Message {
  static std::vector<char> Of(const std::string& intent) {
    Digest digest;
    digest.Add(intent.data(), intent.size());
    const std::uint64_t value = digest.value();
    std::vector<char> message(sizeof(value) + std::min(intent.size(), kMaxText));
    std::memcpy(message.data(), &value, sizeof(value));
    std::memcpy(message.data() + sizeof(value), intent.data(), message.size() - sizeof(value));
    return message;
  }
  static std::string TextOf(const std::vector<char>& message) {
    if (message.size() < sizeof(std::uint64_t)) return "no description";
    return {message.begin() + sizeof(std::uint64_t), message.end()};
  }
};

}  // namespace

std::string IntentOf(const BucketSpec& spec, int bucket, std::int64_t step, const Launch& launch,
                     const std::string& note) {
  Digest layout;
  layout.Add(spec.gradient_numels);
  layout.Add(spec.segment_numels);
  layout.Add(launch.ks);
  for (const GradView& gradient : launch.gradients) {
    layout.Add(&gradient.dtype, sizeof(gradient.dtype));
  }
  std::int64_t k = 0;
  for (std::size_t s = 0; s < launch.ks.size(); ++s) {
    if (spec.segment_numels[s] > 0) k += launch.ks[s];
  }
  std::ostringstream text;
  text.exceptions(std::ios::badbit);  // without memory it would cut the text
  text << "step " << step << ", bucket " << bucket << " '" << spec.name << "': " << spec.Numel();
  if (!launch.gradients.empty()) text << ' ' << NameOf(launch.gradients[0].dtype);
  text << " entries (layout " << std::hex << layout.value() << std::dec << "), k " << k << ", "
       << spec.collective << (spec.nodes_first ? " of nodes" : "") << " with "
       << spec.collective_options.Describe() << ", " << NameOfFormat(spec.wire.Id());
  const Collective& collective = FindCollective(spec.collective);
  const bool may_connect = RouteOf(collective, spec.wire, spec.by_devices) != Route::kCalls;
  if (may_connect && !spec.device.IsCpu()) text << ", between devices if they can be connected";
  const bool sums_dense = !collective.IsSparse();
  if (sums_dense && !spec.device.IsCpu()) text << ", from a GPU, without sums of nodes";
  if (!note.empty()) text << ", " << note;
  return text.str();
}

void RequireSameIntent(Communicator* comm, const std::string& intent, const std::string& what) {
  const int rank = comm->Rank(), size = comm->Size();
  if (size == 1) return;
  const int before = (rank + size - 1) % size;
  const std::vector<char> own = Message::Of(intent);
  std::vector<char> theirs(sizeof(std::uint64_t) + kMaxText);
  const Outgoing out{(rank + 1) % size, own.data(), static_cast<std::int64_t>(own.size())};
  Incoming in{before, theirs.data(), static_cast<std::int64_t>(theirs.size())};
  comm->Transfer({&out, 1}, {&in, 1}, what);
  theirs.resize(static_cast<std::size_t>(in.bytes));
  if (theirs == own) return;
  Throw(ErrorKind::kDisagreement, "the ranks disagree: rank ", before, " is about to exchange ",
        Message::TextOf(theirs), "; rank ", rank, " ", Message::TextOf(own));
}

}  // namespace hvd_sparse
