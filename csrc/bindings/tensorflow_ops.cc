/// hvd_sparse/tensorflow/_ops.so: one op, which hands a bucket of gradients to the core.
///
/// Nothing is chosen, moved or planned here. The core comes as a table of C functions
/// (driver_interface.h), by a number that Python has given to it: so this library is linked to
/// TensorFlow alone, and the core to no framework.

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "csrc/bindings/driver_interface.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace {

namespace tf = tensorflow;

/// The drivers that Python has made known, by number.
class Drivers {
 public:
  static Drivers& Get() {
    static auto* const drivers = new Drivers;
    return *drivers;
  }

  void Add(std::int64_t number, const HvdSparseDriver& driver) {
    const std::lock_guard<std::mutex> lock(mutex_);
    drivers_[number] = driver;
  }

  void Remove(std::int64_t number) {
    const std::lock_guard<std::mutex> lock(mutex_);
    drivers_.erase(number);
  }

  bool Find(std::int64_t number, HvdSparseDriver* driver) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = drivers_.find(number);
    if (found == drivers_.end()) return false;
    *driver = found->second;
    return true;
  }

 private:
  std::mutex mutex_;
  std::map<std::int64_t, HvdSparseDriver> drivers_;
};

/// The error of TensorFlow that a kind of ours becomes, in the order of hvd_sparse::ErrorKind.
absl::Status StatusOf(std::int32_t kind, const char* message) {
  static constexpr absl::StatusCode kCodes[] = {
      absl::StatusCode::kInvalidArgument,     // kInvalidArgument
      absl::StatusCode::kFailedPrecondition,  // kUnavailable
      absl::StatusCode::kAborted,             // kPeerLost; TensorFlow keeps kUnavailable to itself
      absl::StatusCode::kDeadlineExceeded,    // kTimeout
      absl::StatusCode::kAborted,             // kExchangeFailed
      absl::StatusCode::kInvalidArgument,     // kNonFinite, as tf.debugging.check_numerics has it
  };
  if (kind == HVD_SPARSE_DONE) return absl::OkStatus();
  constexpr std::int32_t kinds = sizeof(kCodes) / sizeof(kCodes[0]);
  return absl::Status(kind < kinds ? kCodes[kind] : absl::StatusCode::kInternal, message);
}

/// The number of hvd_sparse::DType.
std::int32_t NumberOf(tf::DataType dtype) {
  switch (dtype) {
    case tf::DT_FLOAT:
      return 0;
    case tf::DT_DOUBLE:
      return 1;
    case tf::DT_HALF:
      return 2;
    default:
      return 3;  // the op takes bfloat16 and no other
  }
}

HvdSparseBuffer BufferOf(const tf::Tensor& tensor) {
  return {tensor.data(), tensor.NumElements(), NumberOf(tensor.dtype())};
}

/// A variable's memory, to be written in place: from now on whoever reads the variable gets a copy.
absl::Status OwnMemory(tf::OpKernelContext* context, int input, tf::Tensor* memory) {
  tf::core::RefCountPtr<tf::Var> variable;
  absl::Status status = tf::LookupResource(context, tf::HandleFromInput(context, input), &variable);
  if (!status.ok()) return status;
  const tf::mutex_lock lock(*variable->mu());
  if (variable->tensor()->dtype() != tf::DT_FLOAT) {
    return absl::InvalidArgumentError("residual and states must be float32");
  }
  if (!variable->copy_on_read_mode.load()) {
    if (!variable->tensor()->RefCountIsOne()) {
      tf::Tensor copy;
      status = context->allocate_temp(tf::DT_FLOAT, variable->tensor()->shape(), &copy);
      if (!status.ok()) return status;
      std::memcpy(copy.data(), variable->tensor()->data(), copy.TotalBytes());
      *variable->tensor() = copy;
    }
    variable->copy_on_read_mode.store(true);
  }
  *memory = *variable->tensor();
  return absl::OkStatus();
}

constexpr char kOtherFailed[] = "another operation of this step failed";

