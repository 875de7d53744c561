"""scikit-learn's handwritten digits as NumPy arrays, split between the ranks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Images(NamedTuple):
    """Images [n, 8, 8, 1], float32 in [0, 1], and their labels [n], int64."""

    images: np.ndarray
    labels: np.ndarray

    def share(self, rank: int, size: int) -> Images:
        """Returns a rank's share, of equal size on all ranks; the remainder is dropped."""
        each = len(self.labels) // size
        return Images(*(part[rank : each * size : size] for part in self))


def load_digits(seed: int) -> tuple[Images, Images]:
    """Returns four fifths of the images to train, one fifth to test."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    train_x, test_x, train_y, test_y = train_test_split(
        digits.images.astype(np.float32)[..., None] / 16,
        digits.target.astype(np.int64),
        test_size=0.2,
        random_state=seed,
        stratify=digits.target,
    )
    return Images(train_x, train_y), Images(test_x, test_y)
