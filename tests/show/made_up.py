"""Records of comparisons that never ran, in the shape of `records.jsonl`."""

import math

import numpy as np

from laconic.show import metrics

LABELS = ("local-sgd", "slowmo:gamma=0.1,beta=0.95", "diloco", "fedadam", "lopt-a")
DENSE = 3_500_352  # bits of a small network
LINK = "100Mbit/20ms"
STEP = 0.003
EVERY = 20


def loss_curves(i, seeds, rounds):
    """Noisy exponentials towards 0.05; a later method is faster."""
    rng = np.random.default_rng(i)
    smooth = 0.05 + 2.25 * np.exp(-np.arange(1, rounds + 1) * 0.008 * (1 + i))
    return (smooth * np.exp(0.1 * rng.normal(size=(seeds, rounds)))).round(6)


def plain(values):
    return [
        [None if not math.isfinite(x) else x for x in row] for row in np.asarray(values).tolist()
    ]


def method_record(i, label, seeds, rounds, heldout=("loss", "accuracy"), sent=DENSE, **fields):
    at = [*range(EVERY, rounds, EVERY), rounds]
    rng = np.random.default_rng(100 + i)
    measured = {
        "loss": rng.uniform(0.3, 2, (seeds, len(at))),
        "accuracy": rng.uniform(0.5, 0.9, (seeds, len(at))),
    }
    record = {
        "kind": "method",
        "label": label,
        "train": plain(loss_curves(i, seeds, rounds)),
        "heldout": {name: plain(measured[name].round(6)) for name in heldout},
        "evaluated_at": at,
        "traffic": {"sent_bits": sent, "received_bits": DENSE, "topology": "server"},
        "workers": 8,
        "local_steps": 4,
        "step_seconds": STEP,
        "seconds": 75.0,
        "rounds_per_second": 40.0,
        "diverged": [False] * seeds,
    }
    return {**record, **fields}


def summary_record(methods, reference, target, link):
    curves = {m["label"]: np.array(m["train"], dtype=float) for m in methods}
    if target is None and reference is not None:
        target = metrics.minimum_loss(curves[reference])
    rows = []
    for m in methods:
        ours, last = (
            curves[m["label"]],
            {k: float(np.mean(np.array(v)[:, -1])) for k, v in m["heldout"].items()},
        )
        rounds = None if target is None else metrics.rounds_to_loss(ours, target)
        final = metrics.final_loss(ours)
        row = {
            "label": m["label"],
            "final_train": final if math.isfinite(final) else None,
            "final_train_error": 0.0012 if math.isfinite(final) and len(ours) > 1 else None,
            "test_loss": last.get("loss"),
            "test_accuracy": last.get("accuracy"),
            "rounds_to_target": rounds,
            "speedup": None if reference is None else metrics.speedup(curves[reference], ours),
            "sent_megabytes": m["traffic"]["sent_bits"] * ours.shape[1] / 8e6,
            "received_megabytes": m["traffic"]["received_bits"] * ours.shape[1] / 8e6,
            "seconds_to_target": None if rounds is None or link is None else 0.1 * rounds,
            "diverged": sum(m["diverged"]),
        }
        rows.append(row)
    return {"kind": "summary", "target_loss": target, "reference": reference, "rows": rows}


def comparison(
    methods, reference: str | None = LABELS[0], target: float | None = None, link: str | None = None
):
    config = {"task": "digits-mlp", "optimizers": [m["label"] for m in methods], "workers": 8}
    config |= {"local_steps": 4, "batch": 16, "rounds": len(methods[0]["train"][0])}
    config |= {"seeds": len(methods[0]["train"]), "evaluate_every": EVERY, "compress": "dense"}
    config |= {"link": link, "step_time": None, "target_loss": target, "topology": "server"}
    run = {
        "kind": "run",
        "config": config,
        "command": "laconic compare --rounds 300 --seeds 10",
        "task": {"name": "digits-mlp", "source": "bundled digits"}
        | {"parameters": 109386, "classes": 10},
        "provenance": {
            "commit": "3f2c9a7d5e5b0c0d",
            "dirty": True,
            "versions": {"laconic": "0.1.0", "jax": "0.10.2", "optax": None},
            "device": {"kind": "Abacus 3000", "count": 2, "platform": "gpu"},
            "host_cpus": 16,
            "started": "2031-02-03T04:05:06+00:00",
        },
    }
    return [run, *methods, summary_record(methods, reference, target, link)]


def usual(seeds=4, rounds=120, labels=LABELS, link=None, **options):
    return comparison(
        [method_record(i, label, seeds, rounds, **options) for i, label in enumerate(labels)],
        link=link,
    )


def diverging(rounds=120, at=60):
    """fedadam: two of three seeds leave the finite numbers in round `at`, after one round of
    nonsense."""
    methods = [method_record(i, label, 3, rounds) for i, label in enumerate(LABELS)]
    curves = np.array(methods[3]["train"])
    curves[:2, at - 2] = 1e30
    curves[:2, at - 1 :] = np.nan
    methods[3] |= {"train": plain(curves), "diverged": [True, True, False]}
    return comparison(methods)


def oracle_smooth(values, window=10):
    """The trailing mean by a cumulative loop: NaN until the window is full."""
    return np.array(
        [
            np.nan if t < window - 1 else sum(values[t - window + 1 : t + 1]) / window
            for t in range(len(values))
        ]
    )
