/// hvd_sparse/tensorflow/_ops.so: ops that pass gradients to the core.
///
///     HvdSparseBegin      once a step: residual and states in, and velocity if there is momentum
///     HvdSparseExchange   gradients in; averages out, or the gradients if they are sent dense
///     HvdSparseSummed     for sums formed by Horovod: the core checks that they are finite, or the
///                         host has checked them
///     HvdSparseEnd        once all gradients are there: states out
///
/// Only the first and the last op take the variables and are registered as stateful: TensorFlow
/// runs stateful ops one after the other, but the exchanges of a step wait for each other. A token
/// orders the ops between after the first op and keeps them from being folded away; the last
/// op waits for all of them.
///
/// On a GPU, residual, velocity, gradients and the scratch memory of a step lie there, all else in
/// CPU memory.
///
/// Nothing is chosen, moved or planned here. Ops find a driver, a table of C functions
/// (driver_interface.h), by a number that Python has given it: so this library is linked to
/// TensorFlow alone, and the core to no framework.

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "csrc/bindings/driver_interface.h"
#include "csrc/bindings/tensorflow_drivers.h"
#include "csrc/bindings/tensorflow_place.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace hvd_sparse {
namespace {

constexpr char kOtherFailed[] = "another operation of this step failed";

/// The HvdSparseDone of functions that call it before they return: stores the result in `status`.
void Note(void* status, std::int32_t kind, const char* message) {
  *static_cast<absl::Status*>(status) = Guarded([&] { return StatusOf(kind, message); });
}

class BeginOp : public tf::OpKernel {
 public:
  explicit BeginOp(tf::OpKernelConstruction* context) : tf::OpKernel(context), place_(context) {
    OP_REQUIRES_OK(context, context->GetAttr("driver", &number_));
    OP_REQUIRES_OK(context, context->GetAttr("velocities", &velocities_));
  }

  void Compute(tf::OpKernelContext* context) override {
    Drivers::Use driver;
    OP_REQUIRES_OK(context, Drivers::Get().Find(number_, &driver));
    const absl::Status status = Guarded([&] { return Begin(context, *driver); });
    if (!status.ok()) Fail(*driver, status);
    OP_REQUIRES_OK(context, status);
  }

 private:
  absl::Status Begin(tf::OpKernelContext* context, const HvdSparseDriver& driver) const {
    OpMemory memory;
    HvdSparseOrigin origin{};
    tf::Tensor *token = nullptr, *answer = nullptr;
    absl::Status status = place_.Find(context, &origin);
    if (status.ok()) status = place_.OwnMemory(context, 0, &memory.residual);
    if (status.ok() && velocities_ > 0) status = place_.OwnMemory(context, 3, &memory.velocity);
    if (status.ok()) status = CopyOfStates(context, &memory.states);
    if (status.ok()) {
      const tf::TensorShape room({driver.room(driver.driver)});
      status = context->allocate_temp(tf::DT_FLOAT, room, &memory.room);
    }
    if (status.ok()) status = context->allocate_output(0, tf::TensorShape({}), &token);
    if (status.ok()) status = context->allocate_output(1, tf::TensorShape({}), &answer);
    if (!status.ok()) return status;
    const HvdSparseBuffer velocity =
        velocities_ > 0 ? BufferOf(memory.velocity) : HvdSparseBuffer{nullptr, 0, 0};
    const std::int32_t check_finite =
        driver.begin(driver.driver, origin, BufferOf(memory.residual), BufferOf(memory.states),
                     velocity, BufferOf(memory.room), FactorsOf(context->input(2)), &Note, &status);
    // If this failed, the previous step may not have ended yet: it uses the memory kept so far.
    if (status.ok()) Drivers::Get().Keep(number_, std::move(memory));
    token->scalar<std::int32_t>()() = 0;
    answer->scalar<bool>()() = check_finite != 0;
    return status;
  }

  static HvdSparseFactors FactorsOf(const tf::Tensor& input) {
    const auto factors = input.vec<float>();
    return {factors(0), factors(1), factors(2)};
  }

  static absl::Status CopyOfStates(tf::OpKernelContext* context, tf::Tensor* states) {
    const tf::Tensor& before = context->input(1);
    tf::AllocatorAttributes on_cpu;
    on_cpu.set_on_host(true);
    const absl::Status status =
        context->allocate_temp(before.dtype(), before.shape(), states, on_cpu);
    if (status.ok()) std::memcpy(states->data(), before.data(), before.TotalBytes());
    return status;
  }

