/// All messages that a rank receives in two steps of a bucket, with every collective: whatever they
/// hold, the step completes, or is refused with the name of the bucket. An undone step leaves the
/// residual bit for bit, which never holds NaN or Inf.

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <thread>

#include "csrc/comm/loopback_communicator.h"
#include "csrc/exchange/bucket.h"
#include "csrc/kernels/half.h"
#include "tests/csrc/fuzz/target.h"

namespace hvd_sparse::fuzz {
namespace {

constexpr Values kTypes[] = {Values::kFloat32, Values::kFloat16, Values::kBFloat16};
constexpr Values kDenseTypes[] = {Values::kInt8, Values::kInt4, Values::kTernary};
constexpr std::int64_t kMostNumel = 400;
constexpr int kMostNodes = 4, kSteps = 2;
const char* const kEndOfScript = "nothing more is sent";

/// The sparse collectives, and the dense one.
std::vector<std::string> EveryCollective() {
  std::vector<std::string> names;
  for (const Collective& one : AllCollectives()) names.push_back(one.name);
  return names;
}

/// Parameters at the beginning of an input.
struct Setup {
  std::string collective;
  int local_size = 1, size = 1, rank = 0;
  WireFormat wire;
  std::int64_t numel = 0, k = 1;
  double slack = 1;

  static Setup Read(Reader* reader) {
    Setup setup;
    const std::vector<std::string> names = EveryCollective();
    setup.collective = names[reader->Take<std::uint8_t>() % names.size()];
    setup.local_size = static_cast<int>(reader->Between(1, 2));
    setup.size = setup.local_size * static_cast<int>(reader->Between(1, kMostNodes));
    if (const AggregationRule* const rule = FindCollective(setup.collective).rule) {
      setup.local_size = 1;  // it sums no nodes first
      setup.size = std::max(setup.size, static_cast<int>(rule->LeastRanks(1)));
    }
    setup.rank = static_cast<int>(reader->Between(0, setup.size - 1));
    const auto choice = reader->Take<std::uint8_t>();
    setup.wire = {choice % 2 == 1, kTypes[choice / 2 % 3]};
    setup.slack = 1 + choice / 6 % 2;
    if (!setup.IsSparse() && setup.slack > 1) setup.wire.values = kDenseTypes[choice / 2 % 3];
    if (setup.collective == "allgather" && setup.slack > 1) setup.wire.values = Values::kBinary;
    setup.numel = reader->Between(0, kMostNumel);
    setup.k = setup.numel == 0 ? 1 : reader->Between(1, setup.numel);
    return setup;
  }

  bool IsSparse() const { return FindCollective(collective).IsSparse(); }

  NodePlace Place() const {
    return {rank % local_size, local_size, rank / local_size, size / local_size};
  }

  BucketSpec Spec() const {
    const std::int64_t first = numel - numel / 3;
    const char* const sparsifier = wire.values == Values::kBinary ? "one_sign" : "top_k";
    return {"fc", {first, numel - first}, {numel}, {k}, sparsifier, {}, collective, {slack}, wire};
  }
};

/// One rank's bucket and its memory: small integers, whose sums are exact in any order.
class RankOfBucket {
 public:
  explicit RankOfBucket(const Setup& setup)
      : setup_(setup),
        bucket_(3, setup.Spec(), setup.Place()),
        residual_(static_cast<std::size_t>(setup.numel)),
        wide_(static_cast<std::size_t>(setup.Spec().gradient_numels[0])),
        narrow_(static_cast<std::size_t>(setup.Spec().gradient_numels[1])) {}

  /// Runs a step; returns true if it was accepted.
  bool Step(int step, Communicator* comm) {
    const auto number = [&](std::size_t i) {
      const std::size_t mixed = (i + 1) * 2654435761u + 97u * setup_.rank + 31u * step;
      return static_cast<float>(mixed % 61) - 30.0f;
    };
    std::vector<float> accumulated(residual_);
    for (std::size_t i = 0; i < residual_.size(); ++i) {
      const float sum = accumulated[i] + number(i);
      if (std::isfinite(sum)) accumulated[i] = sum;  // as error feedback does
      if (i < wide_.size()) {
        wide_[i] = number(i);
      } else {
        narrow_[i - wide_.size()] = Narrow<Float16>(number(i));
      }
    }
    Launch launch;
    launch.gradients = {
        {wide_.data(), static_cast<std::int64_t>(wide_.size()), DType::kFloat32},
        {narrow_.data(), static_cast<std::int64_t>(narrow_.size()), DType::kFloat16}};
    launch.residual = residual_;
    launch.states = {&state_, 1};
    launch.ks = {setup_.k};
    launch.decays = {1, 1};
    const Kernels& kernels = CpuKernels();
    bucket_.Select(std::move(launch), setup_.rank, kernels);
    bool arrived = false;
    try {
      bucket_.step().Reduce(*comm, kernels, nullptr);
      arrived = true;
    } catch (const Error& error) {
      CheckError(error);
    }
    if (arrived && bucket_.verdict().IsFinite() && bucket_.overflows() == 0) {
      bucket_.step().Commit();
      const auto finite = [](float value) { return std::isfinite(value); };
      Demand(std::all_of(residual_.begin(), residual_.end(), finite), "residuals stay finite");
      return true;
    }
    bucket_.step().PutBack(kernels);
    Demand(SameBits(accumulated), "a step that is undone leaves the residual bit for bit");
    return arrived;
  }

