"""Made-up lives of worker processes, and records of a training."""

from laconic.show.training import Life, of_lives
from tests.show.made_up import usual

SECONDS = {"compute": 0.5, "quorum": 0.25, "gather": 0.25, "check": 0.0, "outer": 0.125}
SECONDS |= {"store": 0.0}


def a_row(now, at, digest=None, **more):
    """Round `now`, committed at that time; its loss is 1 / now, and its state is named after it."""
    row = {"round": now, "loss": 1 / now, "losses": {}, "quorum": [0, 1], "excluded": {}}
    row |= {"sent": 100, "received": 90}
    row |= {"attempts": 1, "healed": False, "seconds": SECONDS, "notes": [], "committed_at": at}
    return row | {"digest": digest or f"state {now}"} | more


def an_end(rounds, digest=None, **more):
    end = {"kind": "end", "round": rounds, "digest": digest or f"state {rounds}"}
    end |= {"message_bits": 800, "refused": {}}
    return end | {"heldout": {"accuracy": 0.9, "loss": 0.5}} | more


def a_life(worker, begun, rounds, digest=None, end=None, at=None):
    """One that commits these rounds a second apart, from a second after its start on."""
    rows = [a_row(r, begun + 1 + i if at is None else at[i], digest) for i, r in enumerate(rounds)]
    return Life(worker, begun, rows, end or {})


def records(lives=None):
    """What a folder holds after a training."""
    lives = lives or [a_life(w, 10.0 + w / 10, range(1, 13), end=an_end(12)) for w in range(2)]
    rounds, summary = of_lives(lives)
    run = usual(2, 12)[0]
    header = {name: run[name] for name in ("kind", "task", "provenance")}
    config = {"optimizer": "slowmo:beta=0.5", "workers": 2, "local_steps": 4, "batch": 8}
    header |= {"config": config | {"compress": "int8"}, "engine": "torchft"}
    header |= {"command": "laconic launch --workers 2 -- train digits"}
    return [header, {"kind": "rounds", **rounds}, {"kind": "summary", **summary}]
