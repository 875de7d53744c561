"""Trains in an elastic job with TensorFlow; see elastic_steps.py. Run by test_elastic.py.

Uses a tape in a tf.function, which is traced once however often the ranks change; with --keras,
Keras's optimizer and train_on_batch.
"""

from __future__ import annotations

import horovod.tensorflow as hvd
import horovod.tensorflow.keras as keras_hvd
import keras
import numpy as np
import tensorflow as tf

import hvd_sparse.tensorflow
from hvd_sparse.tensorflow import Exchange, registry, saved_state
from tests.jobs.elastic_steps import TOLERANCE, die, parser, presets, train
from tests.jobs.elastic_witness import COUNTED, Witness, a_count

parser.add_argument("--keras", action="store_true")
TRUTH = np.linspace(-1, 1, 16, dtype=np.float32)


class Net(keras.Model):
    """A regression model, with an extra weight whose gradients, integers times UNIT, are inputs.

    Its output has two columns: the regression, and a term to add to the loss.
    """

    def __init__(self) -> None:
        super().__init__()
        # The bias is dense: if a rank dies, operations of Horovod fail in the same graph.
        self.hidden = keras.layers.Dense(48, activation="tanh")
        self.out = keras.layers.Dense(1, use_bias=False)
        self.counted = self.add_weight(shape=COUNTED, initializer="zeros", name="counted")

    def call(self, inputs: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        values, counts = inputs
        regression = self.out(self.hidden(values))
        added = tf.reduce_sum(self.counted * counts[0]) * tf.ones_like(regression)
        return tf.concat([regression, added], axis=1)


def loss_of(targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean((outputs[:, 0] - targets[:, 0]) ** 2) + tf.reduce_mean(outputs[:, 1])


def counted_residual() -> np.ndarray:
    """Returns this rank's residual of the extra weight; zeros if it holds none."""
    for renewal in registry.renewals():
        exchange = renewal.exchange
        held = renewal.held if exchange is None else saved_state.save(exchange)
        for name, residual in {} if held is None else held["residuals"].items():
            if name.endswith("counted"):
                return residual.astype(np.float64)
    return np.zeros(np.prod(COUNTED))


def check_replicas(model: keras.Model) -> None:
    flat = np.concatenate([np.ravel(one) for one in model.trainable_variables])
    bits = hvd.allgather(tf.constant(flat.view(np.int32)[None]), name="replicas").numpy()
    assert (bits == bits[0]).all(), "replicas differ"


def main() -> None:
    args = parser.parse_args()
    hvd.init()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    keras.utils.set_random_seed(hvd.rank())  # replicas become equal only by synchronisation
    model = Net()
    model((tf.zeros((1, 16)), tf.zeros((1, *COUNTED))))
    compression = presets(hvd_sparse.tensorflow)[args.compression]
    Exchange(model.trainable_variables).elastic_residuals = args.policy
    witness = Witness(
        hvd,
        residual=counted_residual,
        summed=lambda array, name: hvd.allreduce(tf.constant(array), op=hvd.Sum, name=name).numpy(),
        gathered=lambda thing, name: hvd.allgather_object(thing, name=name),
        tolerance=TOLERANCE.get(args.compression, 0.0),
    )
    optimizer = keras.optimizers.SGD(0.05, momentum=0.5)
    started = {"step": 0, "reached": 0, "first_loss": 0.0}
    if args.keras:
        optimizer = keras_hvd.DistributedOptimizer(optimizer, compression=compression)
        model.compile(optimizer=optimizer, loss=loss_of)
        learn = model.train_on_batch
        state = keras_hvd.elastic.KerasState(model, **started)
    else:
        variables = model.trainable_variables
        optimizer.build(variables)

        @tf.function
        def learn(inputs: tuple[tf.Tensor, tf.Tensor], targets: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = loss_of(targets, model(inputs))
            tape = hvd.DistributedGradientTape(tape, compression=compression)
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            return loss

        state = hvd.elastic.TensorFlowState([*model.variables, *optimizer.variables], **started)

    def step(number: int, *, dies: bool) -> float:
        draw = np.random.default_rng((number, hvd.rank()))
        values = draw.normal(size=(32, 16)).astype(np.float32)
        counts = np.broadcast_to(a_count(draw), (32, *COUNTED))
        targets = values @ TRUTH[:, None]
        outputs = model((values, counts)).numpy()
        if dies:
            die()
        learn((tf.constant(values), tf.constant(counts)), tf.constant(targets))
        loss = np.mean((outputs[:, :1] - targets) ** 2)
        return float(hvd.allreduce(tf.constant(loss), name="loss"))

    def check() -> None:
        if args.compression == "local":
            optimizer.exchange.meet()
        check_replicas(model)

    train(hvd, state, args, witness, step=step, check_replicas=check)


if __name__ == "__main__":
    main()
