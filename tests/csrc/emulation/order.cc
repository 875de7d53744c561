#include "tests/csrc/emulation/order.h"

#include <cstring>
#include <map>
#include <mutex>

#include "tests/csrc/emulation/message.h"
#include "tests/csrc/emulation/strand.h"

namespace hvd_sparse::emulation {
namespace {

unsigned made = 0;

struct Stream {
  const unsigned number = ++made;
  void* const strand = MakeStrand();
  bool blocks = false;
  Order given, done;

  Stream() { NameStrand(strand, "stream %u", number); }
  ~Stream() { EndStrand(strand); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
};

/// The emulated device's state; its users hold the lock.
struct Device {
  std::mutex lock;
  std::map<cudaStream_t, Stream> streams;  // including streams never created
  std::map<cudaEvent_t, Order> events;     // as last recorded
};
Device* const device = new Device;  // made before any thread, so that its locks need not order it

template <typename Key, typename Value>
Value& Find(std::map<Key, Value>* all, Key key) {
  const Unseen unseen;
  return (*all)[key];
}

template <typename Key, typename Value>
void Forget(std::map<Key, Value>* all, Key key) {
  const Unseen unseen;
  all->erase(key);
}

void Lock() {
  const UnseenLocks unseen;
  device->lock.lock();
}
void Unlock() {
  const UnseenLocks unseen;
  device->lock.unlock();
}

struct Locked {
  Locked() { Lock(); }
  ~Locked() { Unlock(); }
};

/// Makes the running strand follow the work given to a stream so far.
void FollowStream(Stream* stream) {
  void* const own = ThisStrand();
  Become(stream->strand);
  stream->done.PassOn();
  Become(own);
  stream->done.Take();
}

/// Orders the default stream after all blocking streams, and those after it.
void FollowDefault(cudaStream_t name, const Stream& stream) {
  if (name != nullptr && !stream.blocks) return;
  for (auto& [other, its] : device->streams) {
    const bool waits = name == nullptr ? its.blocks : other == nullptr;
    if (waits) FollowStream(&its);
  }
}

}  // namespace

Working::Working(cudaStream_t name) : cpu_(ThisStrand()) {
  Lock();
  Stream& stream = Find(&device->streams, name);
  stream.given.PassOn();
  Become(stream.strand);
  stream.given.Take();
  FollowDefault(name, stream);
}

Working::~Working() {
  Become(cpu_);
  Unlock();
}

void Copy(cudaStream_t stream, void* to, const void* from, std::size_t bytes) {
  const Working working(stream);
  std::memcpy(to, from, bytes);
}

void Fill(cudaStream_t stream, void* memory, int value, std::size_t bytes) {
  const Working working(stream);
  std::memset(memory, value, bytes);
}

void MakeStream(cudaStream_t stream, bool blocks) {
  const Locked locked;
  Find(&device->streams, stream).blocks = blocks;
}

void ForgetStream(cudaStream_t stream) {
  const Locked locked;
  Forget(&device->streams, stream);
}

void RecordEvent(cudaEvent_t event, cudaStream_t stream) {
  const Working working(stream);
  Order& recorded = Find(&device->events, event);
  recorded.Forget();
  recorded.PassOn();
}

void MakeStreamFollow(cudaStream_t stream, cudaEvent_t event) {
  const Working working(stream);
  Find(&device->events, event).Take();
}

void ForgetEvent(cudaEvent_t event) {
  const Locked locked;
  Forget(&device->events, event);
}

void Follow(cudaEvent_t event) {
  const Locked locked;
  Find(&device->events, event).Take();
}

void Follow(cudaStream_t stream) {
  const Locked locked;
  FollowStream(&Find(&device->streams, stream));
}

void FollowDevice() {
  const Locked locked;
  for (auto& [name, stream] : device->streams) FollowStream(&stream);
}

Part::Part(cudaStream_t stream) : stream_(stream) {
  const Working working(stream);
  const Unseen unseen;
  strand_ = MakeStrand();  // follows the strand that makes it
  NameStrand(strand_, "message of stream %u", Find(&device->streams, stream).number);
}

Part::~Part() { EndStrand(strand_); }

void Part::ComesLate() {
  const Locked locked;
  const auto found = device->streams.find(stream_);
  if (found == device->streams.end()) return;  // destroyed in the meantime
  void* const own = ThisStrand();
  Become(strand_);
  FollowStream(&found->second);
  Become(own);
}

void Part::Send(const void* from, Message* message) {
  Do([&] {
    std::memcpy(message->bytes.data(), from, message->bytes.size());
    message->order.PassOn();
  });
}

void Part::Receive(const Message& message, void* to) {
  Do([&] {
    message.order.Take();
    std::memcpy(to, message.bytes.data(), message.bytes.size());
  });
}

template <typename Move>
void Part::Do(const Move& move) {
  const Locked locked;
  void* const own = ThisStrand();
  Order done;
  Become(strand_);
  move();
  done.PassOn();
  const auto found = device->streams.find(stream_);
  if (found != device->streams.end()) {
    Become(found->second.strand);
    done.Take();
  }
  Become(own);
}

}  // namespace hvd_sparse::emulation

#ifdef HVD_SPARSE_ORDER_IS_CHECKED
// Volatile accesses of kernels, which are compiled with calls that distinguish them.
extern "C" {
#define HVD_SPARSE_VOLATILE(bytes)           \
  void __tsan_volatile_read##bytes(void*) {} \
  void __tsan_volatile_write##bytes(void*) {}
HVD_SPARSE_VOLATILE(1)
HVD_SPARSE_VOLATILE(2)
HVD_SPARSE_VOLATILE(4)
HVD_SPARSE_VOLATILE(8)
HVD_SPARSE_VOLATILE(16)
}
#endif
