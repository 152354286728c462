"""A round in fragments: parts of the model are exchanged at different times, and each while the
next local steps run (Streaming DiLoCo, Douillard et al., 2025).

The model's tensors are divided, in order, into F fragments of sizes as equal as can be. In every
round of H steps each fragment is exchanged once: fragment f after step s_f = ⌈(f + 1)·H/F⌉, so the
last one at the end. An exchange is the one of `laconic.round`, for some of the tensors: each worker
sends Δ_f = W_f − θ_f, what its own weights θ have moved from the global W, and an outer optimizer
with a state for this fragment steps W_f by the mean. The new W_f arrives τ local steps later, and
every worker mixes it into its own weights:

    θ_f ← α·θ_f + (1 − α)·W_f

Until then it trains on with the weights that it has. So workers differ at all times, and each one's
weights are part of its state. With one fragment, τ = 0 and α = 0 this is `communication_round`, to
the last bit.

A fragment is the tree of parameters with None in the place of all other tensors. BatchNorm's
statistics and the like are sent with the last fragment, and mixed as it is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from laconic.client import Client, Message, Shared, Standing
from laconic.compress import Compressor
from laconic.errors import LaconicError
from laconic.outer.base import for_parts
from laconic.round import Items, RoundState, Server, outer_phase
from laconic.tasks.base import Task
from laconic.workers import Workers


class Leg(NamedTuple):
    """Local steps `first` to `last` of a round; after them one fragment arrives, sent in the round
    before if it is `late`, and then one is sent."""

    first: int
    last: int
    arrives: int | None
    late: bool
    sent: int | None


@dataclass(frozen=True)
class Fragments:
    """How a model is exchanged in fragments; by default it is not.

    Args:
        count: F, how many fragments there are.
        delay: τ, the local steps between sending a fragment and its arrival; it arrives at the
            latest when the next one is sent.
        mix: α, the share of its own weights that a worker keeps when a fragment arrives.

    Example:
        >>> from laconic.fragments import Fragments
        >>> Fragments(count=3, delay=2, mix=0.5).sends(H=10)
        (4, 7, 10)
    """

    count: int = 1
    delay: int = 0
    mix: float = 0.0

    def __post_init__(self) -> None:
        if self.count < 1:
            raise LaconicError(f"a model has at least one fragment, got fragments {self.count}.")
        if self.delay < 0:
            raise LaconicError(f"the delay counts local steps, or is 0, got {self.delay}.")
        if not 0 <= self.mix < 1:
            raise LaconicError(
                "mix is the share of its own weights that a worker keeps, at least 0 and below 1 "
                f"(at 1 nothing is ever learned from the others), got {self.mix}."
            )

    @property
    def active(self) -> bool:
        """Whether a round differs from the plain one."""
        return self != Fragments()

    def sends(self, H: int) -> tuple[int, ...]:
        """After which local step of a round each fragment is sent."""
        if self.count > H:
            raise LaconicError(
                f"a round of {H} local steps has no room for {self.count} fragments: take at most "
                f"{H}, or more local steps."
            )
        after = tuple(-(-(f + 1) * H // self.count) for f in range(self.count))
        apart = min(last - first for first, last in zip((0, *after), after, strict=False))
        if self.delay > apart or self.delay >= H:
            most = min(apart, H - 1)
            raise LaconicError(
                f"a fragment must arrive before the next is sent: {self.count} of them in {H} "
                f"local steps allow a delay of at most {most}, got {self.delay}."
            )
        return after

    def legs(self, H: int) -> list[Leg]:
        """A round as stretches of local steps. The last fragment arrives in the round after, and
        without a delay none has to be awaited."""
        sends = {step: f for f, step in enumerate(self.sends(H))}
        arrivals: dict[int, tuple[int, bool]] = {}
        if self.delay:
            after = {step + self.delay: f for step, f in sends.items()}
            arrivals = {(step - 1) % H + 1: (f, step > H) for step, f in after.items()}
        found, done = [], 0
        for step in sorted({*sends, *arrivals}):
            found.append(Leg(done, step, *arrivals.get(step, (None, False)), sends.get(step)))
            done = step
        return found


def fragments_of(config: Mapping[str, Any]) -> Fragments:
    """The fragments that a run's config asks for; old records have none."""
    given = config.get("fragments", 1), config.get("delay", 0), config.get("mix", 0.0)
    return Fragments(*given)


