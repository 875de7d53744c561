"""Tests of the TensorFlow face that run on every rank at once."""

from __future__ import annotations

import tensorflow as tf

from tests.rank_guard import hooks

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(2)

globals().update(hooks("horovod.tensorflow"))