class ExchangeOp : public tf::AsyncOpKernel {
 public:
  explicit ExchangeOp(tf::OpKernelConstruction* context) : tf::AsyncOpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("driver", &number_));
    OP_REQUIRES_OK(context, context->GetAttr("place", &place_));
  }

  void ComputeAsync(tf::OpKernelContext* context, DoneCallback done) override {
    HvdSparseDriver driver;
    OP_REQUIRES_ASYNC(context, Drivers::Get().Find(number_, &driver),
                      absl::FailedPreconditionError(
                          "this exchange is closed: Horovod was shut down, build it anew"),
                      done);
    auto flight = std::make_unique<Flight>();
    flight->context = context;
    flight->done = std::move(done);
    const absl::Status ready = Prepare(context, flight.get());
    if (!ready.ok()) {
      driver.fail(driver.driver, std::string(ready.message()).c_str());
      context->SetStatus(ready);
      return flight->done();
    }
    if (tf::CancellationManager* manager = context->cancellation_manager()) {
      flight->token = manager->get_cancellation_token();
      flight->registered = manager->RegisterCallback(
          flight->token, [driver] { driver.cancel(driver.driver, kOtherFailed); });
      if (!flight->registered) {  // too late
        driver.fail(driver.driver, kOtherFailed);
        context->SetStatus(absl::CancelledError(kOtherFailed));
        return flight->done();
      }
    }
    std::vector<HvdSparseBuffer> gradients;
    for (const tf::Tensor& tensor : flight->gradients) gradients.push_back(BufferOf(tensor));
    const HvdSparseBuffer residual = BufferOf(flight->residual), states = BufferOf(flight->states);
    driver.launch(driver.driver, place_, gradients.data(),
                  static_cast<std::int32_t>(gradients.size()), residual, states, &ExchangeOp::Land,
                  flight.release());
  }

 private:
  /// What lives until the step is over.
  struct Flight {
    tf::OpKernelContext* context = nullptr;
    DoneCallback done;
    std::vector<tf::Tensor> gradients;  // the outputs; exchanged in place
    tf::Tensor residual, states;
    tf::CancellationToken token = tf::CancellationManager::kInvalidToken;
    bool registered = false;
  };

  static absl::Status Prepare(tf::OpKernelContext* context, Flight* flight) {
    const int count = context->num_outputs();
    for (int i = 0; i < count; ++i) {
      const tf::Tensor& input = context->input(i);
      tf::Tensor* output = nullptr;
      int forwarded = -1;
      const absl::Status status =
          context->forward_input_or_allocate_output({i}, i, input.shape(), &output, &forwarded);
      if (!status.ok()) return status;
      if (forwarded < 0) std::memcpy(output->data(), input.data(), input.TotalBytes());
      flight->gradients.push_back(*output);
    }
    const absl::Status status = OwnMemory(context, count, &flight->residual);
    return status.ok() ? OwnMemory(context, count + 1, &flight->states) : status;
  }

  static void Land(void* landed, std::int32_t kind, const char* message) {
    std::unique_ptr<Flight> flight(static_cast<Flight*>(landed));
    tf::OpKernelContext* const context = flight->context;
    if (flight->registered) context->cancellation_manager()->DeregisterCallback(flight->token);
    context->SetStatus(StatusOf(kind, message));
    const DoneCallback done = std::move(flight->done);
    flight.reset();  // now the outputs are TensorFlow's alone, which may reuse their memory
    done();
  }

  std::int64_t number_ = 0;
  int place_ = 0;
};

REGISTER_OP("HvdSparseExchange")
    .Attr("T: list({float, double, half, bfloat16}) >= 1")
    .Attr("driver: int")
    .Attr("place: int")
    .Input("gradients: T")
    .Input("residual: resource")
    .Input("states: resource")
    .Output("averages: T")
    .SetIsStateful()
    .SetShapeFn([](tf::shape_inference::InferenceContext* context) {
      for (int i = 0; i < context->num_outputs(); ++i) context->set_output(i, context->input(i));
      return absl::OkStatus();
    })
    .Doc("One bucket's part of a step; done once all buckets of the step are.");

REGISTER_KERNEL_BUILDER(Name("HvdSparseExchange").Device(tf::DEVICE_CPU), ExchangeOp);

}  // namespace

extern "C" {

__attribute__((visibility("default"))) void hvd_sparse_add_driver(std::int64_t number,
                                                                  const HvdSparseDriver* driver) {
  Drivers::Get().Add(number, *driver);
}

__attribute__((visibility("default"))) void hvd_sparse_remove_driver(std::int64_t number) {
  Drivers::Get().Remove(number);
}

}  // extern "C"
