"""Trains a small CNN on handwritten digits in a custom loop, sending 1 % of each gradient.

horovodrun -np 4 python examples/tensorflow2_digits.py --compression lags --density 0.01
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from digits_data import load_digits
from tensorflow_common import SPARSE, compression, make_model, make_parser, start_rank

from hvd_sparse.tensorflow import Exchange

parser = make_parser(__doc__)
parser.add_argument("--json", type=Path, metavar="FILE", help="write an account to FILE")


def main() -> None:
    args = parser.parse_args()
    start_rank(args)

    train, test = load_digits(args.seed)
    own = train.share(hvd.rank(), hvd.size())
    batches = (
        tf.data.Dataset.from_tensor_slices(own)
        .shuffle(len(own.labels), seed=args.seed)
        .batch(args.batch_size, drop_remainder=True)
    )

    model = make_model()
    steps = args.epochs * len(batches)
    rate = tf.keras.optimizers.schedules.CosineDecay(args.lr * hvd.size(), steps)
    optimizer = tf.keras.optimizers.SGD(rate, momentum=0.9)
    loss_function = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    chosen = compression(args)

    @tf.function
    def train_step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_function(labels, model(images, training=True))
        tape = hvd.DistributedGradientTape(tape, compression=chosen)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    hvd.broadcast_variables(model.variables, root_rank=0)
    losses, sent, seconds = [], [], []
    for epoch in range(args.epochs):
        for images, labels in batches:
            start = time.perf_counter()
            losses.append(train_step(images, labels))
            seconds.append(time.perf_counter() - start)
            sent.append(account_of_step(args.compression, model))
        shown = float(hvd.allreduce(tf.add_n(losses[-len(batches) :])) / len(batches))
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}/{args.epochs}: loss {shown:.4f}", flush=True)

    share = test.share(hvd.rank(), hvd.size())
    right = np.mean(np.argmax(model(share.images, training=False), axis=1) == share.labels)
    accuracy = 100 * float(hvd.allreduce(tf.constant(right)))
    losses = [float(loss) for loss in losses]
    sent, density = np.array(sent).T
    if hvd.rank() == 0:
        print(
            f"{args.compression}: test accuracy (%) {accuracy:.2f}; "
            f"{np.mean(sent) / 1e3:.1f} kB sent per rank and step; "
            f"density reached {np.mean(density):.4f}; "
            f"{1e3 * statistics.median(seconds):.1f} ms per step",
            flush=True,
        )
        if args.json is not None:
            account = {
                "ranks": hvd.size(),
                "parameters": model.count_params(),
                "value": accuracy,
                "bytes_sent_per_rank_and_step": float(np.mean(sent)),
                "density_reached": float(np.mean(density)),
                "seconds_per_step": statistics.median(seconds),
                "steps": {"loss": losses, "bytes_sent": sent.tolist()},
            }
            args.json.write_text(json.dumps(account) + "\n")


def account_of_step(compression: str, model: tf.keras.Model) -> tuple[float, float]:
    """Returns the bytes that this rank sent in the last step, and the sparse density reached.

    The bytes of dense gradients are computed, as for a ring: 2 (P - 1) / P times their size.
    """
    ring = 2 * (hvd.size() - 1) / hvd.size()
    if compression not in SPARSE:
        return ring * (2 if compression == "fp16" else 4) * model.count_params(), 1.0
    last = Exchange(model.trainable_variables).stats.last
    if last is None:  # a single rank exchanges nothing
        return 0.0, 1.0
    density = last.density_reached if last.buckets else 1.0
    return last.bytes_sent + ring * last.dense_bytes, density


if __name__ == "__main__":
    main()
