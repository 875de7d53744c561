"""Common parts of the TensorFlow examples: arguments, the choice of compression, the model."""

from __future__ import annotations

import argparse
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf

from hvd_sparse.tensorflow import LAGS, GaussianK, GTopK, TopK

SPARSE = {"lags": LAGS, "gtopk": GTopK, "gaussiank": GaussianK, "topk": TopK}


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """Returns a parser of the arguments that all examples share."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--compression", choices=("none", "fp16", *SPARSE), default="lags",
                        help="how gradients are exchanged")  # fmt: skip
    parser.add_argument("--density", type=float, default=0.01,
                        help="fraction of a gradient that sparse compressions send")  # fmt: skip
    parser.add_argument("--collective",
                        help="instead of the compression's own, such as gtopk")  # fmt: skip
    parser.add_argument("--adaptive", action="store_true",
                        help="let LAGS measure, plan, go dense where faster")  # fmt: skip
    parser.add_argument("--epochs", type=int, default=40, help="passes over the training data")
    parser.add_argument("--batch-size", type=int, default=16, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.01, help="learning rate, per rank")
    parser.add_argument("--seed", type=int, default=1, help="of weights, and order of the data")
    return parser


def start_rank(args: argparse.Namespace) -> None:
    """Initialises a rank: ranks share a machine's cores, and have random seeds of their own."""
    hvd.init()
    tf.config.set_visible_devices([], "GPU")  # the digits do not need one
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    tf.keras.utils.set_random_seed(args.seed + hvd.rank())


def compression(args: argparse.Namespace) -> Any:
    """Returns the compression that the arguments ask for, as Horovod takes it."""
    if args.compression not in SPARSE:
        return getattr(hvd.Compression, args.compression)
    collective = {} if args.collective is None else {"collective": args.collective}
    adaptive = args.adaptive and args.compression == "lags"
    return SPARSE[args.compression](
        density=args.density, warmup=None, adaptive=adaptive, **collective
    )


def make_model() -> tf.keras.Model:
    """Returns a model of two convolutions and two dense layers; 284 thousand parameters."""
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dropout(0.25),
            layers.Dense(256, activation="relu"),
            layers.Dropout(0.25),
            layers.Dense(10),
        ]
    )
