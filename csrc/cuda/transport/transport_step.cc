#include "csrc/cuda/transport/transport_step.h"

#include <algorithm>
#include <cstring>

#include "csrc/base/error.h"
#include "csrc/cuda/step/launches.h"

namespace hvd_sparse::cuda {
namespace {

bool IsNarrow(const GradView& gradient) { return SizeOf(gradient.dtype) < SizeOf(DType::kFloat32); }

}  // namespace

TransportStep::TransportStep(const BucketSpec& spec, std::uint32_t id, int device,
                             GpuTransport* transport)
    : device_(device),
      gpu_transport_(*transport),
      select_stream_(transport->select_stream()),
      stream_(transport->stream()),
      messages_name_(Concat("gtopk, over ", transport->Name())),
      what_(Concat("bucket '", spec.name, "', ", messages_name_)),
      transport_(transport, &marks_),
      exchange_(spec, id, &transport_),
      segments_(static_cast<std::int64_t>(spec.segment_numels.size())),
      memory_([this](Divider* divider) { Divide(divider); }),
      sent_states_(segments_),
      fetched_states_(segments_),
      selected_(1),
      reduced_(1) {
  exchange_.ClearBlocks(select_stream_);
}

TransportStep::~TransportStep() {
  (void)cudaStreamSynchronize(select_stream_);
  (void)cudaStreamSynchronize(stream_);
}

void TransportStep::Divide(Divider* divider) {
  states_ = divider->Take<SelectionState>(segments_);
  former_ = divider->Take<char>(DeviceBlock::BytesFor(exchange_.reduced().capacity));
  masked_ = divider->Take<float>(exchange_.selected().capacity);
}

StreamHandle TransportStep::select_stream() const { return HandleOf(select_stream_); }

StreamHandle TransportStep::exchange_stream() const { return HandleOf(stream_); }

void TransportStep::Marked::Exchange(int peer, const void* send, void* recv, std::int64_t bytes,
                                     cudaStream_t stream) {
  if (calls() == 0) marks_.Entered(stream);
  CountedTransport::Exchange(peer, send, recv, bytes, stream);
  marks_.Exchanged(stream);
}

void TransportStep::Select(const Launch& launch) {
  const OnDevice current(device_);
  const bool rounds = std::any_of(launch.gradients.begin(), launch.gradients.end(), IsNarrow);
  static_cast<Launch&>(launch_) = launch;
  launch_.states = {states_, segments_};
  launch_.outputs = launch.gradients;
  launch_.former = rounds ? former_ : nullptr;
  launch_.masked = masked_;
  framework_states_ = launch.states;
  is_selected_ = is_written_ = false;
  waiting_ = nullptr;
  transport_.Reset();

  marks_.Begin(select_stream_);
  RenewStates();
  exchange_.Select(launch_, select_stream_);
  marks_.Selected(select_stream_);
  is_selected_ = true;
}

void TransportStep::Exchange() {
  const OnDevice current(device_);
  gpu_transport_.SetOperation(what_);
  marks_.selected().MakeStreamFollow(stream_);
  exchange_.Exchange(launch_, stream_);
  is_written_ = true;
  if (transport_.calls() == 0) {  // a single rank
    marks_.Entered(stream_);
    marks_.Exchanged(stream_);
  }
  selected_.FetchFrom(exchange_.selected().header, stream_);
  exchange_.Fetch(reduced_.data(), stream_);
  fetched_states_.FetchFrom(states_, stream_);
  marks_.End(stream_);
}

/// Copies the framework's states to the device if they have changed. The step before has arrived,
/// so nothing reads the pinned copy any more.
void TransportStep::RenewStates() {
  const Span<SelectionState> now = framework_states_;
  const bool is_known = known_states_.size() == static_cast<std::size_t>(now.size) &&
                        std::memcmp(known_states_.data(), now.data,
                                    known_states_.size() * sizeof(SelectionState)) == 0;
  if (is_known) return;
  known_states_.assign(now.begin(), now.end());
  std::copy(now.begin(), now.end(), sent_states_.data());
  sent_states_.SendTo(states_, select_stream_);
}

bool TransportStep::Arrived(double seconds) {
  const OnDevice current(device_);
  if (waiting_ == nullptr) {
    waiting_ = std::make_unique<GpuTransport::Waiting>(&gpu_transport_, what_);
  }
  if (!waiting_->For(seconds, [this] { return marks_.end().Passed(); })) return false;
  Report();
  known_states_.assign(fetched_states_.begin(), fetched_states_.end());
  std::copy(known_states_.begin(), known_states_.end(), framework_states_.begin());
  return true;
}

void TransportStep::Report() {
  const DeviceBlockHeader &selected = selected_[0], &reduced = reduced_[0];
  if ((reduced.flags & (kDisagree | kMalformed)) != 0) {
    Throw(ErrorKind::kExchangeFailed, "in ", what_, " a block of another bucket or step, or none, ",
          "has come");
  }
  report_ = {};
  report_.verdict = reduced.verdict;
  if ((reduced.flags & kSumNotFinite) != 0) report_.verdict.Note(Verdict::Overflow());
  report_.own_verdict = selected.verdict;
  report_.selected = selected.count;
  report_.reduced = reduced.count;
  const StepTimes times = marks_.Read();
  report_.begin = times.begin;
  report_.select_end = times.selected;
  report_.end = times.end;
  report_.messages = {messages_name_, times.entered, times.exchanged, transport_.sent(),
                      transport_.received()};
}

void TransportStep::PutBack() {
  const OnDevice current(device_);
  // If the step was not exchanged, stream_ does not follow select_stream_ yet.
  if (is_selected_) marks_.selected().MakeStreamFollow(stream_);
  if (is_written_ && launch_.former != nullptr) {
    LaunchPutBack(DeviceBlock::In(former_, exchange_.reduced().capacity), launch_.residual,
                  stream_);
  }
  if (is_selected_) LaunchPutBack(exchange_.selected(), launch_.residual, stream_);
  if (is_written_ && launch_.MaskedVelocity().data != nullptr) {
    DeviceBlock masked = exchange_.selected();
    masked.values = masked_;
    LaunchPutBack(masked, launch_.MaskedVelocity(), stream_);
  }
  Check(cudaStreamSynchronize(stream_), "finish its work");
}

}  // namespace hvd_sparse::cuda
