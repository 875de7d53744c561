#include "csrc/cuda/kernels/device_candidates.h"

#include <algorithm>

#include "csrc/cuda/base/device_memory.h"
#include "csrc/cuda/kernels/block_top_k.h"
#include "csrc/cuda/kernels/places.h"
#include "csrc/cuda/kernels/sign_sums.h"
#include "csrc/cuda/kernels/take.h"

namespace hvd_sparse::cuda {
namespace {

DeviceBlock RoomFor(std::int64_t entries, Arena<DeviceMemory>* memory) {
  const std::int64_t capacity = DeviceBlock::CapacityFor(entries);
  return DeviceBlock::In(memory->Take<char>(DeviceBlock::BytesFor(capacity)), capacity);
}

/// Returns zeroed scratch memory for keeping some of `count` candidates.
TopKScratch ScratchFor(std::int64_t count, Work* work) {
  const auto divide = [count](Divider* divider) { return TopKScratch::From(divider, count); };
  Divider divider(work->Zeros<char>(static_cast<std::int64_t>(SizeOfAll(divide))));
  return divide(&divider);
}

}  // namespace

DeviceCandidates::DeviceCandidates(int device, std::int64_t room, Span<float> bucket)
    : device_(device), room_(room), bucket_(bucket) {
  Work work(device_);
  Arena<DeviceMemory>* const memory = work.KeptMemory();
  memory->Reset();
  own_ = RoomFor(room, memory);
  other_ = RoomFor(room, memory);
  // As many as any capacity: counts are those of the CPU.
  for (const DeviceBlock& block : {own_, other_}) {
    Check(cudaMemsetAsync(block.header, 0xff, sizeof(DeviceBlockHeader), work.stream()),
          "write a header");
  }
  work.Leave();
}

DeviceBlock DeviceCandidates::Own() const {
  return {own_.header, own_.indices, own_.values, count_};
}

void DeviceCandidates::NoteKept(std::int64_t count) {
  std::swap(own_, other_);
  count_ = count;
  smallest_.reset();
}

Tally DeviceCandidates::Take(const Feedback& feedback, float threshold, Index offset) {
  Work work(device_);
  Totals* const fetched = work.Staged<Totals>(1);
  const std::int64_t room = std::min(room_ - count_, feedback.residual.size);
  const Taken taken{own_.indices + count_, own_.values + count_, room, offset};
  const Taken pile{other_.indices, other_.values, room, offset};
  work.Fetch(LaunchTakeByPile(feedback, threshold, pile, taken, &work), 1, fetched);
  work.Finish();
  const std::int64_t count = std::min<std::int64_t>(fetched->above, room);
  if (fetched->above > room) {  // takes the first ones, as the CPU does
    LaunchPut(taken.indices, taken.values, room, bucket_.data, work.stream());
    LaunchTakeAbove({{}, 1, 1, feedback.residual}, threshold, taken, &work);
    work.Finish();
  }
  count_ += count;
  smallest_.reset();
  return {fetched->above, count, fetched->not_finite};
}

void DeviceCandidates::KeepTopK(std::int64_t k) {
  if (count_ <= k) return;
  if (k <= 0) return PutBack();
  Work work(device_);
  const TopKScratch scratch = ScratchFor(count_, &work);
  LaunchKeepTopK({k, false, false, bucket_}, Own(), other_, scratch, work.stream());
  work.Leave();
  NoteKept(k);
}

void DeviceCandidates::Keep(const SignGroup& group) {
  if (group.count == count_) return;
  Work work(device_);
  const TopKScratch scratch = ScratchFor(count_, &work);
  LaunchKeepGroup(group, bucket_, Own(), other_, scratch, work.stream());
  work.Leave();
  NoteKept(group.count);
}

void DeviceCandidates::PutBack() {
  const OnDevice current(device_);
  LaunchPut(own_.indices, own_.values, count_, bucket_.data, OwnStream(device_).get());
  OwnStream(device_).Synchronize();
  count_ = 0;
}

float DeviceCandidates::Smallest() {
  if (!smallest_) {
    Work work(device_);
    smallest_ = SmallestMagnitude(own_.values, count_, &work);
  }
  return *smallest_;
}

std::array<SignSum, 2> DeviceCandidates::LargestOfSigns(std::int64_t k) {
  Work work(device_);
  return cuda::LargestOfSigns(own_.values, count_, k, &work);
}

void DeviceCandidates::Fetch(std::int64_t filled, SparseBlock* out) {
  Work work(device_);
  Index* const indices = work.Staged<Index>(count_);
  float* const values = work.Staged<float>(count_);
  work.Fetch(own_.indices, count_, indices);
  work.Fetch(own_.values, count_, values);
  work.Finish();
  std::copy_n(indices, count_, out->indices() + filled);
  std::copy_n(values, count_, out->values() + filled);
}

}  // namespace hvd_sparse::cuda
