"""Times selection, and a rank's whole local step, against torch's unavoidable memory accesses.

    python benchmarks/kernels.py --numel 25600000 --density 0.001 --threads 1
    python benchmarks/kernels.py --device cuda:0

Selection is all the work between a gradient and the block to send: error feedback, the threshold,
the block. Its floor is `residual.add_(gradient)`. A local step also settles the residual and writes
the sum into the gradient, once all layers are selected; its floor is `residual.add_(gradient)` and,
once all are added, `gradient.zero_()`. "published" rows are the baselines of published.py: error
feedback in place, the method, a gather of the values. All of them take turns (turns.py). Merging,
settling, scattering (blocks.py), coding of blocks (coding.py) and of all values (dense_codes.py)
follow.

On a GPU, the clock runs from the call until the device has finished and the block is in CPU memory;
messages, which the CPU handles, are left out. Work on blocks that stay on the device is timed with
CUDA's events (device_blocks.py; side_by_side.py, beside torch's, CUB's, CuPy's and the published
ways); with --side-by-side also that of the CPU, by its clock.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer
from blocks import measure_blocks
from coding import measure_coding
from contenders import Size
from dense_codes import measure_dense_codes
from device_blocks import measure_merge
from reporting import Result, write
from side_by_side import measure_selection
from turns import SETTLING, Gradients, Memory, Turns, exact_warm_up, lineup

from hvd_sparse import _core
from hvd_sparse.errors import UnavailableError

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

NUMELS, DENSITIES = (25_600_000, 1_000_000), (0.001, 0.01)
ON_DEVICE_NUMELS, ON_DEVICE_DENSITIES = (25_600_000, 256_000_000), (0.001,)
MESSAGES = (25_600, 256_000)  # entries of a coded block
LEAST_WARM_UP = 60


def measure(
    size: Size, *, threads: Sequence[int], steps: int, warm_up: int, slow_every: int, pause: float
) -> list[Result]:
    """Measures selection and the local step; one result for each number of threads."""
    gradients = Gradients(size)
    use_threads(max(threads))
    residual = exact_warm_up(size, gradients, warm_up)
    contenders = lineup(size)
    memory = Memory(contenders, size)
    for one in contenders:
        one.slabs[0].copy_(residual)
    turns = Turns(contenders, gradients, memory, slow_every)
    turns.settle(min(warm_up, SETTLING))
    results = []
    for number in threads:
        use_threads(number)
        rows = turns.take(steps, pause)
        settings = {
            "numel": size.numel, "layers": size.layers, "density": size.density, "k": size.k,
            "threads": number, "steps": steps, "warm_up": warm_up,
            "slow_every": slow_every, "pause": pause, "device": size.device,
            "instruction_set": _core.instruction_set(),
        }  # fmt: skip
        layers = f"{size.layers} x " if size.layers > 1 else ""
        title = f"{layers}{size.numel:,} entries, k = {size.k:,}, {number} thread(s), {size.device}"
        verified = all(one.verified for one in contenders)
        results.append(Result(title, rows, settings, verified))
        results[-1].show()
    return results


def measure_pieces(block: int, numel: int, *, threads: Sequence[int], steps: int) -> list[Result]:
    """Measures merging, settling and scattering; one result for each number of threads."""
    results = []
    for number in threads:
        use_threads(number)
        rows, verified = measure_blocks(block, numel, steps=steps)
        settings = {"block": block, "numel": numel, "threads": number, "steps": steps}
        title = f"two blocks of {block:,} in {numel:,} entries, half in common, {number} thread(s)"
        results.append(Result(title, rows, settings, verified))
        results[-1].show()
    return results


def measure_on_device(
    block: int, numel: int, densities: Sequence[float], device: str, *, steps: int
) -> list[Result]:
    """Measures merging, and selection at each density, on a device, side by side."""
    settings = {"numel": numel, "device": device, "steps": steps}
    rows, verified = measure_merge(block, numel, device, steps)
    title = f"two blocks of {block:,} in {numel:,} entries, half in common, on {device}"
    results = [Result(title, rows, settings | {"block": block}, verified)]
    for density in densities:
        rows, verified = measure_selection(numel, density, device, steps)
        title = f"{numel:,} entries at density {density:g}, all on {device}"
        results.append(Result(title, rows, settings | {"density": density}, verified))
    for result in results:
        result.show()
    return results


def require_device(device: str) -> None:
    """Ends the command, with the reason, if there is no such device."""
    if device == "cpu":
        return
    try:
        found = _core.cuda_devices()
    except UnavailableError as error:
        raise typer.BadParameter(f"{device} cannot be used: {error}") from None
    names = [f"cuda:{number}" for number in range(len(found))]
    if device not in names:
        raise typer.BadParameter(f"device must be cpu or one of {', '.join(names)}, got {device}")
    if not torch.cuda.is_available():
        raise typer.BadParameter(f"{device} cannot be used: this build of torch has no CUDA")


def measure_messages(entries: int, density: float, *, steps: int) -> Result:
    """Measures coding blocks for the wire."""
    numel = math.ceil(entries / density)
    rows, verified = measure_coding(entries, numel, steps=steps)
    settings = {"entries": entries, "density": density, "steps": steps}
    title = f"a block of {entries:,} entries at density {density:g}, on the wire"
    result = Result(title, rows, settings, verified)
    result.show()
    return result


def measure_codes(numel: int, *, steps: int) -> Result:
    """Measures coding all values of a model for the wire, on one thread."""
    use_threads(1)
    rows, verified = measure_dense_codes(numel, steps=steps)
    settings = {"numel": numel, "threads": 1, "steps": steps}
    result = Result(f"all values of {numel:,} entries, coded", rows, settings, verified)
    result.show()
    return result


def use_threads(number: int) -> None:
    """Sets the number of threads of torch and of the core."""
    torch.set_num_threads(number)
    _core.set_threads(number)


@app.command()
def main(
    numel: Annotated[
        list[int] | None,
        typer.Option(min=16, help="entries of a layer; repeatable (25600000, 1000000)"),
    ] = None,
    density: Annotated[
        list[float] | None, typer.Option(help="fraction selected; repeatable (.001, .01)")
    ] = None,
    threads: Annotated[
        list[int] | None,
        typer.Option(min=1, help="of torch and the core; repeatable (1, 2)"),
    ] = None,
    model: Annotated[int, typer.Option(help="entries of all layers together")] = 25_600_000,
    steps: Annotated[int, typer.Option(min=2, help="timed")] = 256,
    warm_up: Annotated[
        int | None, typer.Option(min=1, help="steps; by default 1 / (2 density), at least 60")
    ] = None,
    slow_every: Annotated[int, typer.Option(min=1, help="steps per turn of published rows")] = 8,
    pause: Annotated[float, typer.Option(help="seconds before each turn")] = 0.005,
    block: Annotated[int, typer.Option(min=1, help="entries of a block to merge")] = 25_600,
    message: Annotated[
        list[int] | None,
        typer.Option(min=1, help="entries of a block to code; repeatable (25600, 256000)"),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, or cuda:0 and the like")] = "cpu",
    selection: Annotated[bool, typer.Option(help="time selection and blocks, too")] = True,
    side_by_side: Annotated[
        bool | None, typer.Option(help="all ways on one device, by events; unless said, on a GPU")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="also write the results here")] = None,
) -> None:
    """Times selection, the local step, merging and coding, for each size, density and threads."""
    require_device(device)
    random.seed(1)
    torch.manual_seed(1)
    on_cpu = device == "cpu"
    side_by_side = not on_cpu if side_by_side is None else side_by_side
    numels_beside, densities_beside = numel or ON_DEVICE_NUMELS, density or ON_DEVICE_DENSITIES
    numel, density = numel or list(NUMELS), density or list(DENSITIES)
    threads = threads or ([1, 2] if on_cpu else [1])

    def measured() -> Iterator[list[Result]]:
        for entries in (message or MESSAGES) if on_cpu else []:
            yield [measure_messages(entries, share, steps=steps) for share in density]
        if on_cpu:
            yield [measure_codes(model, steps=max(2, steps // 8))]
        for one in numel if selection else []:
            for share in density:
                yield measure(
                    Size(one, max(1, model // one), share, device),
                    threads=threads,
                    steps=steps,
                    warm_up=warm_up or max(LEAST_WARM_UP, math.ceil(0.5 / share)),
                    slow_every=slow_every,
                    pause=pause,
                )
            if on_cpu:
                yield measure_pieces(block, one, threads=threads, steps=steps)
        for one in numels_beside if side_by_side else []:
            yield measure_on_device(block, one, densities_beside, device, steps=steps)

    results: list[Result] = []
    for some in measured():
        results += some
        if json is not None:  # results so far, since the next ones may take long
            write(json, [result.as_json() for result in results])
    if not all(result.verified for result in results):
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
