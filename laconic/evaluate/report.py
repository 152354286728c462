"""The report of a comparison, made only from its records: a table, figures, and a page that says what came out."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from laconic.errors import LaconicError
from laconic.evaluate import figures, metrics
from laconic.evaluate import report_page as html
from laconic.evaluate.panels import (
    Panel,
    Record,
    bits_panel,
    of_kind,
    panels,
    round_values,
    seconds_per_round,
    styles,
    traffic_differs,
)
from laconic.store import atomic

MISSING = "–"
LADDER = 5  # losses in the table of times


def write_report(folder: Path, records: Sequence[Record]) -> list[Path]:
    """Write curves.png, curves.svg and report.html into `folder`, each in one step → their paths."""
    _check(records)
    curves = figures.curves_figure(records)
    contents = {
        "curves.png": figures.png_bytes(curves),
        "curves.svg": figures.svg_bytes(curves),
        "report.html": page(records).encode(),
    }
    for name, data in contents.items():
        atomic.write_bytes(folder / name, data)
    return [folder / name for name in contents]