def fragments_in_words(config: Mapping[str, Any]) -> str:
    """The fragments of a run's config, to follow other words; nothing if there are none."""
    found = fragments_of(config)
    if not found.active:
        return ""
    return f", {found.count} fragments, delay {found.delay}, mix {found.mix:g}"


class WorkerState(NamedTuple):
    """What a worker keeps: its optimizer's state, its compressor's residual of each fragment, its
    own weights and model state."""

    local: Any
    residuals: tuple[Any, ...]
    params: Any
    model_state: Any


# --- cutting --------------------------------------------------------------------------------------


def owners(sizes: list[int], count: int) -> list[int]:
    """To which fragment each tensor belongs: in order, and the largest fragment as small as can
    be."""
    if count > len(sizes):
        raise LaconicError(
            f"a model of {len(sizes)} tensors cannot be cut into {count} fragments: take at most "
            f"{len(sizes)}."
        )
    low, high = max(sizes), sum(sizes)
    while low < high:
        middle = (low + high) // 2
        if len(set(_filled(sizes, count, middle))) <= count:
            high = middle
        else:
            low = middle + 1
    return _filled(sizes, count, low)


def _filled(sizes: list[int], count: int, room: int) -> list[int]:
    """Fragments filled up to `room` one after the other; a tensor is left for each of the last."""
    found, now, filled = [], 0, 0
    for i, size in enumerate(sizes):
        left = len(sizes) - i
        if filled and (filled + size > room or left <= count - 1 - now):
            now, filled = now + 1, 0
        filled += size
        found.append(now)
    return found


@dataclass(frozen=True)
class Cut:
    """A model's division into fragments: the owner of every tensor."""

    owners: tuple[int, ...]
    count: int

    @classmethod
    def of(cls, params: Any, count: int) -> "Cut":
        """The division of a model with these parameters (arrays or shapes)."""
        sizes = [max(leaf.size, 1) for leaf in jax.tree.leaves(params)]
        return cls(tuple(owners(sizes, count)), count)

    def part(self, tree: Any, f: int) -> Any:
        """Fragment f of a tree of the parameters' structure: None for what is not in it."""
        leaves, structure = jax.tree.flatten(tree)
        kept = [leaf if own == f else None for leaf, own in zip(leaves, self.owners, strict=True)]
        return jax.tree.unflatten(structure, kept)

    def parts(self, tree: Any) -> tuple[Any, ...]:
        """All fragments."""
        return tuple(self.part(tree, f) for f in range(self.count))

    def joined(self, parts: Sequence[Any]) -> Any:
        """The tree whose fragments these are."""
        return eqx.combine(*parts)

    def put(self, tree: Any, f: int, part: Any) -> Any:
        """The tree with another fragment f."""
        return self.joined([part if g == f else self.part(tree, g) for g in range(self.count)])


def fragment_bits(compressor: Compressor, params: Any, count: int) -> int:
    """Bits of a worker's messages of a round, all fragments together."""
    return sum(compressor.bits(part) for part in Cut.of(params, count).parts(params))


def check_client(client: Client) -> None:
    """Refuse workers that cannot stop in the middle of a round."""
    if client.steps is None:
        raise LaconicError(
            "fragments are for workers that take local steps of their own and need nothing but "
            "weights: not for methods without local steps, nor for FedProx, SCAFFOLD, DES-LOC or "
            "NoLoCo. Leave out fragments, delay and mix, or take another method."
        )


