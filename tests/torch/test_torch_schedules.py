"""Every torch scheduler turns the outer step exactly as it turns SGD's rate, and so does optax's
`scale=`."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import laconic

torch = pytest.importorskip("torch", reason="an extra: pip install 'laconic[torch]'")
from torch.optim import lr_scheduler as schedules

from laconic.torch import LearnedOuter

ROUNDS = 6
SCHEDULES = {
    "StepLR": lambda o: schedules.StepLR(o, 2, gamma=0.5),
    "CosineAnnealingLR": lambda o: schedules.CosineAnnealingLR(o, ROUNDS),
    "LambdaLR": lambda o: schedules.LambdaLR(o, lambda t: 1.0 / (1 + t)),
    "ReduceLROnPlateau": lambda o: schedules.ReduceLROnPlateau(o, patience=1),
    "OneCycleLR": lambda o: schedules.OneCycleLR(
        o, 2.0, total_steps=ROUNDS + 1, cycle_momentum=False
    ),
}


def made(params, name):
    outer = LearnedOuter(params, "lopt-a-general", weight_decay=0.01)
    return outer, SCHEDULES[name](outer)


def advance(schedule):
    plateau = isinstance(schedule, schedules.ReduceLROnPlateau)
    schedule.step(1.0) if plateau else schedule.step()


@pytest.fixture
def params():
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(*shape)) for shape in ((3, 4), (5,))]


def set_deltas(params, now):
    generator = torch.Generator().manual_seed(now)
    for p in params:
        p.grad = 0.01 * torch.randn(p.shape, generator=generator)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_step_is_the_plain_one_times_the_schedule(name, params):
    outer, schedule = made(params, name)
    told = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    want = SCHEDULES[name](told)
    for now in range(ROUNDS):
        set_deltas(params, now)
        before = [p.detach().clone() for p in params]
        (plain,) = copy.deepcopy([outer])
        plain.param_groups[0]["lr"] = 1.0
        plain_params = plain.param_groups[0]["params"]
        for p, own in zip(plain_params, params, strict=True):
            p.grad = own.grad.clone()
        plain.step()
        outer.step()
        (rate,) = (group["lr"] for group in told.param_groups)
        assert outer.param_groups[0]["lr"] == pytest.approx(rate, rel=1e-12)
        for p, q, start in zip(params, plain_params, before, strict=True):
            torch.testing.assert_close(p, start - rate * (start - q), rtol=1e-6, atol=1e-7)
        told.step()
        advance(schedule)
        advance(want)
    assert rate != 1.0


@pytest.mark.parametrize("name", SCHEDULES)
def test_optimizer_and_schedule_go_on_from_their_state_dicts(name, params):
    outer, schedule = made(params, name)
    twins = None
    for now in range(ROUNDS):
        if now == 3:
            twins = [torch.nn.Parameter(p.detach().clone()) for p in params]
            other, its = made(twins, name)
            other.load_state_dict(copy.deepcopy(outer.state_dict()))
            its.load_state_dict(copy.deepcopy(schedule.state_dict()))
        for given, optimizer, s in [(params, outer, schedule)] + (
            [(twins, other, its)] if twins else []
        ):
            set_deltas(given, now)
            optimizer.step()
            advance(s)
    for p, q in zip(params, twins, strict=True):
        assert torch.equal(p, q)


def test_one_cycle_says_that_there_is_no_momentum_to_cycle(params):
    with pytest.raises(ValueError, match="momentum"):
        schedules.OneCycleLR(
            LearnedOuter(params, "lopt-a-general"), 1.0, total_steps=9, cycle_momentum=True
        )


@jax.numpy_dtype_promotion("standard")  # optax's own schedules promote
def test_optax_scales_the_step_by_its_schedule():
    """Each round's update is that of `scale=1` from the same state, times the schedule."""
    learned = laconic.load("lopt-a-general")
    schedule = optax.cosine_decay_schedule(1.0, ROUNDS)
    scaled, plain = learned.optax(scale=schedule), learned.optax()
    params = {"w": jnp.linspace(-1, 1, 12).reshape(3, 4), "b": jnp.arange(3.0)}
    states = scaled.init(params), plain.init(params)
    for now in range(ROUNDS):
        rng = np.random.default_rng(now)
        deltas = {
            k: jnp.asarray(0.01 * rng.normal(size=x.shape), x.dtype) for k, x in params.items()
        }
        found = [
            tx.update(deltas, state, params)
            for tx, state in zip((scaled, plain), states, strict=True)
        ]
        states = tuple(state for _, state in found)
        for key in params:
            want = float(schedule(now)) * np.asarray(found[1][0][key])
            np.testing.assert_allclose(found[0][0][key], want, rtol=1e-6, atol=1e-9)
        params = optax.apply_updates(params, found[0][0])
