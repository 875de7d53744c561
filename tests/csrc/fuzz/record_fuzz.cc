/// Bytes of a lifeline, cut anywhere: they give their records, or a broken connection.

#include <sys/socket.h>

#include <algorithm>

#include "csrc/comm/lifeline_wire.h"
#include "tests/csrc/fuzz/target.h"

namespace hvd_sparse::fuzz {
namespace {

struct Ends {
  Descriptor here, there;
};

Ends Connected() {
  int ends[2];
  Demand(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0,
         "there are descriptors");
  return {Descriptor::Open([&] { return ends[0]; }), Descriptor::Open([&] { return ends[1]; })};
}

/// Returns a record's bytes as sent over a connection.
Bytes BytesOf(const Record& record) {
  Ends ends = Connected();
  LifelineConnection sender(std::move(ends.here));
  sender.Post(record);
  Bytes bytes(LifelineConnection::kHeaderBytes + LifelineConnection::kMaxText);
  const ssize_t got = ::recv(ends.there.get(), bytes.data(), bytes.size(), 0);
  Demand(got >= static_cast<ssize_t>(LifelineConnection::kHeaderBytes), "a record is sent at once");
  bytes.resize(static_cast<std::size_t>(got));
  return bytes;
}

}  // namespace

std::vector<Bytes> Seeds() {
  const std::vector<Record> records = {
      {RecordKind::kHello, 2, std::string(32, 'a') + " 4 host h, pid 12"},
      {RecordKind::kWelcome, 0, "host h, pid 1"},
      {RecordKind::kStart},
      {RecordKind::kFail, 3, std::string(LifelineConnection::kMaxText, 'x'), ErrorKind::kTimeout,
       5},
      {RecordKind::kLost, 1, "has died"},
      {RecordKind::kLeft, -1},
      {RecordKind::kCommitted, 2, "", ErrorKind::kExchangeFailed, 17},
      {RecordKind::kGoodbye}};
  std::vector<Bytes> seeds;
  for (const std::uint8_t piece : {0, 1, 40}) {
    Writer all;
    all.Put(piece);
    for (const Record& record : records) {
      const Bytes bytes = BytesOf(record);
      all.PutBytes(bytes.data(), bytes.size());
      seeds.push_back(Writer().Put(piece).PutBytes(bytes.data(), bytes.size()).bytes());
    }
    seeds.push_back(all.bytes());
  }
  return seeds;
}

}  // namespace hvd_sparse::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace hvd_sparse;
  using namespace hvd_sparse::fuzz;
  Reader reader(data, size);
  const std::size_t piece = 1 + std::size_t{reader.Take<std::uint8_t>()} * 16;
  Ends ends = Connected();
  LifelineConnection connection(std::move(ends.here));
  Bytes sent, records;
  while (reader.left() > 0 && connection.broken() == 0) {
    const Bytes bytes = reader.TakeBytes(piece);
    const ssize_t taken = ::send(ends.there.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    Demand(taken == static_cast<ssize_t>(bytes.size()), "the kernel takes a few bytes");
    sent.insert(sent.end(), bytes.begin(), bytes.end());
    connection.Receive();
    while (const auto record = connection.Next()) {
      Demand(record->text.size() <= LifelineConnection::kMaxText, "texts are short");
      const Bytes again = BytesOf(*record);
      records.insert(records.end(), again.begin(), again.end());
    }
  }
  Demand(records.size() <= sent.size() && std::equal(records.begin(), records.end(), sent.begin()),
         "records are what was sent");
  ends.there.Close();
  connection.Receive();
  Demand(!connection.Next() && connection.broken() != 0, "a closed connection is broken");
  return 0;
}
