/// A message of a block, in any format: it is refused with the names of rank and bucket, or gives a
/// valid block that all operations on blocks accept.

#include <algorithm>
#include <cmath>
#include <string>

#include "csrc/collectives/sparse_allreduce.h"
#include "csrc/comm/loopback_communicator.h"
#include "csrc/wire/value_coding.h"
#include "tests/csrc/fuzz/target.h"

namespace hvd_sparse::fuzz {
namespace {

constexpr std::int64_t kMostRoom = 600, kMostNumel = 20000;
constexpr Values kTypes[] = {Values::kFloat32, Values::kFloat16, Values::kBFloat16,
                             Values::kInt8,    Values::kInt4,    Values::kBinary};

WireFormat FormatOf(std::uint8_t choice) {
  return {choice % 2 == 1, kTypes[choice / 2 % std::size(kTypes)]};
}

/// Sets the header that all messages have.
void Identify(SparseBlock* block, WireFormat format) {
  block->header().bucket = 3;
  block->header().step = 5;
  block->header().asked = 7;
  block->header().format = format.Id();
}

/// Returns a block of every `stride`-th position of a bucket.
SparseBlock Regular(std::int64_t numel, Index stride, WireFormat format) {
  SparseBlock block;
  const std::int64_t count = std::min(kMostRoom, (numel + stride - 1) / stride);
  block.Reset(count);
  for (std::int64_t i = 0; i < count; ++i) {
    block.indices()[i] = Marked(static_cast<Index>(i) * stride, i % 3 == 0);
    const float value = static_cast<float>(i % 100) - 50.5f;
    block.values()[i] = format.values == Values::kBinary ? std::fabs(value) : value;
  }
  block.Finish(count);
  Identify(&block, format);
  return block;
}

Bytes MessageOf(const SparseBlock& block, WireFormat format, Content content) {
  if (format.IsPlain()) return {block.message(), block.message() + block.message_bytes()};
  Bytes message(static_cast<std::size_t>(block.message_bytes()));
  message.resize(static_cast<std::size_t>(EncodeBlock(block, format, content, message.data())));
  return message;
}

void CheckValid(const SparseBlock& block, std::int64_t room, std::int64_t numel) {
  Demand(0 <= block.count() && block.count() <= room, "a block holds what fits");
  for (std::int64_t i = 0; i < block.count(); ++i) {
    const Index position = Position(block.indices()[i]);
    const Index before = i == 0 ? -1 : Position(block.indices()[i - 1]);
    Demand(before < position && position < numel, "positions ascend within the bucket");
    Demand(!block.header().verdict.IsFinite() || std::isfinite(block.values()[i]),
           "values are finite, or the verdict is not");
  }
}

/// Runs all operations of a rank on a received block.
void Use(const SparseBlock& theirs, std::int64_t numel, const Kernels& kernels) {
  SparseBlock own = Regular(numel, 7, {}), merged;
  const SparseBlock selected = Regular(numel, 7, {});
  kernels.Merge(own, theirs, &merged);
  const std::int64_t kept = kernels.KeepTopK(50, 0, merged.count(), &merged);
  merged.Finish(kept);
  std::vector<float> residual(static_cast<std::size_t>(numel)), gradient(residual);
  std::vector<std::pair<Index, float>> undo;
  kernels.Settle(selected, theirs, residual);
  kernels.Scatter(merged, 0.5f, 0, {gradient.data(), numel, DType::kFloat32}, residual, &undo);
}

/// Writes the block, reads it back, and compares.
void CheckReadsBack(const SparseBlock& block, std::int64_t numel, WireFormat format) {
  if (format.IsPlain()) return;
  SparseBlock again;
  again.Reset(block.count());
  const Bytes message = MessageOf(block, {format.packed, Values::kFloat32}, Content::kVerbatim);
  DecodeBlock(message.data(), static_cast<std::int64_t>(message.size()), numel, &again);
  Demand(again.count() == block.count() &&
             std::memcmp(again.indices(), block.indices(), 4 * block.count()) == 0,
         "what was read can be sent on");
}

}  // namespace

std::vector<Bytes> Seeds() {
  std::vector<Bytes> seeds;
  for (std::uint8_t choice = 0; choice < 2 * std::size(kTypes); ++choice) {
    for (const std::int64_t numel : {0, 1, 300, 20000}) {
      for (const Content content : {Content::kSums, Content::kVerbatim}) {
        const WireFormat format = FormatOf(choice);
        SparseBlock block = Regular(numel, numel < 1000 ? 2 : 31, format);
        RoundValues(format.values, block.values(), block.count(), nullptr);
        const Bytes message = MessageOf(block, format, content);
        Writer writer;
        writer.Put(choice).PutBetween(0, kMostRoom).PutBetween(0, numel);
        seeds.push_back(writer.PutBytes(message.data(), message.size()).bytes());
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
  const WireFormat format = FormatOf(reader.Take<std::uint8_t>());
  const std::int64_t room = reader.Between(0, kMostRoom), numel = reader.Between(0, kMostNumel);
  const Bytes message = reader.TakeRest();
  const auto bytes = static_cast<std::int64_t>(message.size());

  static const auto world = std::make_shared<LoopbackWorld>(3);
  LoopbackCommunicator comm(world, 0);
  CollectiveScratch scratch;
  CollectiveContext ctx{comm, CpuKernels(), scratch, 7, room, "bucket 'fc'", numel, {}, format};
  SparseBlock own = Regular(0, 1, format), theirs;
  theirs.Reset(room);
  const std::uint8_t* from = message.data();
  if (format.IsPlain() && bytes <= theirs.max_message_bytes()) {  // as if received
    if (bytes > 0) std::memcpy(theirs.message(), from, message.size());
    from = theirs.message();
  }
  try {
    const std::int64_t length = MessageLength(message.data(), bytes);
    Demand(length >= SparseBlock::MessageBytes(0) && length <= bytes,
           "a message lies in its bytes");
  } catch (const Error&) {
  }
  try {
    ctx.Unpack(from, bytes, &own, &theirs, 2);
  } catch (const Error& error) {
    const std::string text = error.what();
    DemandEnd(error);
    Demand(text.find("rank 2") != std::string::npos && text.find("fc") != std::string::npos,
           "an error names rank and bucket");
    return 0;
  }
  CheckValid(theirs, room, numel);
  Use(theirs, numel, CpuKernels());
  CheckReadsBack(theirs, numel, format);
  return 0;
}