 private:
  static void CheckError(const Error& error) {
    const std::string text = error.what();
    if (text == kEndOfScript) return;
    DemandEnd(error);
    Demand(text.find("bucket 'fc'") != std::string::npos, "an error names the bucket");
    Demand(text.find("rank ") != std::string::npos || text.find("all owners") != std::string::npos,
           "an error names the rank");
  }

  /// Compares bits, ignoring signs of zeros: entries taken leave +0, and integer sums have no sign.
  bool SameBits(const std::vector<float>& expected) const {
    return std::equal(expected.begin(), expected.end(), residual_.begin());
  }

  const Setup setup_;
  Bucket bucket_;
  std::vector<float> residual_, wide_;
  std::vector<Float16> narrow_;
  SelectionState state_;
};

/// Peers that send the bytes of the input: for each message its length, then its bytes.
class ScriptedPeers final : public Communicator {
 public:
  ScriptedPeers(const Setup& setup, Reader* script) : setup_(setup), script_(*script) {}

  int Rank() const override { return setup_.rank; }
  int Size() const override { return setup_.size; }
  void Fail(ErrorKind, const std::string&) override {}
  void Check() override {}

  void Transfer(Span<const Outgoing> out, Span<Incoming> in, const std::string& what) override {
    for (const Outgoing& message : out) {  // lets sanitizers check the memory read
      const auto* data = static_cast<const volatile std::uint8_t*>(message.data);
      for (std::int64_t i = 0; i < message.bytes; ++i) static_cast<void>(data[i]);
    }
    for (Incoming& message : in) {
      if (script_.left() == 0) Throw(ErrorKind::kPeerLost, kEndOfScript);
      const Bytes bytes = script_.TakeBytes(script_.Take<std::uint32_t>());
      if (static_cast<std::int64_t>(bytes.size()) > message.capacity) {  // as communicators do
        Throw(ErrorKind::kExchangeFailed, "rank ", message.peer, " sent ", bytes.size(), " bytes, ",
              what);
      }
      if (!bytes.empty()) std::memcpy(message.data, bytes.data(), bytes.size());
      message.bytes = static_cast<std::int64_t>(bytes.size());
    }
  }

 private:
  const Setup& setup_;
  Reader& script_;
};

/// A communicator that records all messages that a rank receives.
class Recorder final : public Communicator {
 public:
  Recorder(std::shared_ptr<LoopbackWorld> world, int rank) : comm_(std::move(world), rank) {}

  int Rank() const override { return comm_.Rank(); }
  int Size() const override { return comm_.Size(); }
  void Fail(ErrorKind kind, const std::string& reason) override { comm_.Fail(kind, reason); }
  void Check() override { comm_.Check(); }

  void Transfer(Span<const Outgoing> out, Span<Incoming> in, const std::string& what) override {
    comm_.Transfer(out, in, what);
    for (const Incoming& message : in) {
      script_.Put(static_cast<std::uint32_t>(message.bytes));
      script_.PutBytes(message.data, static_cast<std::size_t>(message.bytes));
    }
  }

  const Bytes& script() const { return script_.bytes(); }

 private:
  LoopbackCommunicator comm_;
  Writer script_;
};

/// Appends the inputs of all ranks of a real exchange.
void Record(const Bytes& begin, std::vector<Bytes>* seeds) {
  Reader parameters(begin.data(), begin.size());
  const int size = Setup::Read(&parameters).size;
  const auto world = std::make_shared<LoopbackWorld>(size);
  std::vector<Bytes> inputs(static_cast<std::size_t>(size));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back([&, rank] {
      Bytes& input = inputs[static_cast<std::size_t>(rank)];
      input = begin;
      input[5] = static_cast<std::uint8_t>(rank);
      Reader reader(input.data(), input.size());
      const Setup setup = Setup::Read(&reader);
      Recorder comm(world, rank);
      RankOfBucket bucket(setup);
      for (int step = 0; step < kSteps; ++step) {
        Demand(bucket.Step(step, &comm), "a step between honest ranks is taken");
      }
      input.insert(input.end(), comm.script().begin(), comm.script().end());
    });
  }
  for (std::thread& rank : ranks) rank.join();
  seeds->insert(seeds->end(), inputs.begin(), inputs.end());
}

}  // namespace

std::vector<Bytes> Seeds() {
  std::vector<Bytes> seeds;
  const std::size_t collectives = EveryCollective().size();
  for (std::size_t collective = 0; collective < collectives; ++collective) {
    for (const int nodes : {2, 3, 4}) {
      for (const int local_size : {1, 2}) {
        for (const std::uint8_t choice : {0, 1, 5, 6, 7, 8, 10}) {
          for (const std::int64_t k : {9, 150}) {
            Writer writer;
            writer.Put(static_cast<std::uint8_t>(collective)).PutBetween(1, local_size);
            writer.PutBetween(1, nodes).PutBetween(0, 0).Put(choice);
            writer.PutBetween(0, 300).PutBetween(1, k);
            Record(writer.bytes(), &seeds);
          }
        }
      }
    }
  }
  return seeds;
}

}  // namespace hvd_sparse::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace hvd_sparse::fuzz;
  Reader reader(data, size);
  const Setup setup = Setup::Read(&reader);
  ScriptedPeers peers(setup, &reader);
  RankOfBucket bucket(setup);
  for (int step = 0; step < kSteps; ++step) {
    if (!bucket.Step(step, &peers)) break;
  }
  return 0;
}
