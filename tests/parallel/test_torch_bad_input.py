"""Bad input: a clear error on every rank, nothing sent, nothing lost."""

from __future__ import annotations

import horovod.torch as hvd
import pytest
import torch

from hvd_sparse.compression import Layers
from hvd_sparse.errors import InvalidArgumentError, NonFiniteGradientError, UnsupportedError
from hvd_sparse.torch import LAGS, GTopK, TopK
from tests.parallel.torch_ranks import (
    SHAPES,
    Toy,
    assert_nothing_is_lost,
    assert_same_on_all_ranks,
    distribute,
    integer_gradients,
    total,
)
from tests.torch_model import residuals

several_ranks = pytest.mark.skipif(hvd.size() == 1, reason="a single rank exchanges nothing")
ODD_ONE = hvd.size() - 1
ODD = hvd.rank() == ODD_ONE


@several_ranks
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("preset", [LAGS, GTopK, TopK])
def test_a_bad_gradient_on_one_rank_is_refused_by_all_and_nothing_is_lost(preset, value):
    model = Toy({"w": (40, 30), "v": (50, 20)})
    optimizer = distribute(
        model, preset(adaptive=False, density=0.1, layers=Layers(min_numel=64, bucket_numel=1000))
    )
    before = residuals(optimizer)
    owed = {name: torch.zeros(p.numel()).double() for name, p in model.named_parameters()}
    for step in range(4):
        optimizer.zero_grad()
        gradients = integer_gradients(model, step)
        bad = step == 1
        if bad and ODD:
            gradients["w"].view(-1)[17] = value
        model.backward(gradients)
        if bad:
            with pytest.raises(NonFiniteGradientError, match=f"rank {ODD_ONE} in bucket '"):
                optimizer.step()
            assert not any(p.grad.any() for p in model.parameters())
            for name in owed:
                finite = torch.where(gradients[name].isfinite(), gradients[name], 0.0)
                owed[name] = total(before[name]) + total(finite)
                assert torch.equal(total(residuals(optimizer)[name]), owed[name])
                assert residuals(optimizer)[name].isfinite().all()
        else:
            optimizer.step()
            assert_nothing_is_lost(model, step, before, optimizer, gradients)
        before = residuals(optimizer)


@several_ranks
@pytest.mark.parametrize("preset", [LAGS, GTopK, TopK])
def test_a_finite_gradient_beyond_float32_is_refused_as_such_by_all(preset):
    model = Toy({"w": (40, 30), "v": (50, 20)}, dtype=torch.float64)
    optimizer = distribute(model, preset(adaptive=False, density=0.1, layers=Layers(min_numel=64)))
    gradients = integer_gradients(model, 0)
    if ODD:
        gradients["w"].view(-1)[17] = 1e300
    model.backward(gradients)
    match = f"gradient of rank {ODD_ONE} in bucket .* exceeds float32's range \\(3.4e38\\)"
    with pytest.raises(NonFiniteGradientError, match=match) as caught:
        optimizer.step()
    assert "NaN" not in str(caught.value)
    assert not any(p.any() for p in model.parameters())


@several_ranks
def test_a_float64_gradient_beyond_float32_that_travels_dense_is_applied():
    model = Toy({"w": (40, 30), "bias": (7,)}, dtype=torch.float64)
    optimizer = distribute(model, TopK(density=0.1, layers=Layers(min_numel=64)))
    gradients = integer_gradients(model, 0)
    gradients["bias"].fill_(1e300)
    model.backward(gradients)
    optimizer.step()
    assert all((p == -hvd.size() * 1e300).all() for p in [model.get_parameter("bias")])


@several_ranks
@pytest.mark.parametrize("bad", [0, 3])  # before the steps that send a launch order
def test_a_refused_step_before_a_new_launch_order_changes_nothing(bad):
    model = Toy({"w": (40, 30), "v": (50, 20)})
    optimizer = distribute(
        model, LAGS(adaptive=False, density=0.1, layers=Layers(min_numel=64, bucket_numel=1000))
    )
    for step in range(7):  # the order is sent after one good step, and adopted after the next
        before = residuals(optimizer)
        optimizer.zero_grad()
        gradients = integer_gradients(model, step)
        if step == bad:
            if ODD:
                del gradients["v"]  # then it becomes ready on some ranks only
                gradients["w"][0, 0] = float("nan")
            model.backward(gradients)
            with pytest.raises(NonFiniteGradientError):
                optimizer.step()
        else:
            model.backward(gradients)
            optimizer.step()
            assert len(optimizer.exchange.stats.last.buckets) == 2
            assert_nothing_is_lost(model, step, before, optimizer, gradients)