  const KernelPlace place_;
  std::int64_t number_ = 0;
  int velocities_ = 0;
};

class ExchangeOp : public tf::AsyncOpKernel {
 public:
  explicit ExchangeOp(tf::OpKernelConstruction* context)
      : tf::AsyncOpKernel(context), place_(context) {
    OP_REQUIRES_OK(context, context->GetAttr("driver", &number_));
    OP_REQUIRES_OK(context, context->GetAttr("op", &op_));
  }

  void ComputeAsync(tf::OpKernelContext* context, DoneCallback done) override {
    Drivers::Use driver;
    OP_REQUIRES_OK_ASYNC(context, Drivers::Get().Find(number_, &driver), done);
    std::unique_ptr<Flight> flight;
    std::vector<HvdSparseBuffer> gradients;
    const absl::Status ready = Guarded([&] {
      flight = std::make_unique<Flight>();
      flight->context = context;
      const absl::Status status = Prepare(context, flight.get(), &gradients);
      return status.ok() ? Register(flight.get()) : status;
    });
    if (!ready.ok()) {
      Fail(*driver, ready);
      context->SetStatus(ready);
      return done();
    }
    flight->done = std::move(done);
    Flight* const flying = flight.release();
    const std::int32_t is_dense =
        driver->launch(driver->driver, op_, flying->origin, gradients.data(),
                       static_cast<std::int32_t>(gradients.size()), &ExchangeOp::Land, flying);
    if (is_dense == 0) return;  // and Land may have been called already
    flying->is_dense->scalar<bool>()() = true;
    Land(flying, HVD_SPARSE_DONE, "");
  }

 private:
  /// State of one call, which lives until the step has ended or the gradients are sent dense.
  struct Flight {
    tf::OpKernelContext* context = nullptr;
    DoneCallback done;
    HvdSparseOrigin origin{};
    std::vector<tf::Tensor> gradients;  // the outputs; exchanged in place
    tf::Tensor* is_dense = nullptr;     // the last output
    tf::CancellationToken token = tf::CancellationManager::kInvalidToken;
    bool registered = false;
  };

  absl::Status Prepare(tf::OpKernelContext* context, Flight* flight,
                       std::vector<HvdSparseBuffer>* gradients) const {
    absl::Status status = place_.Find(context, &flight->origin);
    if (!status.ok()) return status;
    const int count = context->num_inputs() - 1;  // the last input is the token
    for (int i = 0; i < count; ++i) {
      const tf::Tensor& input = context->input(i);
      tf::Tensor* output = nullptr;
      int forwarded = -1;
      status =
          context->forward_input_or_allocate_output({i}, i, input.shape(), &output, &forwarded);
      if (status.ok() && forwarded < 0) status = place_.Copy(context, input, output);
      if (!status.ok()) return status;
      flight->gradients.push_back(*output);
      gradients->push_back(BufferOf(*output));
    }
    status = context->allocate_output(count, tf::TensorShape({}), &flight->is_dense);
    if (status.ok()) flight->is_dense->scalar<bool>()() = false;
    return status;
  }

  /// Called last before the launch: if a later action failed, the callback would outlive `flight`.
  absl::Status Register(Flight* flight) const {
    tf::CancellationManager* const manager = flight->context->cancellation_manager();
    if (manager == nullptr) return absl::OkStatus();
    flight->token = manager->get_cancellation_token();
    flight->registered = manager->RegisterCallback(
        flight->token, [number = number_] { Cancel(number, kOtherFailed); });
    return flight->registered ? absl::OkStatus() : absl::CancelledError(kOtherFailed);  // too late
  }

  static void Land(void* landed, std::int32_t kind, const char* message) {
    std::unique_ptr<Flight> flight(static_cast<Flight*>(landed));
    tf::OpKernelContext* const context = flight->context;
    if (flight->registered) context->cancellation_manager()->DeregisterCallback(flight->token);
    context->SetStatus(Guarded([&] { return StatusOf(kind, message); }));
    const DoneCallback done = std::move(flight->done);
    flight.reset();  // now TensorFlow alone holds the outputs, and may reuse their memory
    done();
  }

