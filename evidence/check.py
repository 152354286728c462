"""Recompute every number that README, docs and cards print, and say which were not checked.

python -m evidence.check              fails on a mismatch; says how much of each page is covered
python -m evidence.check --left       also lists the lines whose numbers are not covered
"""

import argparse
import re
import sys
from collections.abc import Iterator, Sequence

from evidence import cards, prose, provenance, seeds, sources
from evidence.numbers import NEVER, PATTERN, agrees, significant
from evidence.pages import Page, Row, plain, tokens
from evidence.records import ROOT

PAGES = ("README.md", "docs/index.md", "docs/results.md", "docs/suite.md", "docs/results/*.md")


def pages() -> list[Page]:
    """The pages whose numbers are claims."""
    return [Page(path) for pattern in PAGES for path in sorted(ROOT.glob(pattern))]


def check_tables(page: Page, makers: dict[str, sources.Made]) -> Iterator[str]:
    """What differs in a page's tables; cells that agree are covered."""
    made = makers.get(page.name, [])
    for row in page.rows():
        maker = made if callable(made) else dict(enumerate(made)).get(row.table)
        if maker is not None:
            yield from _check_row(page, row, maker)


def _check_row(page: Page, row: Row, maker: sources.Maker) -> Iterator[str]:
    where = f"{page.name}:{page.line(row.start)}: {row.cells[0]}"
    try:
        cells = maker(row)
    except (KeyError, AssertionError, ValueError, IndexError) as error:
        yield f"{where}: no record gives this row ({error!r})"
        return
    page.cover(row.starts[0], row.starts[1])  # the name: it was found among the records
    for j, values in cells.items():
        printed = tokens(row.cells[j])
        page.cover(row.starts[j], row.starts[j + 1])
        pairs = list(zip(printed, values, strict=False))
        if len(printed) != len(values) or not all(agrees(*pair) for pair in pairs):
            said = ", ".join(significant(value) for value in values)
            yield f"{where}: {row.headers[j]}: printed {row.cells[j]}, the records give {said}"


def check_prose(page: Page, claims: Sequence[prose.Claim]) -> Iterator[str]:
    """What differs in a page's sentences; numbers in those that agree are covered."""
    for template, values in claims:
        found = _find(page, template)
        if found is None:
            yield f"{page.name}: these words are not there any more: {template!r}"
            continue
        page.cover(found.start(), found.end())
        place = f"{page.name}:{page.line(found.start())}: {template!r}"
        yield from _differences(place, found.groups(), values())
    for at, line, numbers in prose.appendix(page):
        place = f"{page.name}:{page.line(at)}: {line.strip()[:60]!r}"
        printed = [n.partition("±")[2] or n for n in tokens(plain(line)) if n != NEVER]
        page.cover(at, at + len(line))
        yield from _differences(place, printed[: len(numbers)], numbers)


def _differences(place: str, printed: Sequence[str], values: Sequence[float]) -> Iterator[str]:
    for one, value in zip(printed, values, strict=True):
        if not agrees(one, value):
            yield f"{place}: printed {one}, the records give {significant(value)}"


def _find(page: Page, template: str) -> re.Match[str] | None:
    """A sentence on a page, however its lines are broken; {} stands for a number."""
    parts = [r"\s+".join(map(re.escape, re.split(r"\s+", part))) for part in template.split("{}")]
    return re.search(rf"((?<!\d){PATTERN}|{NEVER})".join(parts), page.raw)


def check() -> tuple[list[str], list[Page], tuple[int, int]]:
    """All mismatches, the pages with what of them was covered, and the cards' numbers."""
    wrong, makers, claims = [], sources.sources(), prose.claims()
    found = pages()
    for page in found:
        wrong += [*check_tables(page, makers), *check_prose(page, claims.get(page.name, []))]
    bad, numbers = cards.check()
    return [*wrong, *bad, *seeds.check(), *provenance.check()[0]], found, numbers


def main() -> int:
    """Print mismatches and coverage → 1 if there is a mismatch."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--left", action="store_true", help="list what is not covered")
    listing = parser.parse_args().left
    wrong, found, (known, told) = check()
    covered = total = 0
    for page in found:
        covered += len(page.checked)
        total += len(page.numbers)
        print(f"{len(page.checked):6,} of {len(page.numbers):6,}  {page.name}")
        for line, numbers in page.left() if listing else []:
            print(f"{'':18}line {line}: {numbers}")
    print(f"{known:6,} of {told:6,}  cards of the published optimizers")
    print(f"{covered + known:6,} of {total + told:6,}  in all; {len(wrong)} mismatches")
    for text in wrong:
        print(f"error: {text}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