@several_ranks
def test_a_bad_dense_gradient_is_refused_by_all_and_named():
    model = Toy()
    optimizer = distribute(model, TopK(density=0.1, layers=Layers(min_numel=64)))
    gradients = integer_gradients(model, 0)
    if ODD:
        gradients["bias"][3] = float("nan")
    model.backward(gradients)
    with pytest.raises(NonFiniteGradientError, match="'bias'"):
        optimizer.step()
    assert not any(p.any() for p in model.parameters())
    for name, residual in residuals(optimizer).items():
        assert torch.equal(residual, gradients[name].double().flatten())
    optimizer.zero_grad()
    model.backward(integer_gradients(model, 1))
    optimizer.step()


@several_ranks
def test_an_overflow_of_a_narrow_type_is_refused_by_all():
    model = Toy({"w": (40, 30)}, dtype=torch.float16)
    optimizer = distribute(model, TopK(density=1.0, layers=Layers(min_numel=64)))
    gradient = torch.full((40, 30), 2.0, dtype=torch.float16)
    gradient[0] = 60000.0
    model.backward({"w": gradient})
    with pytest.raises(NonFiniteGradientError, match="'w' overflows in 30 entries"):
        optimizer.step()
    kept = torch.where(gradient > 2, 0, gradient).flatten()
    assert torch.equal(residuals(optimizer)["w"], kept.double())
    model.backward({"w": gradient.clamp(max=2)})  # what was the cause is gone
    optimizer.step()
    assert_same_on_all_ranks(model.parameters())


def changed(**changes):
    shapes = {**SHAPES, **changes} if ODD else SHAPES
    return {name: shape for name, shape in shapes.items() if shape is not None}


@several_ranks
@pytest.mark.parametrize(
    ("model", "texts"),
    [
        (lambda: Toy(changed(bias=(8,))), ["'bias' (8,) float32", "'bias' (7,) float32"]),
        (lambda: Toy(changed(last=None)), ["no further one", "'last' (30, 20) float32"]),
        (lambda: Toy(changed(extra=(3,))), ["'extra' (3,) float32", "no further one"]),
        (
            lambda: Toy(dict(sorted(SHAPES.items(), reverse=ODD))),
            ["'second' (25, 8, 5)", "'bias' (7,)"],
        ),
        (
            lambda: Toy(dtype=torch.float64 if ODD else torch.float32),
            ["'first' (40, 30) float64", "'first' (40, 30) float32"],
        ),
    ],
    ids=["shape", "missing", "extra", "order", "dtype"],
)
def test_models_that_differ_are_refused_with_both_sides_named(model, texts):
    with pytest.raises(InvalidArgumentError, match=rf"rank {ODD_ONE}.* rank 0") as caught:
        distribute(model(), LAGS)
    for text in texts:
        assert text in str(caught.value)


@several_ranks
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (
            {"compression": LAGS(adaptive=False, density=0.1)},
            {"compression": LAGS(adaptive=False, density=0.01)},
        ),
        ({"compression": GTopK(density=0.1)}, {"compression": TopK(density=0.1)}),
        ({"op": hvd.Sum}, {"op": hvd.Average}),
        ({"backward_passes_per_step": 2}, {"backward_passes_per_step": 1}),
    ],
)
def test_options_that_differ_are_refused_with_both_sides_named(ours, theirs):
    options = {"compression": LAGS, **(ours if ODD else theirs)}
    with pytest.raises(InvalidArgumentError, match=rf"rank {ODD_ONE} and .* on rank 0") as caught:
        distribute(Toy(), **options)
    assert next(iter(ours)) in str(caught.value)


@several_ranks
def test_a_problem_of_one_rank_is_told_to_all():
    passes = 0 if ODD else 1
    with pytest.raises(
        InvalidArgumentError, match="backward_passes_per_step must be > 0"
    ) as caught:
        distribute(Toy(), LAGS, backward_passes_per_step=passes)
    assert ODD or f"rank {ODD_ONE} cannot take part" in str(caught.value)


@several_ranks
@pytest.mark.parametrize(
    "variable",
    [
        "HVD_SPARSE_NUM_THREADS",
        "HVD_SPARSE_STALL_SECONDS",
        "HVD_SPARSE_TIMEOUT_SECONDS",
        "HVD_SPARSE_ABORT_SECONDS",
    ],
)
def test_a_wrong_variable_of_one_rank_is_told_to_all(variable, monkeypatch):
    if ODD:
        monkeypatch.setenv(variable, "-3")
    with pytest.raises(InvalidArgumentError, match=rf"{variable} must be .*'-3'") as caught:
        distribute(Toy(), LAGS)
    assert ODD or f"rank {ODD_ONE} cannot take part" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"op": hvd.Adasum}, "op=Adasum"),
        ({"op": hvd.Min}, "op=Min"),
        ({"groups": 2}, "bucket_numel"),
        ({"num_groups": 2}, "bucket_numel"),
    ],
)
def test_what_a_sparse_exchange_cannot_do_is_refused_by_name(options, match):
    with pytest.raises(UnsupportedError, match=match):
        distribute(Toy(), LAGS, **options)


