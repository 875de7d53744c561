/// One step of a dense sum: its messages, and the work beside them.

#include <algorithm>
#include <cstring>
#include <deque>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/collectives/collectives.h"
#include "csrc/collectives/shard_sum.h"
#include "csrc/kernels/parallel.h"
#include "csrc/wire/value_coding.h"

namespace hvd_sparse {
namespace {

/// "HVSU" in memory order of a little-endian machine.
constexpr std::uint32_t kMagic = 0x55535648u;

}  // namespace

/// One step. This thread moves messages; beside it, one task after the other adds up a chunk of the
/// own shard, or writes a chunk of the others'.
///
/// Transfers begin and end in one order on all ranks: a chunk's sum is sent, and a further chunk
/// goes to the owners, when the first transfer has ended that was waited for while it was added up.
/// So the links always have a transfer that follows.
///
/// Where a rule chooses ranks, chunks of the own shard are compared as they arrive; then the owners
/// exchange distances, and average and send one chunk after the other.
class ShardSum::Step {
 public:
  Step(ShardSum* sum, Span<float> values, const Write& write, BlockHeader* identity,
       CollectiveContext* ctx)
      : sum_(*sum), values_(values), write_(write), identity_(*identity), ctx_(*ctx) {
    identity_.magic = kMagic;
    identity_.values = static_cast<std::uint8_t>(sum_.format_.values);
    if (robust_ != nullptr) robust_->Begin();
    part_bytes_.resize(sum_.parts_.size());
  }

  void Run() {
    if (sum_.size_ == 1) {
      for (int chunk = 0; chunk < sum_.chunks_; ++chunk) AddUp(chunk);
      return;
    }
    for (int chunk = 0; chunk < kSlots; ++chunk) SendParts(chunk);
    for (;;) {
      if (flights_.empty()) Join();  // which may send the last sums
      if (flights_.empty()) break;
      const Flight landed = Land();
      if (!landed.is_last) continue;
      Join();
      Beside(landed.half == Half::kSums ? Work::kWrite : begins_with_, landed.chunk);
    }
    if (sum_.KeepsParts()) {
      ChooseRanks();
      AverageInTurn();
    }
  }

 private:
  enum class Half { kParts, kSums };             // to the owners, and from them
  enum class Work { kCompare, kAddUp, kWrite };  // on a chunk, beside the messages

  /// A transfer of a chunk, with some of the peers.
  struct Flight {
    Half half;
    int chunk;
    bool is_last;  // of this half of the chunk
    std::vector<Outgoing> out;
    std::vector<Incoming> in;
  };

  /// Starts the work on a chunk that has arrived.
  void Beside(Work work, int chunk) {
    work_ = work;
    chunk_ = chunk;
    beside_ = std::async(std::launch::async, [this, work, chunk] {
      const AloneInThread alone;  // the framework computes meanwhile
      if (work == Work::kCompare) Compare(chunk);
      if (work == Work::kAddUp) AddUp(chunk);
      if (work == Work::kWrite) WriteSums(chunk);
    });
  }

  /// Waits for the work beside the messages, and sends what it made, or makes room for.
  void Join() {
    if (!beside_.valid()) return;
    beside_.get();
    if (overflows_) identity_.verdict.Note(Verdict::Overflow());
    if (work_ == Work::kAddUp) SendSum(chunk_);
    if (work_ == begins_with_) SendParts(chunk_ + kSlots);
  }

  /// Chooses the ranks whose values are averaged: by their distances, summed over all shards.
  void ChooseRanks() {
    std::vector<float> distances = robust_->DistancesInShard();
    const auto keep = [&](Range range, Span<const float> sums) {
      std::copy(sums.begin(), sums.end(), distances.begin() + range.begin);
    };
    sum_.distances_->Take(distances);
    sum_.distances_->Run(distances, keep, &identity_, &ctx_);
    robust_->Choose(distances);
  }

