/// hvd_sparse/tensorflow/_ops.so: ops that hand gradients to the core.
///
///     HvdSparseBegin      once a step: residual and states, and velocity where there is momentum
///     HvdSparseExchange   for each piece: gradients in, averages out, or the gradients if it
///     passes HvdSparseSummed     for sums that Horovod has formed: the core looks whether they are
///     finite HvdSparseEnd        when all are there
///
/// Only the first and the last take the variables, and are known as stateful: TensorFlow runs such
/// ops one after the other, and the pieces of a step wait for each other. What keeps them after the
/// first, and from being folded away, is a token; and the last one waits for all of them.
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

/// Memory of variables that a step works on.
struct StepMemory {
  tf::Tensor residual, states, velocity;
};

/// The drivers that Python has made known, by number, and what their steps work on.
class Drivers {
 public:
  static Drivers& Get() {
    static auto* const drivers = new Drivers;
    return *drivers;
  }

  void Add(std::int64_t number, const HvdSparseDriver& driver) {
    const std::lock_guard<std::mutex> lock(mutex_);
    drivers_[number].driver = driver;
  }

  void Remove(std::int64_t number) {
    const std::lock_guard<std::mutex> lock(mutex_);
    drivers_.erase(number);
  }

  absl::Status Find(std::int64_t number, HvdSparseDriver* driver) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = drivers_.find(number);
    if (found == drivers_.end()) {
      return absl::FailedPreconditionError(
          "this exchange is closed: Horovod was shut down, build it anew");
    }
    *driver = found->second.driver;
    return absl::OkStatus();
  }

  /// Keeps what the next step works on alive, in place of what the one before did.
  void Keep(std::int64_t number, StepMemory memory) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = drivers_.find(number);
    if (found != drivers_.end()) found->second.memory = std::move(memory);
  }

 private:
  struct Entry {
    HvdSparseDriver driver{};
    StepMemory memory;
  };

  std::mutex mutex_;
  std::map<std::int64_t, Entry> drivers_;
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
      absl::StatusCode::kAborted,             // kDisagreement
      absl::StatusCode::kResourceExhausted,   // kOutOfMemory
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
    return absl::InvalidArgumentError("residual, states and velocity must be float32");
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

/// For calls that answer before they return.
void Note(void* status, std::int32_t kind, const char* message) {
  *static_cast<absl::Status*>(status) = StatusOf(kind, message);
}

class BeginOp : public tf::OpKernel {
 public:
  explicit BeginOp(tf::OpKernelConstruction* context) : tf::OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("driver", &number_));
    OP_REQUIRES_OK(context, context->GetAttr("velocities", &velocities_));
  }

  void Compute(tf::OpKernelContext* context) override {
    HvdSparseDriver driver{};
    OP_REQUIRES_OK(context, Drivers::Get().Find(number_, &driver));
    StepMemory memory;
    absl::Status status = OwnMemory(context, 0, &memory.residual);
    if (status.ok()) status = OwnMemory(context, 1, &memory.states);
    if (status.ok() && velocities_ > 0) status = OwnMemory(context, 3, &memory.velocity);
    if (status.ok()) {
      Drivers::Get().Keep(number_, memory);
      const HvdSparseBuffer velocity =
          velocities_ > 0 ? BufferOf(memory.velocity) : HvdSparseBuffer{nullptr, 0, 0};
      driver.begin(driver.driver, BufferOf(memory.residual), BufferOf(memory.states), velocity,
                   context->input(2).scalar<float>()(), &Note, &status);
    }
    if (!status.ok()) driver.fail(driver.driver, std::string(status.message()).c_str());
    OP_REQUIRES_OK(context, status);
    tf::Tensor* token = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, tf::TensorShape({}), &token));
    token->scalar<std::int32_t>()() = 0;
  }

 private:
  std::int64_t number_ = 0;
  int velocities_ = 0;
};

class ExchangeOp : public tf::AsyncOpKernel {
 public:
  explicit ExchangeOp(tf::OpKernelConstruction* context) : tf::AsyncOpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("driver", &number_));
    OP_REQUIRES_OK(context, context->GetAttr("piece", &piece_));
  }

  void ComputeAsync(tf::OpKernelContext* context, DoneCallback done) override {
    HvdSparseDriver driver{};
    OP_REQUIRES_OK_ASYNC(context, Drivers::Get().Find(number_, &driver), done);
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
    Flight* const flying = flight.release();
    const std::int32_t passes =
        driver.launch(driver.driver, piece_, gradients.data(),
                      static_cast<std::int32_t>(gradients.size()), &ExchangeOp::Land, flying);
    if (passes == 0) return;  // and perhaps it has landed already
    flying->passes->scalar<bool>()() = true;
    Land(flying, HVD_SPARSE_DONE, "");
  }

 private:
  /// What lives until the step is over, or the piece has passed.
  struct Flight {
    tf::OpKernelContext* context = nullptr;
    DoneCallback done;
    std::vector<tf::Tensor> gradients;  // the outputs; exchanged in place
    tf::Tensor* passes = nullptr;       // the last output
    tf::CancellationToken token = tf::CancellationManager::kInvalidToken;
    bool registered = false;
  };

  static absl::Status Prepare(tf::OpKernelContext* context, Flight* flight) {
    const int count = context->num_inputs() - 1;  // and the token
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
    const absl::Status status =
        context->allocate_output(count, tf::TensorShape({}), &flight->passes);
    if (status.ok()) flight->passes->scalar<bool>()() = false;
    return status;
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
  int piece_ = 0;
};

