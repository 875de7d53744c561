"""Ranks that train with TensorFlow; one of them may fail. Run by test_tensorflow.py.

    tensorflow_ranks.py [--gloo HOST:PORT] HOW ...

Each HOW has weights of its own, which are named after it; the HOW that fails a rank comes last.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
import time

import horovod.tensorflow as hvd
import tensorflow as tf

from benchmarks.gloo_world import prepare
from hvd_sparse.compression import Layers
from hvd_sparse.tensorflow import LAGS

SIDE, LAYERS, STEPS = 300, 5, 24
# Seconds that others compute after a rank has died. They also have layers that Horovod sums.
COMPUTING_SECONDS = 1.5
WHILE_OTHERS_COMPUTE = "kill_while_others_compute"


def fail(how: str) -> None:
    """Fails in the requested way, unless the graph itself does."""
    if how == "raise":
        raise ValueError("a mistake of the user")
    if how.startswith("kill"):
        os.kill(os.getpid(), signal.SIGKILL)


def train(how: str) -> None:
    """Takes some steps; the last rank may fail in the third one."""
    weights = [
        tf.Variable(
            tf.random.stateless_normal((SIDE, SIDE), [1, i]) / SIDE**0.5, name=f"{how}_w{i}"
        )
        for i in range(LAYERS)
    ]
    if how == WHILE_OTHERS_COMPUTE:
        weights.append(tf.Variable(tf.zeros(SIDE), name=f"{how}_bias"))
    inputs = tf.random.normal((256, SIDE))

    @tf.function
    def step(poison: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            hidden = inputs
            for weight in weights:
                after = hidden @ weight if len(weight.shape) == 2 else hidden + weight
                hidden = tf.nn.relu(after)
            loss = tf.reduce_mean(hidden**2)
        compression = LAGS(density=0.01, adaptive=False, layers=Layers(bucket_numel=1))
        tape = hvd.DistributedGradientTape(tape, compression=compression)
        # Buckets are made from the last variable to the first, here starting at the first layer.
        order = weights[::-1] if how == "reversed" else weights
        gradients = dict(zip(map(id, order), tape.gradient(loss, order), strict=True))
        gradients = [gradients[id(weight)] for weight in weights]
        if how == "operation":  # fails within the graph, while others are exchanged
            gradients[0] = tf.debugging.check_numerics(gradients[0] + poison, "a mistake")
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.assign_sub(0.01 * gradient)

    culprit = hvd.rank() == hvd.size() - 1
    for number in range(STEPS):
        if number == 2 and culprit:
            fail(how)
        if number == 2 and how == WHILE_OTHERS_COMPUTE:
            time.sleep(COMPUTING_SECONDS)
        try:
            step(tf.constant(math.nan if number == 2 and culprit else 0.0))
        except tf.errors.OpError as error:
            print(f"rank {hvd.rank()}: {type(error).__name__}: {error.message}", flush=True)
            sys.exit(3)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("hows", nargs="+", metavar="HOW")
    parser.add_argument("--gloo", metavar="HOST:PORT", help="for Horovod over Gloo")
    args = parser.parse_args()
    if args.gloo is not None:
        prepare(args.gloo, "lo")
    hvd.init()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    for how in args.hows:
        train(how)


if __name__ == "__main__":
    main()
