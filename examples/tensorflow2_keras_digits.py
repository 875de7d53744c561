"""Trains a small CNN on handwritten digits with Keras's fit, sending 1 % of each gradient.

horovodrun -np 4 python examples/tensorflow2_keras_digits.py --compression lags --density 0.01
"""

from __future__ import annotations

import horovod.tensorflow.keras as hvd
import keras
from digits_data import load_digits
from tensorflow_common import compression, make_model, make_parser, start_rank


def main() -> None:
    args = make_parser(__doc__).parse_args()
    start_rank(args)

    train, test = load_digits(args.seed)
    own, held_out = (data.share(hvd.rank(), hvd.size()) for data in (train, test))
    model = make_model()
    optimizer = keras.optimizers.SGD(args.lr * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, compression=compression(args))
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
