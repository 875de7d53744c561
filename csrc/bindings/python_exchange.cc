/// Bindings of exchanges; hvd_sparse/exchange/exchange.py wraps them with types.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/bindings/python_buffers.h"
#include "csrc/bindings/python_module.h"
#include "csrc/comm/lifeline.h"
#include "csrc/comm/loopback_communicator.h"
#include "csrc/comm/patience.h"
#include "csrc/comm/tcp_communicator.h"
#include "csrc/exchange/exchange.h"
#ifdef HVD_SPARSE_WITH_MPI
#include "csrc/comm/mpi_communicator.h"
#endif

namespace py = pybind11;

namespace hvd_sparse {
namespace {

template <typename... Arguments>
OwnProcessPointer<Exchange> MakeExchange(Arguments&&... arguments) {
  return OwnProcessPointer<Exchange>(new Exchange(std::forward<Arguments>(arguments)...));
}

SelectOn SelectOnFrom(const std::string& name) {
  Require(name == "caller" || name == "engine", "select_on must be 'caller' or 'engine', got '",
          name, "'");
  return name == "caller" ? SelectOn::kCaller : SelectOn::kEngine;
}

}  // namespace

void BindExchange(py::module_& m) {
  py::class_<Lifeline, std::shared_ptr<Lifeline>>(m, "Lifeline")
      .def(py::init<int, int, const std::string&>(), py::arg("rank"), py::arg("size"),
           py::arg("name"))
      .def("listen", &Lifeline::Listen)
      .def("connect", &Lifeline::Connect, py::arg("address"), py::arg("seconds"),
           py::call_guard<py::gil_scoped_release>());

  py::class_<WaitLimits>(m, "WaitLimits", "How long a rank waits for peers that are alive.")
      .def_static("from_environment", &WaitLimits::FromEnvironment,
                  py::arg("group_timeout") = std::nullopt)
      .def_readonly("warn_seconds", &WaitLimits::warn_seconds, "Then it warns; 0: never.")
      .def_readonly("fail_seconds", &WaitLimits::fail_seconds, "Then it gives up; 0: never.")
      .def("timeout_message", &WaitLimits::TimeoutMessage, py::arg("what"));

  py::class_<RoundTimes>(m, "RoundTimes")
      .def_readonly("name", &RoundTimes::name)
      .def_readonly("begin", &RoundTimes::begin)
      .def_readonly("end", &RoundTimes::end)
      .def_readonly("bytes_sent", &RoundTimes::bytes_sent)
      .def_readonly("bytes_received", &RoundTimes::bytes_received);

  const auto share_of = [](std::int64_t entries, const BucketStats& stats) {
    return stats.numel == 0 ? 0.0 : static_cast<double>(entries) / static_cast<double>(stats.numel);
  };
  py::class_<BucketStats>(m, "BucketStats", "Statistics of one bucket in one step, on this rank.")
      .def_readonly("number", &BucketStats::number)
      .def_readonly("bucket", &BucketStats::bucket, "Bucket name.")
      .def_readonly("step", &BucketStats::step, "Number of steps of this bucket before this one.")
      .def_property_readonly(
          "route", [](const BucketStats& self) { return NameOf(self.route); },
          "\"calls\" (blocks were sent from CPU memory) or \"device rounds\" (from GPU to GPU).")
      .def_readonly("numel", &BucketStats::numel, "Entries of the bucket.")
      .def_readonly("asked", &BucketStats::asked,
                    "Entries asked for (the sum of k over its segments).")
      .def_readonly("selected", &BucketStats::selected, "Entries that this rank selected.")
      .def_readonly("reduced", &BucketStats::reduced, "Entries of the sum, the same on every rank.")
      .def_readonly("averaged", &BucketStats::averaged,
                    "Entries that this rank averaged by a rule that bears bad ranks; 0 without.")
      .def_readonly("left_out", &BucketStats::left_out,
                    "By rank, how many of them its values did not go into.")
      .def_readonly("bytes_sent", &BucketStats::bytes_sent,
                    "Bytes that this rank sent, as coded, headers included.")
      .def_readonly("bytes_received", &BucketStats::bytes_received,
                    "Bytes that this rank received.")
      .def_readonly("select_seconds", &BucketStats::select_seconds,
                    "Seconds to accumulate and select.")
      .def_readonly("exchange_seconds", &BucketStats::exchange_seconds,
                    "Seconds to exchange, settle and scatter.")
      .def_property_readonly(
          "density_asked",
          [share_of](const BucketStats& self) { return share_of(self.asked, self); },
          "Fraction of the entries asked for.")
      .def_property_readonly(
          "density_reached",
          [share_of](const BucketStats& self) { return share_of(self.selected, self); },
          "Fraction of the entries that this rank selected.")
      .def_readonly("ready", &BucketStats::ready)
      .def_readonly("select_begin", &BucketStats::select_begin)
      .def_readonly("select_end", &BucketStats::select_end)
      .def_readonly("exchange_begin", &BucketStats::exchange_begin)
      .def_readonly("settle_begin", &BucketStats::settle_begin)
      .def_readonly("exchange_end", &BucketStats::exchange_end)
      .def_readonly("wait_begin", &BucketStats::wait_begin)
      .def_readonly("wait_end", &BucketStats::wait_end)
      .def_readonly("rounds", &BucketStats::rounds);

  py::class_<LoopbackWorld, std::shared_ptr<LoopbackWorld>>(
      m, "LoopbackWorld", "What ranks that are threads of this process share.")
      .def(py::init<int, double>(), py::arg("size"), py::arg("timeout_seconds") = 60.0)
      .def_property_readonly("size", &LoopbackWorld::size);

  py::class_<TcpPort>(m, "TcpPort", "Where a rank can be found by others, in one exchange.")
      .def(py::init<>())
      .def_property_readonly("address", &TcpPort::Address);

  py::class_<Exchange, OwnProcessPointer<Exchange>>(m, "Exchange")
      .def_static(
          "over_loopback",
          [](std::shared_ptr<LoopbackWorld> world, int rank, const std::string& select_on,
             int local_size, bool checks) {
            Nodes nodes = Nodes::Of(world->size(), local_size);
            return MakeExchange(std::make_unique<LoopbackCommunicator>(std::move(world), rank),
                                SelectOnFrom(select_on), std::move(nodes), checks);
          },
          py::arg("world"), py::arg("rank"), py::kw_only(), py::arg("select_on"),
          py::arg("local_size"), py::arg("checks") = false)
      .def_static(
          "over_tcp",
          [](int rank, std::vector<std::string> addresses, TcpPort& port,
             std::shared_ptr<Lifeline> lifeline, const WaitLimits& limits,
             const std::string& select_on, std::vector<int> nodes, bool checks) {
            TcpOptions options;
            options.rank = rank;
            options.addresses = std::move(addresses);
            options.limits = limits;
            return MakeExchange(MakeTcpCommunicator(options, &port, std::move(lifeline)),
                                SelectOnFrom(select_on), Nodes(std::move(nodes)), checks);
          },
          py::arg("rank"), py::kw_only(), py::arg("addresses"), py::arg("port"),
          py::arg("lifeline"), py::arg("limits"), py::arg("select_on"), py::arg("nodes"),
          py::arg("checks"))
#ifdef HVD_SPARSE_WITH_MPI
      .def_static(
          "over_mpi",
          [](std::vector<int> world_ranks, int tag, std::shared_ptr<Lifeline> lifeline,
             const WaitLimits& limits, std::int64_t max_message_bytes, const std::string& select_on,
             std::vector<int> machines, std::vector<int> nodes, bool checks) {
            const py::gil_scoped_release release;
            MpiOptions options;
            options.world_ranks = std::move(world_ranks);
            options.machines = std::move(machines);
            options.tag = tag;
            options.limits = limits;
            options.max_message_bytes = max_message_bytes;
            return MakeExchange(MakeMpiCommunicator(options, std::move(lifeline)),
                                SelectOnFrom(select_on), Nodes(std::move(nodes)), checks);
          },
          py::arg("world_ranks"), py::kw_only(), py::arg("tag"), py::arg("lifeline"),
          py::arg("limits"), py::arg("max_message_bytes"), py::arg("select_on"),
          py::arg("machines"), py::arg("nodes"), py::arg("checks"))
#endif
      .def(
          "add_bucket",
          [](Exchange& self, std::string name, std::vector<std::int64_t> gradient_numels,
             std::vector<std::int64_t> segment_numels, std::vector<std::int64_t> max_ks,
             std::string sparsifier, SparsifierOptions sparsifier_options, std::string collective,
             const std::map<std::string, double>& collective_options, bool packed,
             const std::string& values, const std::string& device, bool nodes_first,
             bool by_devices) {
            const bool is_sparse = FindCollective(collective).IsSparse();
            return self.AddBucket(
                {std::move(name),
                 std::move(gradient_numels),
                 std::move(segment_numels),
                 std::move(max_ks),
                 std::move(sparsifier),
                 std::move(sparsifier_options),
                 std::move(collective),
                 CollectiveOptions::From(collective_options),
                 {packed, is_sparse ? ValuesFrom(values) : DenseValuesFrom(values)},
                 DeviceFrom(device),
                 nodes_first,
                 by_devices});
          },
          py::arg("name"), py::kw_only(), py::arg("gradient_numels"), py::arg("segment_numels"),
          py::arg("max_ks"), py::arg("sparsifier"), py::arg("sparsifier_options"),
          py::arg("collective"), py::arg("collective_options"), py::arg("packed"),
          py::arg("values"), py::arg("device") = "cpu", py::arg("nodes_first") = false,
          py::arg("by_devices") = true)
      .def_property_readonly("local_size",
                             [](const Exchange& self) { return self.nodes().LocalSize(); })
      .def_property_readonly("checks", &Exchange::checks)
      .def_property_readonly("device_memory_problem", &Exchange::DeviceMemoryProblem)
      .def("note", &Exchange::Note, py::arg("note"))
      .def("clear_buckets", &Exchange::ClearBuckets)
      .def("swap", &Exchange::Swap, py::arg("peer"), py::arg("bytes"), py::arg("repetitions"),
           py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("spread_peers", &Exchange::SpreadPeers)
      .def("spread", &Exchange::Spread, py::arg("bytes"), py::arg("repetitions"),
           py::call_guard<py::gil_scoped_release>())
      .def("gather", &Exchange::Gather, py::arg("numbers"), py::kw_only(), py::arg("what"),
           py::call_guard<py::gil_scoped_release>())
      .def(
          "connect_devices",
          [](Exchange& self, const std::string& device) {
            const Device own = DeviceFrom(device);
            const py::gil_scoped_release release;
            return self.ConnectDevices(own);
          },
          py::arg("device"))
      .def_property_readonly("between_devices", &Exchange::BetweenDevices)
      .def("swap_between_devices", &Exchange::SwapBetweenDevices, py::arg("peer"), py::arg("bytes"),
           py::arg("repetitions"), py::call_guard<py::gil_scoped_release>())
      .def("merge_on_device", &Exchange::MergeOnDevice, py::arg("entries"), py::arg("repetitions"),
           py::call_guard<py::gil_scoped_release>())
      .def("copy_to_device", &Exchange::CopyToDevice, py::arg("entries"), py::arg("repetitions"),
           py::call_guard<py::gil_scoped_release>())
      .def("check", &Exchange::Check, py::call_guard<py::gil_scoped_release>())
      .def("check_at_end", &Exchange::CheckAtEnd, py::call_guard<py::gil_scoped_release>())
      .def("acknowledge", &Exchange::Acknowledge, py::call_guard<py::gil_scoped_release>())
      .def("fail", &Exchange::Fail, py::arg("reason"), py::call_guard<py::gil_scoped_release>());
}

}  // namespace hvd_sparse
