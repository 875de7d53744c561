"""Clipping and weight decay before error feedback: the law holds for the changed gradient."""

from __future__ import annotations

import pytest
import torch

from hvd_sparse.compression import Feedback
from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.torch import LAGS
from tests.framework_laws import laws_in, local_gradient
from tests.parallel.torch_ranks import Toy, distribute

globals().update(laws_in(local_gradient))


def test_weight_decay_is_not_applied_twice():
    model = Toy()
    others = {"params": [model.bias, model.second, model.last], "weight_decay": 0.125}
    sgd = torch.optim.SGD([{"params": [model.first]}, others], lr=1.0)
    message = "weight_decay of group 1 of SGD is 0.125 and Feedback weight_decay is 0.5"
    with pytest.raises(InvalidArgumentError, match=message):
        distribute(model, LAGS(feedback=Feedback(weight_decay=0.5)), optimizer=sgd)