# --- one worker -----------------------------------------------------------------------------------


def init_worker(client: Client, compressor: Compressor, shared: Shared, cut: Cut) -> WorkerState:
    """What a worker begins with: the global weights, and nothing behind it."""
    residuals = tuple(compressor.init(part) for part in cut.parts(shared.params))
    return WorkerState(client.init(shared), residuals, shared.params, shared.model_state)


def walk(
    client: Client, shared: Shared, state: WorkerState, batches: Any, first: int, key: jax.Array
) -> tuple[WorkerState, jax.Array]:
    """Some local steps of one worker, the round's `first` and those after it."""
    check_client(client)
    assert client.steps is not None
    run_key, _ = jax.random.split(key)
    standing = Standing(state.params, state.model_state, state.local, jnp.int32(first))
    end, losses = client.steps(shared, standing, batches, run_key)
    new = state._replace(local=end.local, params=end.params, model_state=end.model_state)
    return new, losses


def message_of(
    compressor: Compressor, shared: Shared, state: WorkerState, cut: Cut, f: int, key: jax.Array
) -> tuple[Message, WorkerState]:
    """One worker's message of fragment f, and its state once this is delivered."""
    _, encode_key = jax.random.split(key)
    fragment_key = jax.random.fold_in(encode_key, f) if f else encode_key
    delta = jax.tree.map(jnp.subtract, cut.part(shared.params, f), cut.part(state.params, f))
    payload, residual = compressor.encode(delta, state.residuals[f], fragment_key)
    residuals = (*state.residuals[:f], residual, *state.residuals[f + 1 :])
    extra = state.model_state if f == cut.count - 1 else ()
    return Message(payload, extra), state._replace(residuals=residuals)


def mixed(shared: Shared, state: WorkerState, cut: Cut, f: int, mix: float) -> WorkerState:
    """One worker after fragment f of the global model arrived."""
    part = _mix(cut.part(state.params, f), cut.part(shared.params, f), mix)
    state = state._replace(params=cut.put(state.params, f, part))
    if f < cut.count - 1:
        return state
    return state._replace(model_state=_mix(state.model_state, shared.model_state, mix))


def _mix(own: Any, arrived: Any, mix: float) -> Any:
    """α·own + (1 − α)·arrived; of integers and flags what arrived."""
    if mix == 0:
        return arrived

    def one(x: jax.Array, new: jax.Array) -> jax.Array:
        return mix * x + (1 - mix) * new if jnp.issubdtype(x.dtype, jnp.floating) else new

    return jax.tree.map(one, own, arrived)


# --- the server, and the whole round --------------------------------------------------------------


def part_phase(server: Server, state: RoundState, cut: Cut, f: int, combined: Any) -> RoundState:
    """The server's step on the combined messages of fragment f; `state.round` stays."""
    outer = server._replace(outer=for_parts(server.outer, state.shared.params))
    before = cut.part(state.shared.params, f), state.shared.model_state
    part = state._replace(shared=Shared(*before), clients=(), outer=state.outer[f])
    new = outer_phase(outer, part, combined, part.clients)
    params = cut.put(state.shared.params, f, new.shared.params)
    model_state = new.shared.model_state if f == cut.count - 1 else state.shared.model_state
    states = (*state.outer[:f], new.outer, *state.outer[f + 1 :])
    return state._replace(shared=Shared(params, model_state), outer=states)


def init_fragments(
    task: Task,
    workers: Workers,
    server: Server,
    fragments: Fragments,
    clients: int,
    key: jax.Array,
) -> RoundState:
    """As `init_round`, with a state of the outer optimizer for each fragment and the weights of
    each worker."""
    shared = Shared(*task.init(jax.random.fold_in(key, 0)))
    check_client(workers.client)
    cut = Cut.of(shared.params, fragments.count)
    one = init_worker(workers.client, workers.compressor, shared, cut)
    everyone = jax.tree.map(lambda x: jnp.broadcast_to(x, (clients, *jnp.shape(x))), one)
    tx = for_parts(server.outer, shared.params).tx
    outer = tuple(tx.init(part) for part in cut.parts(shared.params))
    return RoundState(shared, everyone, outer, jnp.int32(0), jax.random.fold_in(key, 1))


