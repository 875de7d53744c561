/// Facts about the core by which Python plans: its methods, their guarantees, the rule of routes
/// and the sizes of messages. They are stated once, where the core needs them.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>

#include "csrc/base/sparse_block.h"
#include "csrc/base/types.h"
#include "csrc/bindings/python_buffers.h"
#include "csrc/bindings/python_module.h"
#include "csrc/collectives/bucket_spec.h"
#include "csrc/collectives/shard_sum.h"
#include "csrc/collectives/sparse_allreduce.h"
#include "csrc/cuda/base/device_block.h"
#include "csrc/exchange/route_of.h"
#include "csrc/sparsifiers/sparsifier.h"

namespace py = pybind11;

namespace hvd_sparse {

void BindFacts(py::module_& m) {
  m.def("sparsifiers", &SparsifierNames);

  py::class_<Collective>(m, "CollectiveFacts", "A collective's name and guarantees.")
      .def_readonly("name", &Collective::name)
      .def_readonly("delivers_all", &Collective::delivers_all)
      .def_readonly("has_owners", &Collective::has_owners)
      .def_property_readonly("is_sparse", &Collective::IsSparse);
  m.def("collective_facts", &AllCollectives);
  m.def("collectives", &CollectiveNames);
  m.def("sums_nodes", &SumsNodes, py::arg("collective"), py::kw_only(), py::arg("nodes_first"),
        py::arg("size"), py::arg("local_size"),
        "True if an exchange sums nodes of so many ranks first.");

  m.def(
      "route_of",
      [](const std::string& collective, const std::string& values, bool packed, bool connected) {
        const WireFormat wire{packed, AnyValuesFrom(values)};
        return NameOf(RouteOf(FindCollective(collective), wire, connected));
      },
      py::arg("collective"), py::kw_only(), py::arg("values"), py::arg("packed"),
      py::arg("connected"), "The route of a bucket's steps.");

  m.attr("header_bytes") = sizeof(BlockHeader);
  m.attr("index_bytes") = sizeof(Index);
  m.attr("value_bytes") = sizeof(float);
  m.attr("device_block_unit") = cuda::DeviceBlock::kUnit;
  m.attr("shard_topk_sums") = CollectiveOptions().sums;
  m.attr("shard_sum_round_bytes") = kRoundBytes;
}

}  // namespace hvd_sparse
