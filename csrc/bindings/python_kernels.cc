/// Bindings of the kernels and wire formats that Python measures.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <string>

#include "csrc/base/error.h"
#include "csrc/bindings/python_buffers.h"
#include "csrc/bindings/python_module.h"
#include "csrc/devices/kernels_for.h"
#include "csrc/kernels/kernels.h"
#include "csrc/wire/value_coding.h"
#include "csrc/wire/wire_format.h"

namespace py = pybind11;

namespace hvd_sparse {
namespace {

template <typename T>
py::array_t<T> Copy(const T* data, std::int64_t size) {
  return py::array_t<T>(static_cast<py::ssize_t>(size), data);
}

/// A message of a wire format and its memory.
class Coder {
 public:
  Coder(bool packed, const std::string& values, std::int64_t numel)
      : format_{packed, ValuesFrom(values)}, numel_(numel) {}

  void Narrow(SparseBlock& block) const {
    RoundValues(format_.values, block.values(), block.count(), nullptr);
  }

  std::int64_t Encode(const SparseBlock& block) {
    message_.Reserve(block.message_bytes());
    bytes_ = EncodeBlock(block, format_, Content::kSums, message_.data());
    return bytes_;
  }

  py::bytes Message() const {
    return {reinterpret_cast<const char*>(message_.data()), static_cast<std::size_t>(bytes_)};
  }

  /// Sets the message to any bytes, valid or not.
  void SetMessage(const std::string& message) {
    bytes_ = static_cast<std::int64_t>(message.size());
    message_.Reserve(bytes_);
    std::copy(message.begin(), message.end(), message_.data());
  }

  void Decode(SparseBlock& block) const {
    Require(bytes_ > 0, "nothing was encoded yet");
    const std::int64_t count = SparseBlock::ReadHeader(message_.data(), bytes_).count;
    block.Reset(std::clamp<std::int64_t>(count, 0, bytes_));  // no entry takes less than a byte
    DecodeBlock(message_.data(), bytes_, numel_, &block);
  }

 private:
  const WireFormat format_;
  const std::int64_t numel_;
  Buffer message_;
  std::int64_t bytes_ = 0;
};

using Indices = py::array_t<Index, py::array::c_style | py::array::forcecast>;
using ValueArray = py::array_t<float, py::array::c_style | py::array::forcecast>;

std::unique_ptr<SparseBlock> MakeBlock(const Indices& indices, const ValueArray& values) {
  Require(indices.size() == values.size(), "values must have size ", indices.size(), ", got ",
          values.size());
  auto block = std::make_unique<SparseBlock>();
  block->Reset(indices.size());
  std::copy_n(indices.data(), indices.size(), block->indices());
  std::copy_n(values.data(), values.size(), block->values());
  block->Finish(indices.size());
  return block;
}

}  // namespace

void BindKernels(py::module_& m) {
  py::class_<SparseBlock>(m, "Block", "Entries of a bucket: ascending indices and their values.")
      .def(py::init(&MakeBlock), py::arg("indices"), py::arg("values"))
      .def_property_readonly("count", &SparseBlock::count)
      .def("indices", [](const SparseBlock& self) { return Copy(self.indices(), self.count()); })
      .def("values", [](const SparseBlock& self) { return Copy(self.values(), self.count()); });

  py::class_<Coder>(m, "Coder", "A message of a wire format, and the memory for it.")
      .def(py::init<bool, const std::string&, std::int64_t>(), py::kw_only(), py::arg("packed"),
           py::arg("values"), py::arg("numel"))
      .def("narrow", &Coder::Narrow, py::arg("block"), "Rounds the values to those that are sent.")
      .def("encode", &Coder::Encode, py::arg("block"), "Makes the message; returns its bytes.")
      .def("decode", &Coder::Decode, py::arg("block"), "Reads the message into a block.")
      .def_property("message", &Coder::Message, &Coder::SetMessage, "The bytes that are sent.");

  m.def(
      "merge",
      [](const SparseBlock& own, const SparseBlock& theirs, SparseBlock& out) {
        CpuKernels().Merge(own, theirs, &out);
      },
      py::arg("own"), py::arg("theirs"), py::arg("out"), "The union of two blocks.");

  m.def(
      "keep_top_k",
      [](SparseBlock& block, std::int64_t k) {
        block.Finish(CpuKernels().KeepTopK(k, 0, block.count(), &block));
      },
      py::arg("block"), py::arg("k"), "Drops all but the k largest magnitudes.");

  // Points in the work of a device, with the methods of torch.cuda.Event.
  py::class_<TimedMark>(m, "TimedMark")
      .def(py::init([](const std::string& device) {
             return KernelsFor(DeviceFrom(device)).NewTimedMark();
           }),
           py::arg("device"))
      .def("record", &TimedMark::Record, py::arg("stream"))
      .def("query", &TimedMark::Passed)
      .def(
          "elapsed_time",
          [](const TimedMark& self, const TimedMark& end) { return 1e3 * self.SecondsUntil(end); },
          py::arg("end_event"), "Milliseconds until another one of the device.");
}

}  // namespace hvd_sparse
