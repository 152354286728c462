"""From which meta-trainings each published φ comes, one after the other from random weights on.

Cards count outer steps in one way: all of them, over the whole chain, up to the φ that each link
handed on. A link names its record below results/meta; where a run was stopped or its last φ was
taken, the step is given.
"""

from evidence.records import read

Link = str | tuple[str, int]

_LOPT = ("lopt-a-fmnist", "lopt-a-fmnist-again")
_LOPT_NOW = (*_LOPT, "lopt-a-fmnist-third", "lopt-a-fmnist-clipped")
_LAGG = ("lagg-a-fmnist", "lagg-a-fmnist-again")
_LAGG_NOW = (*_LAGG, "lagg-a-fmnist-clipped")
_LOPT_CIFAR = (*_LOPT_NOW, "lopt-a-cifar10-mlp2")
_LAGG_CIFAR = (*_LAGG_NOW, "lagg-a-cifar10-mlp2")
CHAINS: dict[str, tuple[Link, ...]] = {
    "lopt-a-fmnist": _LOPT_NOW,
    "lagg-a-fmnist": _LAGG_NOW,
    **{f"lopt-a-fmnist-h{H}": (*_LOPT, f"lopt-a-fmnist-h{H}") for H in (8, 16)},
    **{f"lagg-a-fmnist-h{H}": (*_LAGG, f"lagg-a-fmnist-h{H}") for H in (8, 16)},
    **{f"lopt-a-fmnist-{k}": (*_LOPT_NOW, f"lopt-a-fmnist-{k}") for k in ("tenth", "hundredth")},
    **{f"lagg-a-fmnist-{k}": (*_LAGG_NOW, f"lagg-a-fmnist-{k}") for k in ("tenth", "hundredth")},
    "lopt-a-fmnist-valid": (*_LOPT_NOW, "lopt-a-fmnist-valid"),
    "lagg-a-fmnist-valid": (*_LAGG_NOW, "lagg-a-fmnist-valid"),
    "lopt-a-cifar10-mlp2": _LOPT_CIFAR,
    "lagg-a-cifar10-mlp2": _LAGG_CIFAR,
    "lopt-a-imagenet32-mlp3": (*_LOPT_NOW, "lopt-a-imagenet32-mlp3"),
    "lagg-a-imagenet32-mlp3": (*_LAGG_NOW, "lagg-a-imagenet32-mlp3"),
    "lopt-a-cifar10-cnn": (*_LOPT_CIFAR, "lopt-a-cifar10-cnn"),
    "lagg-a-cifar10-cnn": (*_LAGG_CIFAR, "lagg-a-cifar10-cnn"),
    "lopt-fmnist": ("lopt-fmnist",),
    "lagg-fmnist": ("lagg-fmnist",),
    "lopt-a-digits": (*_LOPT, "lopt-a-digits"),
    "lopt-a-general": (*_LOPT, ("lopt-a-general", 612)),
    **{f"fedlopt-fmnist{x}": (*_LOPT_NOW, f"fedlopt-fmnist{x}") for x in ("", "-homogeneous")},
    **{
        f"fedlopt-cifar10-cnn{x}": (*_LOPT_CIFAR, f"fedlopt-cifar10-cnn{x}")
        for x in ("", "-homogeneous")
    },
    "lopt-r": (("lopt-r-third", 400), ("lopt-r-fourth", 380)),
}


def steps(name: str) -> list[int]:
    """The outer steps of each link of the chain of a published optimizer."""
    return [_steps(link) for link in CHAINS[name]]


def _steps(link: Link) -> int:
    folder, step = link if isinstance(link, tuple) else (link, None)
    last = read(f"meta/{folder}")[-1]
    if step is None:
        return last["best_step"]
    assert step <= last.get("steps", last.get("end", 0)), f"{folder} has no outer step {step}"
    return step
