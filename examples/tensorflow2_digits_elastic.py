"""Trains the network of tensorflow2_digits.py while ranks come and go.

hosts.sh prints a line HOST:SLOTS for each available host:

horovodrun --gloo -np 2 --min-np 2 --max-np 4 --host-discovery-script ./hosts.sh \
    python examples/tensorflow2_digits_elastic.py --compression lags --density 0.01
"""

from __future__ import annotations

import argparse

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from digits_data import load_digits
from tensorflow_common import compression, make_model, make_parser, start_rank

from hvd_sparse.tensorflow import Exchange

parser = make_parser(__doc__)
parser.formatter_class = argparse.RawDescriptionHelpFormatter
parser.add_argument("--commit-every", type=int, default=5, help="steps from commit to commit")
parser.add_argument("--residuals", choices=("spread", "reset"), default="spread",
                    help="what becomes of them when ranks come or go")  # fmt: skip


def main() -> None:
    args = parser.parse_args()
    start_rank(args)

    train_set, test_set = load_digits(args.seed)
    model = make_model()
    optimizer = tf.keras.optimizers.SGD(args.lr * hvd.size(), momentum=0.9)
    loss_function = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    chosen = compression(args)
    Exchange(model.trainable_variables).elastic_residuals = args.residuals

    @tf.function  # traced once, for any number of ranks
    def train_step(images: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = loss_function(labels, model(images, training=True))
        tape = hvd.DistributedGradientTape(tape, compression=chosen)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    @hvd.elastic.run
    def train(state: hvd.elastic.TensorFlowKerasState) -> None:
        optimizer.learning_rate.assign(args.lr * hvd.size())
        while state.epoch < args.epochs:
            order = np.random.default_rng(state.epoch).permutation(len(train_set.labels))
            each = hvd.size() * args.batch_size  # images of a step
            while state.done + each <= len(order):
                own = order[state.done + hvd.rank() : state.done + each : hvd.size()]
                train_step(*(tf.constant(part[own]) for part in train_set))
                state.done += each
                if state.done // each % args.commit_every == 0:
                    state.commit()
            right = np.argmax(model(test_set.images, training=False), axis=1) == test_set.labels
            if hvd.rank() == 0:
                print(f"epoch {state.epoch + 1}/{args.epochs} with {hvd.size()} ranks: "
                      f"test accuracy {100 * np.mean(right):.2f} %", flush=True)  # fmt: skip
            state.epoch += 1
            state.done = 0
            state.commit()

    train(hvd.elastic.TensorFlowKerasState(model, optimizer, epoch=0, done=0))


if __name__ == "__main__":
    main()
