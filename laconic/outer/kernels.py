"""GPU kernels of the learned step on whole models: three passes over memory, and nothing kept
between them but sums.

    squares   Δ → sums of Δ² along both factored axes
    moments   Δ, W, m, v → Σ x² of every per-parameter feature x, made in registers from the
              updated accumulators
    apply     Δ, W, m, v → the same again, then the MLP on matrix units; W, m and v are overwritten

Per parameter that is 1 + 6 + 11 numbers moved for LOpt-A, and for LAgg-A K more in each of the last
two. Accumulators are updated twice, in registers, and written once, in the pass that has arithmetic
to hide it behind. Each program writes its own sums and they are added up afterwards, so results are
the same to the bit from run to run. A launch takes the arrays of one tensor, or of several of one
shape, in place: the program's number says which of them it works on.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from laconic.architecture import numbers_in
from laconic.errors import LaconicError, unknown
from laconic.outer import programs
from laconic.outer.layout import Big, Change, Cut, Geometry, Layers, Small
from laconic.outer.perceptron import PRECISIONS

FIRST = ("dot", "fma")


class Tuning(NamedTuple):
    """How the kernels are cut, and how `apply` multiplies; what is fastest depends on the GPU.

    lanes, rows:   parameters a program of `apply` works on at a time, and at most how many times
    together:      how many tensors of one shape share a launch; each makes compiling longer
    programs:      rows are halved until a launch has so many programs
    warps, stages: Triton's, of `apply`
    precision:     of the hidden layers' products; see `outer/perceptron.py`
    first:         "dot" runs the first layer on matrix units, "fma" on ordinary ones
    ahead:         1 reads a row while the one before is worked on, at the price of registers
    hold:          1 keeps the last layer's weights in registers from row to row
    sum_*:         the same of the two passes that only add up
    interpret:     run by Pallas's interpreter, on any device and slowly
    """

    lanes: int = 128
    rows: int = 32
    together: int = 4
    programs: int = 1200
    warps: int = 4
    stages: int = 1
    precision: str = "bf16x3"
    first: str = "dot"
    ahead: int = 1
    hold: int = 0
    sum_lanes: int = 512
    sum_rows: int = 16
    sum_programs: int = 600
    sum_warps: int = 4
    interpret: bool = False

    def check(self) -> "Tuning":
        """Refuse what Triton could not compile."""
        if self.precision not in PRECISIONS:
            raise unknown("precision", self.precision, PRECISIONS)
        if self.first not in FIRST:
            raise unknown("first layer", self.first, FIRST)
        if self.precision == "half" and self.first != "dot":
            raise LaconicError(
                'precision "half" multiplies every layer on matrix units; leave first at "dot".'
            )
        for name in ("ahead", "hold"):
            if getattr(self, name) not in (0, 1):
                raise LaconicError(f"{name} must be 0 or 1, got {getattr(self, name)}.")
        for name in ("together", "programs", "sum_programs"):
            if getattr(self, name) < 1:
                raise LaconicError(f"{name} must be at least 1, got {getattr(self, name)}.")
        for name in ("lanes", "rows", "warps", "sum_lanes", "sum_rows", "sum_warps"):
            value = getattr(self, name)
            least = 16 if name.endswith("lanes") else 1
            if value < least or value & (value - 1):
                raise LaconicError(
                    f"{name} must be a power of two and at least {least}, got {value}."
                )
        return self


def squares(
    geometry: Geometry, means: Sequence[jax.Array], tuning: Tuning
) -> tuple[jax.Array, jax.Array]:
    """Σ Δ² over blocks of columns [layers, A, blocks] and of rows [layers, blocks, B]."""
    layers = len(means) * means[0].shape[0] * geometry.L1
    means = [mean.reshape(-1) for mean in means]
    cut = Cut.of(geometry, tuning.sum_lanes, tuning.sum_rows, layers, tuning.sum_programs)
    outs = [_f32(layers, geometry.A, cut.across), _f32(layers, cut.down, geometry.B)]
    kernel = bound(programs.squares, geometry, cut)
    by_row, by_column = _call("squares", kernel, cut, layers, means, outs, tuning, tuning.sum_warps)
    return by_row, by_column


def moments(
    geometry: Geometry, bigs: Sequence[Big], small: Small, fill_mean: bool, tuning: Tuning
) -> jax.Array:
    """Σ x² of per-parameter features by program [programs, F]; a tensor's programs are adjacent."""
    layers = len(bigs) * bigs[0].param.shape[0] * geometry.L1
    cut = Cut.of(geometry, tuning.sum_lanes, tuning.sum_rows, layers, tuning.sum_programs)
    count = numbers_in(geometry.features, bigs[0].deltas.shape[0])
    arrays, named = _listed(small, *map(_flat, bigs))
    kernel = bound(programs.moments, geometry, cut, named, fill_mean)
    outs = [_f32(layers * cut.down * cut.across, count)]
    return _call("moments", kernel, cut, layers, arrays, outs, tuning, tuning.sum_warps)[0]


