"""One of four gloo processes: sharded steps beside the same steps of whole tensors.

python -m tests.torch.sharded RANK FOLDER NAME=FILE…      # prints one JSON object: check → error
"""

import contextlib
import functools
import io
import itertools
import json
import logging
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
)

from laconic.errors import LaconicError
from laconic.torch import LearnedOuter

PROCESSES, ROUNDS, K = 4, 3, 8
# Parts of 2, 2, 1 and 0 rows, of one row and none, a kernel, and tensors that stack.
SHAPES = [(5, 7), (1, 6), (3,), (), (6, 4, 3, 3), (2, 9), (5, 7), (3,), (8, 8), (0, 3)]
PLACED = {
    "rows": ((4,), [Shard(0)]),
    "columns": ((4,), [Shard(1)]),
    "copies of rows": ((2, 2), [Replicate(), Shard(0)]),
    "rows and columns": ((2, 2), [Shard(0), Shard(1)]),
    "rows twice": ((2, 2), [Shard(0), Shard(0)]),
}
OPTIONS = {"alone": {}, "stacked": {"foreach": True}, "tiled": {"tile": 7, "weight_decay": 0.1}}


def draw(seed):
    """Weights, float64 so that changes can be read off, and every round's worker deltas."""
    generator = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(shape, generator=generator)
    params = [0.1 * normal(*shape).double() for shape in SHAPES]
    return params, [[0.01 * normal(K, *shape) for shape in SHAPES] for _ in range(ROUNDS)]


def placed(mesh, placements, x, lead=0):
    """Sharded as asked, but copies along axes that the tensor does not have."""
    axes = x.ndim - lead
    fit = [
        Shard(one.dim + lead) if one.is_shard() and one.dim < axes else Replicate()
        for one in placements
    ]
    return distribute_tensor(x.clone(), mesh, fit, src_data_rank=None)  # copies would be shared


def rounds(outer, params, deltas, spread=lambda x, lead=0: x):
    for each in deltas:
        for p, x in zip(params, each, strict=True):
            p.grad = spread(x.mean(0).double())
        outer.step(worker_deltas=[spread(x, 1) for x in each])


def full(x):
    return x.full_tensor() if isinstance(x, DTensor) else x


def error(found, expected, before):
    """The largest ‖found − expected‖/‖expected − before‖ of a tensor."""
    errors = [
        float(torch.linalg.vector_norm(full(x).detach() - y) / torch.linalg.vector_norm(y - b))
        for x, y, b in zip(found, expected, before, strict=True)
        if y.numel()
    ]
    return max(errors)


def whole(path, **options):
    """What the same rounds make of whole tensors, and the state they leave."""
    start, deltas = draw(1)
    params = [torch.nn.Parameter(x.clone()) for x in start]
    outer = LearnedOuter(params, path, **options)
    rounds(outer, params, deltas)
    return [p.detach() for p in params], outer


def check_steps(path, meshes):
    found = {}
    for (where, (sizes, placements)), (how, options) in itertools.product(
        PLACED.items(), OPTIONS.items()
    ):
        start, deltas = draw(1)
        spread = functools.partial(placed, meshes[sizes], placements)
        params = [torch.nn.Parameter(spread(x)) for x in start]
        outer = LearnedOuter(params, path, **options)
        rounds(outer, params, deltas, spread)
        plain = {name: x for name, x in options.items() if name != "foreach"}
        found[f"{where}, {how}"] = error(params, whole(path, **plain)[0], start)
    return found


def check_states(path, meshes):
    """Whole → sharded → a file → another sharding → whole, with rounds on the way."""
    start, deltas = draw(1)
    params, outer = whole(path)
    now = [p.clone() for p in params]
    for where in ("rows", "rows and columns", "columns"):
        sizes, placements = PLACED[where]
        spread = functools.partial(placed, meshes[sizes], placements)
        shards = [torch.nn.Parameter(spread(x)) for x in now]
        other = LearnedOuter(shards, path)
        other.load_state_dict(outer.state_dict())
        rounds(other, shards, deltas, spread)
        file = io.BytesIO()
        torch.save(other.state_dict(), file)
        file.seek(0)
        again = [torch.nn.Parameter(p.detach().clone()) for p in shards]
        outer = LearnedOuter(again, path)
        outer.load_state_dict(torch.load(file, weights_only=True))
        rounds(outer, again, deltas, spread)
        now = [full(p.detach()) for p in again]
    last = [torch.nn.Parameter(x) for x in now]
    ended = LearnedOuter(last, path)
    ended.load_state_dict(outer.state_dict())
    rounds(ended, last, deltas)
    expected, twin = whole(path)
    twins = [torch.nn.Parameter(x.clone()) for x in expected]
    same = LearnedOuter(twins, path)
    same.load_state_dict(twin.state_dict())
    for _ in range(7):
        rounds(same, twins, deltas)
    types = {type(x) for state in ended.state.values() for x in state.values()}
    assert types <= {int, torch.Tensor}
    return error(last, [p.detach() for p in twins], start)


def check_refusals(path, mesh):
    """A number that only one process holds is seen by all; sums that are not added are refused."""
    values = torch.full((8, 3), 0.01)
    values[-1, 0] = torch.nan  # in the last process
    for on_nonfinite in ("raise", "skip"):
        p = torch.nn.Parameter(distribute_tensor(torch.ones(8, 3), mesh, [Shard(0)]))
        p.grad = distribute_tensor(values, mesh, [Shard(0)])
        outer = LearnedOuter([p], path, on_nonfinite=on_nonfinite)
        deltas = [distribute_tensor(values.expand(K, 8, 3), mesh, [Shard(1)])]
        refused = pytest.raises(LaconicError, match="parameter 0 holds NaN")
        with refused if on_nonfinite == "raise" else contextlib.nullcontext():
            outer.step(worker_deltas=deltas)
        assert not outer.state
    p = torch.nn.Parameter(DTensor.from_local(torch.ones(3), mesh, [Partial()]))
    p.grad = DTensor.from_local(torch.ones(3), mesh, [Partial()])
    with pytest.raises(LaconicError, match="redistribute it"):
        LearnedOuter([p], path).step(worker_deltas=[torch.ones(K, 3)])


def main(rank, folder, *files):
    torch.set_num_threads(1)
    logging.getLogger("torch.distributed.tensor").setLevel(logging.ERROR)  # it tells of speed
    store = f"file://{Path(folder) / 'store'}"
    dist.init_process_group("gloo", init_method=store, rank=int(rank), world_size=PROCESSES)
    meshes = {sizes: init_device_mesh("cpu", sizes) for sizes in ((4,), (2, 2))}
    found = {}
    for name, path in (file.split("=") for file in files):
        errors = check_steps(path, meshes) | {"states": check_states(path, meshes)}
        check_refusals(path, meshes[(4,)])
        found |= {f"{name}: {what}": error for what, error in errors.items()}
    dist.destroy_process_group()
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
