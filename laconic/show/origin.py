"""Where records came from, in words: what made a run, and the methods of it that were run elsewhere
or later."""

from collections.abc import Iterable, Sequence

from laconic.show.panels import Record
from laconic.show.summary import MISSING, count


def origins(records: Sequence[Record]) -> list[Record]:
    """The provenance that a run was begun with, and others of methods in it."""
    return [
        record["provenance"]
        for record in records
        if record["kind"] in ("run", "method") and "provenance" in record
    ]


def commits(origins: Iterable[Record]) -> str:
    """The commits, each once, and whether the source had changed since."""
    return _once(
        f"{o['commit'] or MISSING}{', with uncommitted changes' if o['dirty'] else ''}"
        for o in origins
    )


def devices(origins: Iterable[Record]) -> str:
    """The devices and how many cores there were beside them, each once."""
    return _once(
        f"{o['device']['count']} × {o['device']['kind']} ({o['device']['platform']}), "
        f"{count(o['host_cpus'])} CPU cores"
        for o in origins
    )


def versions(origins: Iterable[Record]) -> str:
    """The versions of all libraries, each set of them once."""
    return _once(
        ", ".join(f"{name} {version or MISSING}" for name, version in o["versions"].items())
        for o in origins
    )


def started(origins: Iterable[Record]) -> str:
    """When it was begun."""
    return _once(o["started"] for o in origins)


def _once(items: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(items))