  const KernelPlace place_;
  std::int64_t number_ = 0;
  int op_ = 0;
};

class SummedOp : public tf::OpKernel {
 public:
  explicit SummedOp(tf::OpKernelConstruction* context) : tf::OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("driver", &number_));
    OP_REQUIRES_OK(context, context->GetAttr("host_checked", &host_checked_));
    OP_REQUIRES(context, host_checked_ == 1 || !KernelPlace(context).on_gpu(),
                absl::InvalidArgumentError(
                    "host_checked must be 1 on a GPU, where the core cannot look at the sums"));
  }

  void Compute(tf::OpKernelContext* context) override {
    Drivers::Use driver;
    OP_REQUIRES_OK(context, Drivers::Get().Find(number_, &driver));
    const absl::Status status = Guarded([&] { return Tell(context, *driver); });
    if (!status.ok()) Fail(*driver, status);
    OP_REQUIRES_OK(context, status);
  }

 private:
  absl::Status Tell(tf::OpKernelContext* context, const HvdSparseDriver& driver) const {
    const int count = context->num_inputs() - host_checked_ - 1;  // the last input is the token
    std::vector<HvdSparseBuffer> sums;
    for (int i = 0; i < count; ++i) {
      sums.push_back(BufferOf(context->input(i)));
      context->set_output(i, context->input(i));
    }
    absl::Status status;
    if (host_checked_ == 0) {
      driver.summed(driver.driver, sums.data(), count, &Note, &status);
    } else {
      driver.summed_as(driver.driver, context->input(count).scalar<bool>()() ? 1 : 0);
    }
    return status;
  }

  std::int64_t number_ = 0;
  int host_checked_ = 0;
};

class EndOp : public tf::AsyncOpKernel {
 public:
  explicit EndOp(tf::OpKernelConstruction* context) : tf::AsyncOpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("driver", &number_));
  }

  void ComputeAsync(tf::OpKernelContext* context, DoneCallback done) override {
    Drivers::Use driver;
    OP_REQUIRES_OK_ASYNC(context, Drivers::Get().Find(number_, &driver), done);
    std::unique_ptr<Flight> flight;
    const absl::Status ready = Guarded([&] {
      flight = std::make_unique<Flight>();
      return absl::OkStatus();
    });
    if (!ready.ok()) {
      Fail(*driver, ready);
      context->SetStatus(ready);
      return done();
    }
    *flight = {context, std::move(done), *driver, number_};
    driver->end(driver->driver, &EndOp::Land, flight.release());
  }

 private:
  struct Flight {
    tf::OpKernelContext* context = nullptr;
    DoneCallback done;
    HvdSparseDriver driver{};
    std::int64_t number = 0;
  };

  static void Land(void* landed, std::int32_t kind, const char* message) {
    const std::unique_ptr<Flight> flight(static_cast<Flight*>(landed));
    tf::OpKernelContext* const context = flight->context;
    bool is_open = false;  // if false, there is no step to fail
    const absl::Status status = Guarded([&] {
      const OpMemory memory = Drivers::Get().Take(flight->number);
      is_open = memory.states.dims() == 2;
      if (kind != HVD_SPARSE_DONE) return StatusOf(kind, message);
      if (!is_open) return Closed();
      context->set_output(0, memory.states);
      return absl::OkStatus();
    });
    if (!status.ok() && is_open && kind == HVD_SPARSE_DONE) Fail(flight->driver, status);
    context->SetStatus(status);
    flight->done();
  }

  std::int64_t number_ = 0;
};

REGISTER_OP("HvdSparseBegin")
    .Attr("driver: int")
    .Input("residual: resource")
    .Input("states: float")
    .Attr("velocities: int >= 0")
    .Input("factors: float")
    .Input("velocity: velocities * resource")
    .Output("token: int32")
    .Output("check_finite: bool")
    .SetIsStateful()
    .SetShapeFn([](tf::shape_inference::InferenceContext* context) {
      context->set_output(0, context->Scalar());
      context->set_output(1, context->Scalar());
      tf::shape_inference::ShapeHandle factors;
      const auto three = context->Vector(3);
      return context->Merge(context->input(2), three, &factors);
    })
    .Doc(
        "Begins a step. Factors: decay, momentum, dampening. Residual and velocity are the "
        "exchange's until it ends. True if dense sums must be checked for values that are not "
        "finite.");

