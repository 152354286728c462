"""Pictures of what a newcomer sees first: the demo's last screen, the report and the docs' home.

    python benchmarks/screenshots.py --out shots                          all of them
    python benchmarks/screenshots.py --out shots --only report-phone docs

- `demo`: what `laconic compare` prints at the end in a terminal of 80 columns
- `report-desk`, `report-phone`: the report of results/, as it opens
- `open-desk`, `open-phone`: the same, further down, with a sweep's picture
- `docs`, `docs-phone`: the home page of the documentation (needs laconic[docs])

Needs chromium or Google Chrome. The programs run as users run them; nothing is made up.
"""

import argparse
import fcntl
import io
import os
import pty
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NoReturn

from PIL import Image
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
COLUMNS, ROWS = 80, 50
DESK, PHONE = (1280, 800), (390, 844)
LIMIT = 900  # seconds a program may take
OPENED = "sweeps/fmnist-slowmo"
SHOTS = {
    "demo": (700, 860),
    "report-desk": DESK,
    "report-phone": PHONE,
    "open-desk": DESK,
    "open-phone": PHONE,
    "docs": DESK,
    "docs-phone": PHONE,
}
# A browser's window has a least width; a frame inside it is as narrow as a phone.
FRAME = """<!DOCTYPE html><meta charset="utf-8"><body style="margin:0">
<iframe src="{address}" style="width:{width}px;height:{height}px;border:0"></iframe>
<script>
const frame = document.querySelector('iframe'), opened = "{opened}";
frame.onload = () => {{
  const folds = [...frame.contentDocument.querySelectorAll('details')];
  const wanted = folds.find(fold => opened && fold.querySelector('b').textContent === opened);
  if (wanted) {{ wanted.open = true; wanted.scrollIntoView(); }}
}};
</script>"""


def demo_page(folder: Path, words: Sequence[str]) -> Path:
    """The demo's screen as a page: its own characters and colours."""
    command = [sys.executable, "-m", "laconic", "compare", *words]
    text = printed([*command, "--out", str(folder / "run")])
    screen = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    screen.print(Text.from_ansi(text), soft_wrap=True)
    prompt = escape(" ".join(["$ laconic compare", *words]))
    look = "margin:0;padding:14px;background:#fff;color:#1b1e23;font:13px/1.3 monospace"
    code = f"<pre>{prompt}\n\n{{code}}</pre>".format
    body = screen.export_html(inline_styles=True, code_format=code(code="{code}"))
    page = folder / "demo.html"
    page.write_text(f'<!DOCTYPE html><meta charset="utf-8"><body style="{look}">{body}</body>')
    return page


def printed(command: Sequence[str]) -> str:
    """What a command prints to a terminal of `COLUMNS`; its progress bars are left out."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color"}
    with tempfile.TemporaryFile("w+") as errors:
        running = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=errors, env=environment
        )
        os.close(theirs)
        found = b""
        while piece := _read(ours):
            found += piece
        os.close(ours)
        if running.wait(timeout=LIMIT):
            errors.seek(0)
            fail(f"{' '.join(command)} failed:\n{errors.read()[-2000:]}")
    return found.decode().replace("\r\n", "\n")


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # Linux's way of saying that the other end is closed
        return b""


def report_page(folder: Path) -> Path:
    """The report of everything on record."""
    page = folder / "report.html"
    run([sys.executable, "-m", "laconic", "report", "--results", "results", "--out", str(page)])
    return page


def docs_page(folder: Path) -> Path:
    """The home page of the documentation, built as `make docs` does."""
    site = folder / "site"
    run([sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(site)])
    return site / "index.html"


def run(command: Sequence[str]) -> None:
    """Run a program from the repository's root; say what it said if it fails."""
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT
    )
    if done.returncode:
        fail(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")


def shoot(browser: str, page: Path, out: Path, size: tuple[int, int], opened: str) -> None:
    """A picture of the page in a screen of that size, with one fold of it opened and in view."""
    width, height = size
    frame = page.with_name("frame.html")
    text = FRAME.format(address=page.as_uri(), width=width, height=height, opened=opened)
    frame.write_text(text)
    with tempfile.TemporaryDirectory() as profile:
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        options += [
            "--no-first-run",
            "--allow-file-access-from-files",
            f"--user-data-dir={profile}",
        ]
        options += ["--proxy-server=127.0.0.1:9", "--virtual-time-budget=20000"]
        options += ["--force-device-scale-factor=2", f"--user-data-dir={profile}"]
        options += [f"--screenshot={out}", f"--window-size={max(width, 600)},{height + 200}"]
        run([browser, *options, frame.as_uri()])
    with Image.open(out) as whole:
        whole.crop((0, 0, 2 * width, 2 * height)).save(out)


def fail(why: str) -> NoReturn:
    raise SystemExit(f"error: {why}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the folder of the pictures")
    parser.add_argument("--only", nargs="+", choices=SHOTS, default=list(SHOTS))
    words = "what the demo's `laconic compare` is given, such as --demo=--rounds=50"
    parser.add_argument("--demo", action="append", default=[], help=words)
    given = parser.parse_args()
    browser = next((path for path in map(shutil.which, BROWSERS) if path), None)
    if browser is None:
        fail(f"no browser to take pictures with: install one of {', '.join(BROWSERS)}.")
    out = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    makers = {"demo": lambda at: demo_page(at, given.demo), "report": report_page}
    makers |= {"open": report_page, "docs": docs_page}
    pages: dict[object, Path] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name in given.only:
            make = makers[name.partition("-")[0]]
            if make not in pages:
                pages[make] = make(Path(scratch))
            opened = OPENED if name.startswith("open") else ""
            shoot(browser, pages[make], out / f"{name}.png", SHOTS[name], opened)
            print(out / f"{name}.png", flush=True)


if __name__ == "__main__":
    main()
