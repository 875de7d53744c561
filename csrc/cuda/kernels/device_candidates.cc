#include "csrc/cuda/kernels/device_candidates.h"

#include <algorithm>
#include <utility>

#include "csrc/cuda/base/memory.h"
#include "csrc/cuda/kernels/launches.h"

namespace hvd_sparse::cuda {
namespace {

/// Returns zeroed scratch memory for keeping some of `count` candidates.
TopKScratch ScratchFor(std::int64_t count, Work* work) {
  const auto divide = [count](Divider* divider) { return TopKScratch::From(divider, count); };
  Divider divider(work->Zeros<char>(static_cast<std::int64_t>(SizeOfAll(divide))));
  return divide(&divider);
}

}  // namespace

DeviceCandidates::DeviceCandidates(int device, Span<float> bucket, std::int64_t filled,
                                   std::int64_t room, SparseBlock* out)
    : device_(device), bucket_(bucket), filled_(filled), room_(room), out_(out) {
  Work work(device_);
  work.KeptMemory()->Reset();
  own_ = NewMemory(&work);
  work.Leave();
}

DeviceBlock DeviceCandidates::NewMemory(Work* work) const {
  const std::int64_t capacity = DeviceBlock::CapacityFor(room_);
  char* const memory = work->KeptMemory()->Take<char>(DeviceBlock::BytesFor(capacity));
  const DeviceBlock block = DeviceBlock::In(memory, capacity);
  // As many as any capacity: counts are those of the CPU.
  Check(cudaMemsetAsync(block.header, 0xff, sizeof(DeviceBlockHeader), work->stream()),
        "write a header");
  return block;
}

void DeviceCandidates::NeedOther(Work* work) {
  if (other_.header == nullptr) other_ = NewMemory(work);
}

DeviceBlock DeviceCandidates::Own() const {
  return {own_.header, own_.indices, own_.values, count_};
}

Taken DeviceCandidates::Behind(Span<float> residual) const {
  return {own_.indices + count_, own_.values + count_, std::min(room_ - count_, residual.size),
          OffsetIn(bucket_, residual)};
}

void DeviceCandidates::NoteCount(std::int64_t count) {
  count_ = count;
  is_fetched_ = false;
  smallest_.reset();
}

void DeviceCandidates::NoteKept(std::int64_t count) {
  std::swap(own_, other_);
  NoteCount(count);
}

Tally DeviceCandidates::Take(const Feedback& feedback, float threshold) {
  Work work(device_);
  NeedOther(&work);
  Totals* const fetched = work.Staged<Totals>(1);
  const Taken taken = Behind(feedback.residual);
  const Taken pile{other_.indices, other_.values, taken.room, taken.offset};
  work.Fetch(LaunchTakeByPile(feedback, threshold, pile, taken, &work), 1, fetched);
  work.Finish();
  const std::int64_t count = std::min<std::int64_t>(fetched->above, taken.room);
  if (fetched->above > taken.room) {  // takes the first ones, as the CPU does
    LaunchPut(taken.indices, taken.values, taken.room, bucket_.data, work.stream());
    LaunchTakeAbove(feedback.residual, threshold, taken, &work);
    work.Finish();
  }
  NoteCount(count_ + count);
  return {fetched->above, count, fetched->not_finite};
}

void DeviceCandidates::TakeCut(Span<float> residual, TopKCut cut) {
  Work work(device_);
  Totals* const fetched = work.Staged<Totals>(1);
  const Taken taken = Behind(residual);
  work.Fetch(LaunchTakeCut(residual, cut, taken, &work), 1, fetched);
  work.Finish();
  const std::int64_t kept = fetched->above + std::min<std::int64_t>(fetched->ties, cut.ties);
  NoteCount(count_ + std::min(kept, taken.room));
}

void DeviceCandidates::TakeAt(Span<float> residual, Span<const Index> positions) {
  Work work(device_);
  const Taken taken = Behind(residual);
  const std::int64_t count = std::min(positions.size, taken.room);
  Index* const staged = work.Staged<Index>(count);
  for (std::int64_t i = 0; i < count; ++i) staged[i] = taken.offset + positions[i];
  work.Upload(staged, count, taken.indices);
  LaunchGatherAndClear(bucket_.data, taken.indices, count, taken.values, work.stream());
  work.Leave();
  NoteCount(count_ + count);
}

void DeviceCandidates::KeepTopK(std::int64_t k) {
  if (count_ <= k) return;
  if (k <= 0) return PutBack();
  Work work(device_);
  NeedOther(&work);
  const TopKScratch scratch = ScratchFor(count_, &work);
  LaunchKeepTopK({k, false, false, bucket_}, Own(), other_, scratch, work.stream());
  work.Leave();
  NoteKept(k);
}

void DeviceCandidates::Keep(const SignGroup& group) {
  if (group.count == count_) return;
  Work work(device_);
  NeedOther(&work);
  const TopKScratch scratch = ScratchFor(count_, &work);
  LaunchKeepGroup(group, bucket_, Own(), other_, scratch, work.stream());
  work.Leave();
  NoteKept(group.count);
}

void DeviceCandidates::PutBack() {
  const OnDevice current(device_);
  LaunchPut(own_.indices, own_.values, count_, bucket_.data, OwnStream(device_).get());
  OwnStream(device_).Synchronize();
  NoteCount(0);
}

float DeviceCandidates::Smallest() {
  if (!smallest_) {
    Work work(device_);
    smallest_ = SmallestMagnitude(own_.values, count_, &work);
  }
  return *smallest_;
}

SignSums DeviceCandidates::LargestOfSigns(std::int64_t k) {
  Work work(device_);
  return cuda::LargestOfSigns(own_.values, count_, k, &work);
}

void DeviceCandidates::Fetch() {
  if (is_fetched_) return;
  Work work(device_);
  Index* const indices = work.Staged<Index>(count_);
  float* const values = work.Staged<float>(count_);
  work.Fetch(own_.indices, count_, indices);
  work.Fetch(own_.values, count_, values);
  work.Finish();
  std::copy_n(indices, count_, out_->indices() + filled_);
  std::copy_n(values, count_, out_->values() + filled_);
  is_fetched_ = true;
}

}  // namespace hvd_sparse::cuda