  /// Averages all chunks of the own shard, and writes those of the others: while a chunk is in
  /// flight, the one before it is written, and the next one averaged.
  void AverageInTurn() {
    for (int chunk = 0; chunk <= sum_.chunks_; ++chunk) {
      if (chunk < sum_.chunks_) Beside(Work::kAddUp, chunk);
      while (chunk > 0 && !Land().is_last) {
      }
      Join();
      if (chunk > 0) Beside(Work::kWrite, chunk - 1);
      Join();
    }
  }

  /// Sends each owner its part of a chunk, if there is such a chunk.
  void SendParts(int chunk) {
    if (chunk >= sum_.chunks_) return;
    Send(Half::kParts, chunk, [&](int owner) { return MessageTo(owner, chunk); });
  }

  /// Sends the own shard's sum of a chunk to all ranks.
  void SendSum(int chunk) {
    std::uint8_t* const message = sum_.own_sum_[chunk % kSlots].data();
    WriteHeader(sum_.rank_, chunk, message);
    Send(Half::kSums, chunk,
         [&](int peer) { return Outgoing{peer, message, own_sum_bytes_[chunk % kSlots]}; });
  }

  /// Begins to send a message to every rank and to receive one from each; the next ranks first, so
  /// that not all send to the same one.
  template <typename Message>
  void Send(Half half, int chunk, const Message& message) {
    const int rank = sum_.rank_, size = sum_.size_;
    std::vector<Buffer>& memory =
        half == Half::kParts ? sum_.parts_[SlotOf(chunk)] : sum_.sums_[chunk % kSlots];
    for (int first = 1; first < size; first += kMessagesAtOnce) {
      const int end = std::min(size, first + kMessagesAtOnce);
      Flight& flight = flights_.emplace_back(Flight{half, chunk, end == size, {}, {}});
      for (int distance = first; distance < end; ++distance) {
        const int from = (rank + size - distance) % size;
        flight.out.push_back(message((rank + distance) % size));
        flight.in.push_back({from, memory[static_cast<std::size_t>(from)].data(),
                             sum_.MostBytes(ShardIn(half, from), chunk)});
      }
      ctx_.Begin(
          flight.out, flight.in,
          Concat("shard_sum, ", half == Half::kParts ? "parts" : "sums", ", chunk ", chunk + 1));
    }
  }

  /// Waits for the first transfer, checks its messages, and returns it.
  Flight Land() {
    ctx_.Wait();
    Flight flight = std::move(flights_.front());
    flights_.pop_front();
    auto& bytes = flight.half == Half::kParts ? part_bytes_[SlotOf(flight.chunk)]
                                              : sum_bytes_[flight.chunk % kSlots];
    bytes.resize(static_cast<std::size_t>(sum_.size_));
    for (const Incoming& one : flight.in) {
      Check(one, ShardIn(flight.half, one.peer), flight.chunk);
      bytes[static_cast<std::size_t>(one.peer)] = one.bytes;
    }
    return flight;
  }

  /// Returns the place of a chunk's parts.
  std::size_t SlotOf(int chunk) const {
    return static_cast<std::size_t>(chunk) % sum_.parts_.size();
  }

  /// Returns the owner of the shard in a message of `peer`.
  int ShardIn(Half half, int peer) const { return half == Half::kParts ? sum_.rank_ : peer; }

  void WriteHeader(int owner, int chunk, std::uint8_t* message) const {
    BlockHeader header = identity_;
    header.count = static_cast<std::int32_t>(NumelOf(owner, chunk));
    std::memcpy(message, &header, sizeof(header));
  }

  std::int64_t NumelOf(int owner, int chunk) const {
    std::int64_t numel = 0;
    for (const Piece& piece : sum_.PiecesOf(owner, chunk)) numel += piece.range.size();
    return numel;
  }