class SummedOp : public tf::OpKernel {
 public:
  explicit SummedOp(tf::OpKernelConstruction* context) : tf::OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("driver", &number_));
  }

  void Compute(tf::OpKernelContext* context) override {
    HvdSparseDriver driver{};
    OP_REQUIRES_OK(context, Drivers::Get().Find(number_, &driver));
    const int count = context->num_inputs() - 1;  // and the token
    std::vector<HvdSparseBuffer> sums;
    for (int i = 0; i < count; ++i) {
      sums.push_back(BufferOf(context->input(i)));
      context->set_output(i, context->input(i));
    }
    driver.summed(driver.driver, sums.data(), count);
  }

 private:
  std::int64_t number_ = 0;
};

class EndOp : public tf::AsyncOpKernel {
 public:
  explicit EndOp(tf::OpKernelConstruction* context) : tf::AsyncOpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("driver", &number_));
  }

  void ComputeAsync(tf::OpKernelContext* context, DoneCallback done) override {
    HvdSparseDriver driver{};
    OP_REQUIRES_OK_ASYNC(context, Drivers::Get().Find(number_, &driver), done);
    driver.end(driver.driver, &EndOp::Land, new Flight{context, std::move(done), number_});
  }

 private:
  struct Flight {
    tf::OpKernelContext* context;
    DoneCallback done;
    std::int64_t number;
  };

  static void Land(void* landed, std::int32_t kind, const char* message) {
    const std::unique_ptr<Flight> flight(static_cast<Flight*>(landed));
    Drivers::Get().Keep(flight->number, {});
    flight->context->SetStatus(StatusOf(kind, message));
    flight->done();
  }

  std::int64_t number_ = 0;
};

REGISTER_OP("HvdSparseBegin")
    .Attr("driver: int")
    .Input("residual: resource")
    .Input("states: resource")
    .Attr("velocities: int >= 0")
    .Input("decay: float")
    .Input("velocity: velocities * resource")
    .Output("token: int32")
    .SetIsStateful()
    .SetShapeFn([](tf::shape_inference::InferenceContext* context) {
      context->set_output(0, context->Scalar());
      tf::shape_inference::ShapeHandle scalar;
      return context->WithRank(context->input(2), 0, &scalar);
    })
    .Doc("Begins a step: residual, states and velocity are the exchange's until it ends.");

REGISTER_OP("HvdSparseExchange")
    .Attr("T: list({float, double, half, bfloat16}) >= 1")
    .Attr("driver: int")
    .Attr("piece: int")
    .Input("gradients: T")
    .Input("token: int32")
    .Output("averages: T")
    .Output("passes: bool")
    .SetShapeFn([](tf::shape_inference::InferenceContext* context) {
      const int count = context->num_inputs() - 1;
      for (int i = 0; i < count; ++i) context->set_output(i, context->input(i));
      context->set_output(count, context->Scalar());
      return absl::OkStatus();
    })
    .Doc("Averages, once all pieces of the step are there; or gradients that pass, at once.");

REGISTER_OP("HvdSparseSummed")
    .Attr("T: list({float, double, half, bfloat16}) >= 1")
    .Attr("driver: int")
    .Input("sums: T")
    .Input("token: int32")
    .Output("same: T")
    .SetShapeFn([](tf::shape_inference::InferenceContext* context) {
      for (int i = 0; i + 1 < context->num_inputs(); ++i) context->set_output(i, context->input(i));
      return absl::OkStatus();
    })
    .Doc("The sums as they are; a step in which one is not finite is refused.");

REGISTER_OP("HvdSparseEnd")
    .Attr("driver: int")
    .Attr("velocities: int >= 0")
    .Input("residual: resource")
    .Input("states: resource")
    .Input("velocity: velocities * resource")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::NoOutputs)
    .Doc("Ends a step, all of whose gradients are there.");

REGISTER_KERNEL_BUILDER(Name("HvdSparseBegin").Device(tf::DEVICE_CPU), BeginOp);
REGISTER_KERNEL_BUILDER(Name("HvdSparseExchange").Device(tf::DEVICE_CPU), ExchangeOp);
REGISTER_KERNEL_BUILDER(Name("HvdSparseSummed").Device(tf::DEVICE_CPU), SummedOp);
REGISTER_KERNEL_BUILDER(Name("HvdSparseEnd").Device(tf::DEVICE_CPU), EndOp);

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
