"""Trains a small CNN on handwritten digits with Keras's fit, sending 1 % of each gradient.

horovodrun -np 4 python examples/tensorflow2_keras_digits.py --compression lags --density 0.01
"""

from __future__ import annotations

import argparse

import horovod.tensorflow.keras as hvd
import keras
import tensorflow as tf
from digits_data import load_digits

from hvd_sparse.tensorflow import LAGS, GaussianK, GTopK, TopK

SPARSE = {"lags": LAGS, "gtopk": GTopK, "gaussiank": GaussianK, "topk": TopK}

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
)
parser.add_argument("--compression", choices=("none", "fp16", *SPARSE), default="lags",
                    help="how gradients are exchanged")  # fmt: skip
parser.add_argument("--density", type=float, default=0.01,
                    help="fraction of a gradient that sparse compressions send")  # fmt: skip
parser.add_argument("--epochs", type=int, default=40, help="passes over the training data")
parser.add_argument("--batch-size", type=int, default=16, help="images per rank and step")
parser.add_argument("--lr", type=float, default=0.01, help="learning rate, per rank")
parser.add_argument("--seed", type=int, default=1, help="of weights, and order of the data")


def main() -> None:
    args = parser.parse_args()
    hvd.init()
    tf.config.threading.set_intra_op_parallelism_threads(1)  # ranks share a machine's cores
    tf.config.threading.set_inter_op_parallelism_threads(2)
    keras.utils.set_random_seed(args.seed + hvd.rank())

    train, test = load_digits(args.seed)
    own, held_out = (data.share(hvd.rank(), hvd.size()) for data in (train, test))
    model = keras.Sequential(
        [
            keras.layers.Input((8, 8, 1)),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.25),
            keras.layers.Dense(256, activation="relu"),
            keras.layers.Dropout(0.25),
            keras.layers.Dense(10),
        ]
    )
    if args.compression in SPARSE:
        compression = SPARSE[args.compression](density=args.density, adaptive=False)
    else:
        compression = getattr(hvd.Compression, args.compression)
    optimizer = keras.optimizers.SGD(args.lr * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, compression=compression)
    model.compile(
        optimizer=optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    each = len(own.labels) // args.batch_size * args.batch_size  # all ranks take as many steps
    history = model.fit(
        own.images[:each],
        own.labels[:each],
        batch_size=args.batch_size,
        epochs=args.epochs,
        validation_data=tuple(held_out),
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
        ],
        verbose=2 if hvd.rank() == 0 else 0,
    )
    if hvd.rank() == 0:
        accuracy = 100 * history.history["val_accuracy"][-1]
        print(f"{args.compression}: test accuracy (%) {accuracy:.2f}", flush=True)


if __name__ == "__main__":
    main()