  /// Returns the message of a chunk to its owner. Codes that are shorter than they might be are
  /// moved together.
  Outgoing MessageTo(int owner, int chunk) {
    const std::size_t place = sum_.PlaceOf(owner, chunk);
    std::uint8_t* const message = sum_.work_->codes() + sum_.message_at_[place];
    WriteHeader(owner, chunk, message);
    std::uint8_t* at = message + kHeaderBytes;
    for (std::size_t i = sum_.first_piece_[place]; i < sum_.first_piece_[place + 1]; ++i) {
      DensePiece& piece = sum_.taken_[i];
      if (at != piece.code) {
        std::memmove(at, piece.code, static_cast<std::size_t>(piece.code_bytes));
        piece.code = at;
      }
      at += piece.code_bytes;
    }
    return {owner, message, at - message};
  }

  /// Checks the header of a message, which holds a chunk of the owner's shard.
  void Check(const Incoming& message, int owner, int chunk) {
    BlockHeader header;
    ctx_.Reading(message.peer, [&] {
      const std::int64_t numel = NumelOf(owner, chunk);
      const bool whole = message.bytes >= kHeaderBytes;
      if (whole) std::memcpy(&header, message.data, sizeof(header));
      if (!whole || header.magic != kMagic || header.count != numel ||
          !header.verdict.IsPossible()) {
        Throw(ErrorKind::kExchangeFailed, "received ", message.bytes, " bytes that are no part of ",
              numel, " entries of a sum: the ranks are out of step, or run different versions");
      }
    });
    ctx_.AgreeOnFormat(header.format, message.peer);
    ctx_.Agree(&identity_, header, message.peer);
  }

  /// The codes of a message that are still to be read.
  struct Reader {
    int peer;
    Span<const std::uint8_t> codes;

    void Skip(std::int64_t bytes) { codes = codes.Sub(bytes, codes.size - bytes); }
  };

  static Reader ReaderOf(int peer, const Buffer& memory, std::int64_t bytes) {
    return {peer, {memory.data() + kHeaderBytes, bytes - kHeaderBytes}};
  }

  void RequireAtEnd(const Reader& reader) const {
    if (reader.codes.size == 0) return;
    ctx_.Reading(reader.peer, [&] {
      Throw(ErrorKind::kExchangeFailed, "received ", reader.codes.size,
            " bytes more than the values of a sum take: the message is corrupt");
    });
  }

  /// Returns the codes of a chunk of the own shard, by rank; this rank has none.
  std::vector<Reader> PartsOf(int chunk) const {
    std::vector<Reader> readers;
    for (int peer = 0; peer < sum_.size_; ++peer) {
      if (peer == sum_.rank_) {
        readers.push_back({peer, {}});
        continue;
      }
      const auto at = static_cast<std::size_t>(peer);
      readers.push_back(
          ReaderOf(peer, sum_.parts_[SlotOf(chunk)][at], part_bytes_[SlotOf(chunk)][at]));
    }
    return readers;
  }

  /// Adds the distances between all ranks' values in a chunk of the own shard.
  void Compare(int chunk) {
    std::vector<Reader> readers = PartsOf(chunk);
    for (const Piece& piece : sum_.PiecesOf(sum_.rank_, chunk)) {
      ReadRows(&readers, piece);
      robust_->Compare();
    }
  }