def fragmented_round(
    workers: Workers, server: Server, state: RoundState, items: Items, fragments: Fragments
) -> tuple[RoundState, jax.Array]:
    """One round in fragments, from a state as `init_fragments` gives it.

    Args:
        workers: where the workers run.
        server: the outer optimizer; every fragment has a state of it.
        state: the state after the round before.
        items: the minibatches and keys of this round, of workers that are all present.
        fragments: how many there are, and when they arrive.

    Returns:
        The next state, whose `shared` is the global model with all that was sent so far, and the
        local losses [K, H]. The function is pure: jit or scan it.
    """
    if items.ids is not None or items.present is not None:
        raise LaconicError(
            "fragments are for workers that stay: leave out the population, and missing workers."
        )
    cut = Cut.of(state.shared.params, fragments.count)
    H = jax.tree.leaves(items.batches)[0].shape[1]
    losses = []
    for leg in fragments.legs(H):
        state, losses_K = _steps(workers, state, items, leg)
        losses.append(losses_K)
        if leg.arrives is not None:
            state = _arrived(workers, state, items, cut, leg.arrives, fragments.mix, leg.late)
        if leg.sent is not None:
            state = _exchanged(workers, server, state, items, cut, leg.sent)
            if fragments.delay == 0:
                state = _arrived(workers, state, items, cut, leg.sent, fragments.mix)
    return state._replace(round=state.round + 1), jnp.concatenate(losses, axis=1)


def _steps(
    workers: Workers, state: RoundState, items: Items, leg: Leg
) -> tuple[RoundState, jax.Array]:
    """A leg's local steps of all workers, and their losses [K, steps]."""

    def phase(shared: Shared, own: WorkerState, item: tuple) -> tuple[WorkerState, jax.Array]:
        batches, key = item
        return walk(workers.client, shared, own, batches, leg.first, key)

    batches = jax.tree.map(lambda x: x[:, leg.first : leg.last], items.batches)
    clients, losses = workers.map(phase)(state.shared, state.clients, (batches, items.keys))
    return state._replace(clients=clients), losses


def _exchanged(
    workers: Workers, server: Server, state: RoundState, items: Items, cut: Cut, f: int
) -> RoundState:
    """Fragment f is sent, combined and stepped; what comes of it has yet to arrive."""

    def phase(shared: Shared, own: WorkerState, key: jax.Array) -> tuple[Message, WorkerState]:
        return message_of(workers.compressor, shared, own, cut, f, key)

    messages, clients = workers.map(phase)(state.shared, state.clients, items.keys)
    if items.weights is not None:
        messages = messages._replace(weight=messages.weight * items.weights)
    like = cut.part(state.shared.params, f)
    combined = workers.combine(messages, server.outer.combine, like)
    return part_phase(server, state._replace(clients=clients), cut, f, combined)


def _arrived(
    workers: Workers,
    state: RoundState,
    items: Items,
    cut: Cut,
    f: int,
    mix: float,
    late: bool = False,
) -> RoundState:
    """All workers mix in fragment f; of a late one there is none before the second round."""

    def phase(shared: Shared, own: WorkerState, key: jax.Array) -> WorkerState:
        return mixed(shared, own, cut, f, mix)

    old: Any = state.clients
    new = workers.map(phase)(state.shared, old, items.keys)
    if late:
        params, model_state = jax.tree.map(
            lambda n, o: jnp.where(state.round > 0, n, o),
            (new.params, new.model_state),
            (old.params, old.model_state),
        )
        new = new._replace(params=params, model_state=model_state)
    return state._replace(clients=new)
