/// Length-prefixed messages over TCP, and messages in chunks over MPI: the receiver gets what was
/// announced and fits, or an error; never a byte beyond its room.

#include <sys/socket.h>

#include <algorithm>
#include <memory>
#include <string>

#include "csrc/base/error.h"
#include "csrc/comm/message_chunks.h"
#include "csrc/comm/tcp_stream.h"
#include "tests/csrc/fuzz/target.h"

namespace hvd_sparse::fuzz {
namespace {

constexpr std::int64_t kMostRoom = 3000, kMostMessages = 4;

/// Memory of exactly the given size, so that a write beyond it is found.
struct Room {
  explicit Room(std::int64_t size)
      : memory(new std::uint8_t[static_cast<std::size_t>(size)]), size(size) {}
  std::unique_ptr<std::uint8_t[]> memory;
  std::int64_t size;
};

void ReceiveMessages(Reader* reader) {
  int ends[2];
  Demand(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0,
         "there are descriptors");
  Descriptor there = Descriptor::Open([&] { return ends[1]; });
  TcpStream stream(0, 1);
  stream.Open(Descriptor::Open([&] { return ends[0]; }));

  std::vector<Room> rooms;
  std::vector<Incoming> incoming;
  for (std::int64_t left = reader->Between(1, kMostMessages); left > 0; --left) {
    rooms.emplace_back(reader->Between(0, kMostRoom));
    incoming.push_back({1, rooms.back().memory.get(), rooms.back().size});
  }
  for (Incoming& message : incoming) stream.Receive(&message);
  const std::size_t chunk = 1 + std::size_t{reader->Take<std::uint8_t>()} * 16;
  try {
    while (reader->left() > 0 && !stream.done()) {
      const Bytes bytes = reader->TakeBytes(chunk);
      ::send(there.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      while (stream.Move("bucket 'fc'", false)) {
      }
    }
    there.Close();
    while (stream.Move("bucket 'fc'", false)) {
    }
  } catch (const Error& error) {
    DemandEnd(error);
    const std::string text = error.what();
    Demand(text.find("fc") != std::string::npos && text.find("rank 1") != std::string::npos,
           "an error names rank and bucket");
    return;
  }
  Demand(stream.done() || !stream.lost().empty(), "a stream that has ended is done, or lost");
  for (const Incoming& message : incoming) {
    Demand(message.bytes <= message.capacity, "a message has room");
  }
}

void ReceiveChunks(Reader* reader) {
  const Room room(reader->Between(0, kMostRoom));
  const std::int64_t limit = reader->Between(1, 200);
  MessageChunks chunks(MessageChunks::Direction::kIn, room.memory.get(), room.size, limit);
  try {
    while (!chunks.done() && reader->left() > 0) {
      Demand(chunks.CanPost(), "a receiver with nothing on its way can go on");
      const MessageChunks::Chunk chunk = chunks.Post();
      Demand(chunk.bytes >= 0, "a chunk has a size");
      const Bytes bytes = reader->TakeBytes(std::min<std::size_t>(
          static_cast<std::size_t>(chunk.bytes), reader->Take<std::uint8_t>()));
      if (!bytes.empty()) std::memcpy(chunk.data, bytes.data(), bytes.size());
      chunks.Arrived(static_cast<std::int64_t>(bytes.size()));
    }
  } catch (const Error& error) {
    DemandEnd(error);
    return;
  }
  Demand(chunks.moved() <= room.size, "a message has room");
}

}  // namespace

std::vector<Bytes> Seeds() {
  const auto message = [](Writer* writer, std::int64_t bytes) {
    writer->Put(bytes);
    for (std::int64_t i = 0; i < bytes; ++i) writer->Put(static_cast<std::uint8_t>(i));
  };
  std::vector<Bytes> seeds;
  for (const std::uint8_t chunk : {0, 1, 100}) {
    Writer writer;
    writer.Put(std::uint8_t{0}).PutBetween(1, 3).PutBetween(0, 0).PutBetween(0, 40);
    writer.PutBetween(0, 3000).Put(chunk);
    message(&writer, 0);
    message(&writer, 40);
    message(&writer, 2000);
    seeds.push_back(writer.bytes());
  }
  for (const std::int64_t following : {0, 5, 130}) {  // after a first chunk of 50 bytes
    Writer writer;
    writer.Put(std::uint8_t{1}).PutBetween(0, 180).PutBetween(1, 50).Put(std::uint8_t{50});
    for (std::uint8_t i = 0; i < 50; ++i) writer.Put(i);
    writer.Put(std::uint8_t{sizeof(following)}).Put(following);
    for (std::int64_t left = following; left > 0; left -= 50) {
      const auto size = static_cast<std::uint8_t>(std::min<std::int64_t>(50, left));
      writer.Put(size);
      for (std::uint8_t i = 0; i < size; ++i) writer.Put(i);
    }
    seeds.push_back(writer.bytes());
  }
  return seeds;
}

}  // namespace hvd_sparse::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace hvd_sparse::fuzz;
  Reader reader(data, size);
  reader.Take<std::uint8_t>() % 2 == 0 ? ReceiveMessages(&reader) : ReceiveChunks(&reader);
  return 0;
}