def apply(
    geometry: Geometry,
    bigs: Sequence[Big],
    small: Small,
    phi: Layers,
    fill_mean: bool,
    change: Change,
    tuning: Tuning,
) -> list[Big]:
    """The tensors after the step: parameters (or their change) and accumulators, in place."""
    layers = len(bigs) * bigs[0].param.shape[0] * geometry.L1
    cut = Cut.of(geometry, tuning.lanes, tuning.rows, layers, tuning.programs)
    flat = [_flat(big) for big in bigs]
    olds = [x for big in bigs for x in _written(big)]
    written = [x for big in flat for x in _written(big)]
    each = len(olds) // len(bigs)
    arrays, named = _listed(small, phi, *flat)
    positions = [next(i for i, x in enumerate(arrays) if x is y) for y in written]
    aliases = {at: i for i, at in enumerate(positions) if i % each > 0 or change.in_place}
    kernel = bound(programs.apply, geometry, cut, named, fill_mean, change, tuning)
    outs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in written]
    new = _call("apply", kernel, cut, layers, arrays, outs, tuning, tuning.warps, aliases)
    shaped = [x.reshape(old.shape) for x, old in zip(new, olds, strict=True)]
    names = ("param", "m", "v", "diagonal")[:each]
    parts = [shaped[each * g :][:each] for g in range(len(bigs))]
    rows = zip(bigs, parts, strict=True)
    return [big._replace(**dict(zip(names, part, strict=True))) for big, part in rows]


def _flat(big: Big) -> Big:
    """Each array's last four axes as one."""
    return jax.tree.map(lambda x: x.reshape(*x.shape[:-4], -1), big)


def _written(big: Big) -> list[jax.Array]:
    return [x for x in (big.param, big.m, big.v, big.diagonal) if x is not None]


def _f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


class Named(NamedTuple):
    """Which arrays of several groups exist; gives a kernel's references their names again."""

    kinds: tuple[type, ...]
    there: tuple[tuple[bool, ...], ...]

    def __call__(self, refs: Sequence[Any]) -> list[Any]:
        """The groups, with references for arrays."""
        left = iter(refs)
        rows = zip(self.kinds, self.there, strict=True)
        return [kind(*(next(left) if here else None for here in row)) for kind, row in rows]


def _listed(*groups: Any) -> tuple[list[jax.Array], Named]:
    there = tuple(tuple(x is not None for x in group) for group in groups)
    arrays = [x for group in groups for x in group if x is not None]
    return arrays, Named(tuple(map(type, groups)), there)


@cache
def bound(program: Callable[..., None], *settings: Any) -> Callable[..., None]:
    """The program with its settings: one object for the same settings, so it is traced once."""
    return partial(program, *settings)


def _call(
    name: str,
    kernel: Any,
    cut: Cut,
    layers: int,
    arrays: Sequence[jax.Array],
    outs: Sequence[jax.ShapeDtypeStruct],
    tuning: Tuning,
    warps: int,
    aliases: dict[int, int] | None = None,
) -> list[jax.Array]:
    """Run a kernel whose references are whole arrays, over all programs of `layers` layers."""
    run = pl.pallas_call(
        kernel,
        grid=(layers * cut.down * cut.across,),
        in_specs=[whole(x.shape) for x in arrays],
        out_specs=[whole(x.shape) for x in outs],
        out_shape=list(outs),
        input_output_aliases=aliases or {},
        interpret=tuning.interpret,
        name=f"learned_{name}",
        compiler_params=triton.CompilerParams(num_warps=warps, num_stages=tuning.stages),
    )
    return list(run(*arrays))


@cache
def whole(shape: tuple[int, ...]) -> pl.BlockSpec:
    """A reference to all of an array, whatever the program."""
    return pl.BlockSpec(shape, partial(_origin, len(shape)))


def _origin(axes: int, *grid: Any) -> tuple[int, ...]:
    return (0,) * axes