@pytest.mark.parametrize("name", ["LBFGS", "SparseAdam"])
def test_optimizers_that_cannot_be_used_are_refused_by_name(name):
    model = Toy()
    with pytest.raises(UnsupportedError, match=name):
        distribute(model, LAGS, optimizer=getattr(torch.optim, name)(model.parameters()))


def test_complex_and_integer_like_parameters_are_refused_by_name():
    with pytest.raises(UnsupportedError, match="'first' is complex"):
        distribute(Toy(dtype=torch.complex64), LAGS)
    with pytest.raises(UnsupportedError, match="'first' is on device 'meta'"):
        distribute(Toy().to("meta"), LAGS)


@several_ranks
@pytest.mark.parametrize("adaptive", [True, False])
def test_a_layer_beyond_32_bit_indices_is_refused_by_name(adaptive):
    model = Toy({"small": (40, 30)})
    one = torch.zeros(1).expand(1 << 16, 1 << 15)  # as many elements, in the memory of one
    model.register_parameter("giant", torch.nn.Parameter(one))
    with pytest.raises(UnsupportedError, match=r"'giant' has 2147483648 .* at most 2147483647"):
        distribute(model, LAGS(adaptive=adaptive))


@pytest.mark.parametrize("compression", ["lags", object(), int, 0.01])
def test_a_foreign_compression_is_refused_by_name(compression):
    with pytest.raises(InvalidArgumentError, match=r"LAGS, GTopK.* got"):
        distribute(Toy(), compression)


def test_names_are_checked_as_horovod_does():
    model = Toy()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

    def wrap(named):
        hvd.DistributedOptimizer(optimizer, named_parameters=named, compression=LAGS)

    with pytest.raises(ValueError, match="tuples"):
        wrap(model.parameters())
    with pytest.raises(ValueError, match="Found duplicates: x"):
        wrap([("x", p) for p in model.parameters()])
    with pytest.raises(ValueError, match="were not named"):
        wrap([("first", model.first)])


def test_an_optimizer_is_wrapped_once():
    model = Toy()
    optimizer = distribute(model, LAGS)
    for compression in (LAGS, hvd.Compression.none):
        with pytest.raises(InvalidArgumentError, match="SGD already is a distributed optimizer"):
            hvd.DistributedOptimizer(
                optimizer, named_parameters=model.named_parameters(), compression=compression
            )
    other = Toy()
    stock = hvd.DistributedOptimizer(torch.optim.SGD(other.parameters(), lr=1.0))
    with pytest.raises(InvalidArgumentError, match="SGD already is a distributed optimizer"):
        distribute(other, LAGS, optimizer=stock)


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), float("inf")])
def test_a_predivide_factor_that_divides_nothing_is_refused(factor):
    with pytest.raises(InvalidArgumentError, match="gradient_predivide_factor must be > 0"):
        distribute(Toy(), LAGS, op=hvd.Average, gradient_predivide_factor=factor)


def test_a_predivide_factor_belongs_to_averages():
    with pytest.raises(ValueError, match="not supported with op != Average"):
        distribute(Toy(), LAGS, op=hvd.Sum, gradient_predivide_factor=2.0)


@several_ranks
@pytest.mark.parametrize("named", [True, False])
def test_a_lazy_parameter_on_one_rank_is_refused_by_all_until_it_has_a_shape(named):
    torch.manual_seed(0)
    last = torch.nn.LazyLinear(40) if ODD else torch.nn.Linear(30, 40)
    model = torch.nn.Sequential(torch.nn.Linear(20, 30), last)

    def wrap():
        sgd = torch.optim.SGD(model.parameters(), lr=1.0)
        names = model.named_parameters() if named else None
        return hvd.DistributedOptimizer(
            sgd, named_parameters=names, compression=TopK(density=0.5, layers=Layers(min_numel=64))
        )

    name = "1.weight" if named else "allreduce.noname.0.2"
    with pytest.raises(InvalidArgumentError, match=f"'{name}' is uninitialized, and has no shape"):
        wrap()
    model(torch.ones(1, 20))
    optimizer = wrap()
    model(torch.ones(2, 20)).sum().backward()
    optimizer.step()
