"""sparse_allreduce: one tensor, with a residual that the caller keeps."""

from __future__ import annotations

from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf

from hvd_sparse import _core
from hvd_sparse.compression import Compression, GTopK, as_compression
from hvd_sparse.errors import InvalidArgumentError, UnsupportedError
from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.exchange.planned_bucket import add_tensor_bucket
from hvd_sparse.exchange.reduction import Reduction, checked_reduction
from hvd_sparse.ranks.agreement import agree_on_call
from hvd_sparse.ranks.world import ProcessSetKey, World, in_elastic_job, key_of
from hvd_sparse.tensorflow import devices, ops
from hvd_sparse.tensorflow.graph_state import make_state
from hvd_sparse.tensorflow.settings import DTYPES

_DEFAULT = GTopK(density=0.01)


class _Channel:
    """The exchange of tensors of one name, size, type and compression, one tensor per step."""

    def __init__(
        self,
        label: str,
        numel: int,
        dtype: str,
        compression: Compression,
        reduction: Reduction,
        ranks: Any,
        device: str,
    ) -> None:
        world = World.from_horovod(hvd, ranks)
        call: dict[str, str | int] = {
            "name": label,
            "numel": numel,
            "dtype": dtype,
            "compression": repr(compression),
        }
        agree_on_call(world, ranks.ranks, "sparse_allreduce", **call)
        exchange = Exchange.between_ranks(world, name=f"sparse_allreduce of {label}")
        on = devices.core_name(device)
        number = add_tensor_bucket(exchange, label, numel, compression, on)
        ks = [(0, exchange.added(number).max_ks)]
        scale, output_scale = reduction.scales(world.size)
        bucket = _core.DrivenBucket(number, scale=scale, output_scale=output_scale, ks=ks, ops=1)
        self.states = make_state((1, 4), f"hvd_sparse/states/{label}")
        rules = _core.StepRules(device=on)
        self.driver = ops.Driver(exchange, [(numel, 1)], [bucket], rules=rules)


_channels: dict[tuple[str, int, str, str, bool, ProcessSetKey, str], _Channel] = {}


def sparse_allreduce(
    tensor: tf.Tensor,
    residual: tf.Variable,
    *,
    compression: Compression | type[Compression] = _DEFAULT,
    op: int = hvd.Average,
    name: str | None = None,
    process_set: Any = hvd.global_process_set,
) -> tf.Tensor:
    """Averages or sums a tensor sparsely over all ranks; the residual keeps the rest. Collective.

    For each entry, summed over the P ranks: tensor + residual before = P * result + residual after
    (for op=Sum: result + residual after). Works in eager mode and in graphs. The first call for a
    name, size, type, compression and op builds an exchange; calls that share it must be made in the
    same order on all ranks, others in any order.

    Args:
        tensor: float64, float32, float16 or bfloat16, of a known shape.
        residual: This rank's residual, float32, with as many elements as `tensor`. Zeros at first;
            updated in place. The exchange runs on its device: the CPU, or a GPU if this build has
            CUDA.
        compression: A class or an instance; its density, sparsifier, collective and wire apply. Its
            warm-up, feedback and local steps do not: a call counts no steps. Default:
            GTopK(density=0.01).
        op: Horovod's Average or Sum.
        name: A name that distinguishes tensors of the same size, and appears in errors.
        process_set: Horovod's process set, which contains this rank.

    Returns:
        A tensor of the shape and type of `tensor`, bitwise equal on all ranks.

    Raises:
        InvalidArgumentError: An argument lies outside its limits, or differs between ranks.
        UnsupportedError: The op, the type or shape of the tensor, or the residual's device is not
            supported; or the call is part of a tf.function in an elastic job.
    """
    chosen = as_compression(compression)
    reduction = checked_reduction(hvd, op=op)
    tensor = tf.convert_to_tensor(tensor)
    _check(tensor, residual)
    if in_elastic_job() and not tf.executing_eagerly():
        raise UnsupportedError(
            "sparse_allreduce cannot be part of a tf.function in an elastic job, which would keep "
            "the exchange of ranks that are gone: call it eagerly"
        )
    numel = tensor.shape.num_elements()
    device = devices.short_name(residual.device)
    devices.check_device(device)
    if numel == 0:
        return tf.identity(tensor)
    label = name or f"tensor of {numel}"
    dtype = tensor.dtype.name
    key = (label, numel, dtype, repr(chosen), reduction.averages, key_of(process_set), device)
    channel = _channels.get(key)
    if channel is None or channel.driver.closed:
        with tf.init_scope():
            channel = _Channel(label, numel, dtype, chosen, reduction, process_set, device)
            _channels[key] = channel
    driver = channel.driver.number
    token = ops.begin(residual, channel.states, driver=driver, device=device).token
    (result,), _ = ops.exchange([tensor], token, driver=driver, op=0, device=device)
    with tf.control_dependencies([result]):
        end = ops.end(residual, channel.states, driver=driver, device=device)
    with tf.control_dependencies([end]):
        return tf.identity(result)


def _check(tensor: tf.Tensor, residual: tf.Variable) -> None:
    if tensor.dtype not in DTYPES:
        raise UnsupportedError(
            f"tensor is {tensor.dtype.name}; a sparse exchange takes "
            f"{', '.join(one.name for one in DTYPES)}"
        )
    numel = tensor.shape.num_elements()
    if numel is None:
        raise UnsupportedError(f"tensor must have a known shape, got {tensor.shape}")
    if numel >= 2**31:
        raise UnsupportedError(f"tensor must have fewer than 2^31 elements, got {numel}")
    if not isinstance(residual, tf.Variable):
        raise InvalidArgumentError(f"residual must be a tf.Variable, got {type(residual).__name__}")
    if residual.dtype != tf.float32:
        raise InvalidArgumentError(f"residual must be float32, got {residual.dtype.name}")
    if residual.shape.num_elements() != numel:
        raise InvalidArgumentError(
            f"residual must have as many elements as tensor ({numel}), got "
            f"{residual.shape.num_elements()}"
        )