REGISTER_OP("HvdSparseExchange")
    .Attr("T: list({float, double, half, bfloat16}) >= 1")
    .Attr("driver: int")
    .Attr("op: int")
    .Input("gradients: T")
    .Input("token: int32")
    .Output("averages: T")
    .Output("is_dense: bool")
    .SetShapeFn([](tf::shape_inference::InferenceContext* context) {
      const int count = context->num_inputs() - 1;
      for (int i = 0; i < count; ++i) context->set_output(i, context->input(i));
      context->set_output(count, context->Scalar());
      return absl::OkStatus();
    })
    .Doc("Averages, once all gradients of the step are there; or those sent dense, at once.");

REGISTER_OP("HvdSparseSummed")
    .Attr("T: list({float, double, half, bfloat16}) >= 1")
    .Attr("driver: int")
    .Attr("host_checked: int >= 0")
    .Input("sums: T")
    .Input("finite: host_checked * bool")
    .Input("token: int32")
    .Output("same: T")
    .SetShapeFn([](tf::shape_inference::InferenceContext* context) {
      for (int i = 0; i < context->num_outputs(); ++i) context->set_output(i, context->input(i));
      return absl::OkStatus();
    })
    .Doc("The sums as they are; a step in which one is not finite is refused.");

REGISTER_OP("HvdSparseEnd")
    .Attr("driver: int")
    .Attr("velocities: int >= 0")
    .Input("residual: resource")
    .Input("velocity: velocities * resource")
    .Output("states: float")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::UnknownShape)
    .Doc("Ends a step, all of whose gradients are there. States as they are now.");

REGISTER_KERNEL_BUILDER(Name("HvdSparseBegin").Device(tf::DEVICE_CPU), BeginOp);
REGISTER_KERNEL_BUILDER(Name("HvdSparseExchange").Device(tf::DEVICE_CPU), ExchangeOp);
REGISTER_KERNEL_BUILDER(Name("HvdSparseSummed").Device(tf::DEVICE_CPU), SummedOp);
REGISTER_KERNEL_BUILDER(Name("HvdSparseEnd").Device(tf::DEVICE_CPU), EndOp);

// Handles of variables lie in CPU memory, the variables themselves on the GPU.
REGISTER_KERNEL_BUILDER(Name("HvdSparseBegin")
                            .Device(tf::DEVICE_GPU)
                            .HostMemory("residual")
                            .HostMemory("states")
                            .HostMemory("factors")
                            .HostMemory("velocity")
                            .HostMemory("token")
                            .HostMemory("check_finite"),
                        BeginOp);
REGISTER_KERNEL_BUILDER(
    Name("HvdSparseExchange").Device(tf::DEVICE_GPU).HostMemory("token").HostMemory("is_dense"),
    ExchangeOp);
REGISTER_KERNEL_BUILDER(
    Name("HvdSparseSummed").Device(tf::DEVICE_GPU).HostMemory("finite").HostMemory("token"),
    SummedOp);
REGISTER_KERNEL_BUILDER(Name("HvdSparseEnd")
                            .Device(tf::DEVICE_GPU)
                            .HostMemory("residual")
                            .HostMemory("velocity")
                            .HostMemory("states"),
                        EndOp);

}  // namespace
}  // namespace hvd_sparse

extern "C" {

__attribute__((visibility("default"))) void hvd_sparse_add_driver(std::int64_t number,
                                                                  const HvdSparseDriver* driver) {
  hvd_sparse::Drivers::Get().Add(number, *driver);
}

__attribute__((visibility("default"))) void hvd_sparse_close_driver(std::int64_t number) {
  hvd_sparse::Drivers::Get().Close(number);
}

__attribute__((visibility("default"))) void hvd_sparse_await_ops(std::int64_t number) {
  hvd_sparse::Drivers::Get().AwaitUses(number);
}

__attribute__((visibility("default"))) std::int32_t hvd_sparse_amid_op() {
  return hvd_sparse::Drivers::Use::OnThisThread() ? 1 : 0;
}

__attribute__((visibility("default"))) void hvd_sparse_remove_driver(std::int64_t number) {
  hvd_sparse::Drivers::Get().Remove(number);
}

}  // extern "C"
