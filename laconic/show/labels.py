"""Labels that people read, for methods as they are given on the command line.

`labels_of(words)` is the only place where they are made: tables in a terminal, in Markdown and in
pages, sentences and figures all show "SlowMo 0.3 / 1.67 / 0.8" for
`slowmo:gamma=0.3,alpha=1.6666666666666667,beta=0.8`. Records hold the word.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import PurePath

from laconic.methods import METHODS

SYMBOLS = {"gamma": "γ", "alpha": "α", "beta": "β", "eta": "η", "mu": "μ", "tau": "τ"}
SYMBOLS |= {"beta1": "β₁", "beta2": "β₂", "weight_decay": "weight decay"}
SYMBOLS |= {"name": "", "compress": ""}
TITLES = {
    "local-sgd": "local SGD",
    "slowmo": "SlowMo",
    "diloco": "DiLoCo",
    "muloco": "MuLoCo",
    "snoo": "SNOO",
    "sparseloco": "SparseLoCo",
    "desloc": "DES-LOC",
    "noloco": "NoLoCo",
    "fedavg": "FedAvg",
    "fedavgm": "FedAvgM",
    "fedexp": "FedExP",
    "fedprox": "FedProx",
    "scaffold": "SCAFFOLD",
    "fedadam": "FedAdam",
    "fedyogi": "FedYogi",
    "fedadagrad": "FedAdagrad",
    "sgd": "SGD",
    "adam": "Adam",
    "small-batch-sgd": "small-batch SGD",
}
FILE = ".safetensors"


def labels_of(words: Iterable[str]) -> dict[str, str]:
    """A label for each word; no two are the same.

    A label of the user's own is left as it is. Where two short labels would be the same, numbers
    are given in full, and where that does not help either, the word is the label.

    >>> labels_of(["slowmo:gamma=0.3,alpha=1.6666666666666667,beta=0.8", "lopt-a-fmnist"])
    {'slowmo:gamma=0.3,alpha=1.6666666666666667,beta=0.8': 'SlowMo 0.3 / 1.67 / 0.8', \
'lopt-a-fmnist': 'lopt-a-fmnist'}
    """
    ways: Sequence[Callable[[str], str]] = (_short, _full, str)
    level = dict.fromkeys(words, 0)
    while True:
        found = {word: ways[i](word) for word, i in level.items()}
        times = Counter(found.values())
        alike = [word for word, label in found.items() if times[label] > 1 and label != word]
        if not alike:
            return found
        level |= {word: level[word] + 1 for word in alike}


def numbers_meant(words: Iterable[str]) -> str:
    """What the numbers of short labels stand for: "SlowMo: γ / α / β"; "" if there are none."""
    told = {}
    for word in words:
        name, options = _parse(word)
        if len(_main(name)) > 1 and set(_main(name)) <= set(options):
            told[_title(name)] = " / ".join(SYMBOLS.get(key, key) for key in _main(name))
    return "; ".join(f"{title}: {meant}" for title, meant in told.items())


def _short(word: str) -> str:
    return _label(word, lambda text: f"{float(text):.3g}")


def _full(word: str) -> str:
    return _label(word, str)


def _label(word: str, number: Callable[[str], str]) -> str:
    """Name and numbers: its main ones alone if all are given, else each with its symbol."""
    name, options = _parse(word)
    if not name:
        return word
    said = {key: _value(key, text, number) for key, text in options.items()}
    main = _main(name)
    lead = ""
    if main and set(main) <= set(said):
        lead = " " + " / ".join(said.pop(key) for key in main)
    rest = [f"{SYMBOLS.get(key, key)} {text}".strip() for key, text in said.items()]
    first = "" if lead or not rest else f" {rest.pop(0)}"
    return ", ".join([f"{_title(name)}{lead}{first}", *rest])


def _parse(word: str) -> tuple[str, dict[str, str]]:
    """The method's name and its options as text; ("", {}) for a label of the user's own."""
    name, colon, tail = word.partition(":")
    items = [item.partition("=") for item in tail.split(",")] if colon else []
    plain = re.fullmatch(r"\S+", name) and all(re.fullmatch(r"\w+", key) for key, _, _ in items)
    if not plain or not all(equals and text for _, equals, text in items):
        return "", {}
    return name, {key: text for key, _, text in items}


def _main(name: str) -> tuple[str, ...]:
    """The numbers that a reader of the field knows a method by, in order."""
    return METHODS[name].swept if name in TITLES else ()


def _title(name: str) -> str:
    if name.endswith(FILE):  # of runs/mine/best.safetensors the folder and the file say enough
        path = PurePath(name.removesuffix(FILE))
        return "/".join(path.parts[-2:])
    return TITLES.get(name, name)


def _value(key: str, text: str, number: Callable[[str], str]) -> str:
    """An option's value: numbers by `number`, and how much top-k keeps in percent."""
    if key == "compress":
        kept = lambda found: f"top-k {100 * float(found[1]):.3g}%"
        return re.sub(r"topk:(\d*\.?\d+)(?![\w.])", kept, text).replace("+", " + ")
    try:
        return number(text) if float(text) else text
    except ValueError:
        return text