  /// Adds up a chunk of the own shard in rank order, or averages it, codes the sum for all ranks,
  /// and writes what these will read.
  void AddUp(int chunk) {
    const int rank = sum_.rank_, size = sum_.size_;
    std::vector<Reader> readers = PartsOf(chunk);
    DenseWork& work = *sum_.work_;
    std::int64_t filled = kHeaderBytes;
    for (const Piece& piece : sum_.PiecesOf(rank, chunk)) {
      const Span<float> sums = work.Sums(piece.range.size());
      if (robust_ == nullptr) {
        for (Reader& reader : readers) AddPart(&reader, work.own() + piece.room_at, sums);
      } else {
        ReadRows(&readers, piece);
        robust_->Average(sums);
      }
      if (!AreFinite(sums.data, sums.size)) {
        overflows_ = true;
        std::fill(sums.begin(), sums.end(), 0.0f);
      }
      if (size == 1) {
        write_(piece.range, sums);
        continue;
      }
      std::uint8_t* const code = sum_.own_sum_[chunk % kSlots].data() + filled;
      std::int64_t not_carried = 0;
      const std::int64_t bytes = TakeCoded(sum_.format_, sums, code, &not_carried);
      if (not_carried > 0) overflows_ = true;
      if (robust_ == nullptr) {  // else the error of the average is dropped
        work.Keep(sums, values_.Sub(piece.range.begin, piece.range.size()));
      }
      DecodeInto(sum_.format_.values, {code, bytes}, sums);
      write_(piece.range, sums);
      filled += bytes;
    }
    for (const Reader& reader : readers) RequireAtEnd(reader);
    own_sum_bytes_[chunk % kSlots] = filled;
  }

  /// Reads every rank's values of a piece.
  void ReadRows(std::vector<Reader>* readers, const Piece& piece) {
    for (Reader& reader : *readers) {
      const Span<float> row = robust_->Row(reader.peer, piece.range.size());
      if (reader.peer == sum_.rank_) {
        std::copy_n(sum_.work_->own() + piece.room_at, row.size, row.data);
        continue;
      }
      ctx_.Reading(reader.peer,
                   [&] { reader.Skip(DecodeInto(sum_.format_.values, reader.codes, row)); });
    }
  }

  /// Adds a rank's part of a piece to the sum, or begins with it if the rank is the first.
  void AddPart(Reader* reader, const float* own, Span<float> sums) {
    const bool first = reader->peer == 0;
    if (reader->peer == sum_.rank_) {
      for (std::int64_t i = 0; i < sums.size; ++i) {
        sums.data[i] = first ? own[i] : sums.data[i] + own[i];
      }
      return;
    }
    ctx_.Reading(reader->peer, [&] {
      const Values format = sum_.format_.values;
      reader->Skip(first ? DecodeInto(format, reader->codes, sums)
                         : AddDecoded(format, reader->codes, sums));
    });
  }

  /// Writes the sums of a chunk that the other owners have sent.
  void WriteSums(int chunk) {
    for (int owner = 0; owner < sum_.size_; ++owner) {
      if (owner == sum_.rank_) continue;
      const auto at = static_cast<std::size_t>(owner);
      Reader reader =
          ReaderOf(owner, sum_.sums_[chunk % kSlots][at], sum_bytes_[chunk % kSlots][at]);
      for (const Piece& piece : sum_.PiecesOf(owner, chunk)) {
        const Span<float> sums = sum_.work_->Sums(piece.range.size());
        ctx_.Reading(owner,
                     [&] { reader.Skip(DecodeInto(sum_.format_.values, reader.codes, sums)); });
        write_(piece.range, sums);
      }
      RequireAtEnd(reader);
    }
  }

  ShardSum& sum_;
  const Span<float> values_;
  const Write& write_;
  BlockHeader& identity_;
  CollectiveContext& ctx_;

  RobustAverage* const robust_ = sum_.robust_.get();
  const Work begins_with_ = sum_.KeepsParts() ? Work::kCompare : Work::kAddUp;

  std::deque<Flight> flights_;                         // transfers that have begun
  std::vector<std::vector<std::int64_t>> part_bytes_;  // received from each rank, by slot
  std::vector<std::int64_t> sum_bytes_[kSlots];
  std::int64_t own_sum_bytes_[kSlots] = {};
  bool overflows_ = false;
  Work work_ = Work::kWrite;  // beside the messages, and its chunk
  int chunk_ = 0;
  std::future<void> beside_;  // last: it uses the others
};

void ShardSum::Run(Span<float> values, const Write& write, BlockHeader* identity,
                   CollectiveContext* ctx) {
  Step(this, values, write, identity, ctx).Run();
}

}  // namespace hvd_sparse
