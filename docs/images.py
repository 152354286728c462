"""Draw the pictures of README and docs/ from the records: `python docs/images.py [NAME …]`.

`PICTURES` says what each picture in docs/images/ is drawn from. The picture of the report is a
screenshot and needs Chromium; without one it stays as it is.
"""

import io
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from PIL import Image

from laconic.reproduce.outcome import experiment_figure, read_outcome
from laconic.show.comparison import curves_figure, legend, panels
from laconic.show.figures import axes_grid, draw_panel, plot_style
from laconic.show.report import report_folder
from laconic.store import atomic
from laconic.store.records import read

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
DOTS = 115  # per inch: letters are as large as the page's where a picture is 700 pixels wide
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SHOWN = (  # the methods of README's table
    "local-sgd:gamma=0.3",
    "adam:alpha=0.005",
    "slowmo:gamma=0.3,alpha=1.6666666666666667,beta=0.8",
    "lopt-a-fmnist",
    "lagg-a-fmnist",
)
FRAMES = """<!DOCTYPE html><meta charset="utf-8"><style>
body {margin: 0; display: flex; gap: 16px; background: #b9c0ca} iframe {border: 0; height: 1450px}
</style><iframe src="report.html" width="1080"></iframe>
<iframe src="report.html" width="390"></iframe>"""


# --- ways to draw ---------------------------------------------------------------------------------


def compared(folder: Path) -> bytes:
    """Train loss and test accuracy of the methods in README's table."""
    return small(drawn(curves_figure(chosen(folder))))


def opening(folder: Path) -> bytes:
    """Their train loss alone, which is still read on a phone."""
    records = chosen(folder)
    first = replace(panels(records)[0], key=tuple(legend(records)))
    with plot_style():
        figure, (ax,) = axes_grid(1, cell=(3.9, 3.0))
        draw_panel(ax, first)
    return small(drawn(figure, dots=190))


def chosen(folder: Path) -> list[dict]:
    """The records of a comparison without the methods that are not shown."""
    records = read(folder / "records.jsonl")
    shown = [x for x in records if x["kind"] != "method" or x["label"] in SHOWN]
    rows = lambda x: [row for row in x["rows"] if row["label"] in SHOWN]
    return [{**x, "rows": rows(x)} if x["kind"] == "summary" else x for x in shown]


def experiment(folder: Path) -> bytes:
    """The figure of an experiment of the paper, in two columns."""
    outcome = read_outcome(folder, read(folder / "records.jsonl")[-1])
    return small(drawn(experiment_figure(outcome, columns=2)))


def report(folder: Path) -> bytes:
    """The report of a folder as a desk and a phone show it, side by side."""
    browser = next(path for path in map(shutil.which, BROWSERS) if path)
    with tempfile.TemporaryDirectory() as name:
        there = Path(name)
        report_folder(folder, there / "report.html")
        (there / "frames.html").write_text(FRAMES)
        shot = there / "shot.png"
        words = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        words += ["--window-size=1486,1450", f"--screenshot={shot}"]
        page = (there / "frames.html").as_uri()
        subprocess.run([*words, page], check=True, capture_output=True, timeout=120)
        return small(shot.read_bytes(), colours=128)


def drawn(figure: "Figure", dots: int = DOTS) -> bytes:
    """A figure as PNG, as large as a page needs it."""
    buffer = io.BytesIO()
    with plot_style():
        figure.savefig(buffer, format="png", dpi=dots)
    return buffer.getvalue()


def small(png: bytes, colours: int = 64) -> bytes:
    """The picture in few colours: a third of the bytes."""
    image = Image.open(io.BytesIO(png)).convert("RGB")
    image = image.quantize(colours, kmeans=1, dither=Image.Dither.NONE)
    buffer = io.BytesIO()
    image.save(buffer, "png", optimize=True)
    return buffer.getvalue()


# --- which picture is of which records ------------------------------------------------------------


class Source(NamedTuple):
    """How a picture is drawn, and the folder in results/ with its records."""

    draw: Callable[[Path], bytes]
    folder: str

    @property
    def path(self) -> Path:
        """Where the records are."""
        return ROOT / "results" / self.folder


PICTURES = {
    "home": Source(opening, "fmnist-learned"),
    "fashion-mnist": Source(compared, "fmnist-learned"),
    "speedup": Source(experiment, "reproduce/table-speedup-full"),
    "local-steps": Source(experiment, "reproduce/table-rounds-full"),
    "ablation": Source(experiment, "reproduce/fig-ablation-full"),
    "compression": Source(experiment, "reproduce/fig-compress-full"),
    "large-models": Source(experiment, "reproduce/fig-large-full"),
    "federated": Source(experiment, "reproduce/fig-federated-full"),
    "overhead": Source(experiment, "reproduce/table-overhead-full"),
    "report": Source(report, "fmnist-learned"),
}


def main(names: list[str]) -> int:
    """Draw the named pictures, or all."""
    unknown = sorted(set(names) - set(PICTURES))
    if unknown:
        known = ", ".join(PICTURES)
        print(f"error: no picture is named {unknown[0]!r}; there are {known}.", file=sys.stderr)
        return 1
    for name in names or PICTURES:
        source = PICTURES[name]
        if source.draw is report and not any(map(shutil.which, BROWSERS)):
            print(f"{name}.png stays as it is: there is no Chromium to take it with.")
            continue
        data = source.draw(source.path)
        atomic.write_bytes(IMAGES / f"{name}.png", data)
        print(f"{name}.png: {len(data):,} bytes, from results/{source.folder}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
