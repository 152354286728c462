"""Imports in the package point one way; library code neither compiles, prints nor pickles."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "laconic"
FILES = sorted(ROOT.rglob("*.py"))

# A unit is a module or folder of the package. It may import its own layer and those above it in
# this list.
LAYERS = [
    {"errors", "version", "device"},
    {"architecture", "relative", "local", "largest", "tuned"},
    {"data"},
    {"tasks"},
    {"client", "compress", "outer"},
    {"means"},
    {"workers"},
    {"round"},
    {"fragments"},
    {"federated", "peers"},
    {"method"},
    {"meta", "methods"},
    {"engines", "torch"},
    {"show"},
    {"runs"},
    {"recipes"},
    {"bench"},
    {"reproduce", "flower"},
    {"cli"},
    {"__main__"},
]
RANK = {unit: rank for rank, units in enumerate(LAYERS) for unit in units}
# What these two may import.
BESIDE = {
    "store": {"errors", "version"},
    "zoo": {"errors", "version", "store", "architecture", "relative", "local", "outer"},
}
READS_AND_WRITES = RANK["federated"]  # from this layer on, they may be imported

FORBIDDEN = {
    "pickle",
    "cPickle",
    "dill",
    "cloudpickle",
    "tensorflow",
    "tensorflow_datasets",
    "haiku",
    "gin",
}
DISPLAYS = {"cli", "runs", "show", "bench"}
COMPILES = {"runs", "engines", "flower", "cli", "bench"}


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def unit_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports_of(tree: ast.Module) -> list[str]:
    """Every module a file imports, with relative ones as '.'."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append("." * node.level + (node.module or ""))
    return found


def units_imported(tree: ast.Module) -> set[str]:
    """The units of the package that a file imports; "" is the package itself."""
    inside = [name for name in imports_of(tree) if name == "laconic" or name.startswith("laconic.")]
    return {(name + ".").split(".")[1] for name in inside}


def allowed(unit: str, imported: str) -> bool:
    if imported == unit:
        return True
    if unit in BESIDE:
        return imported in BESIDE[unit]
    if imported in BESIDE:
        return RANK[unit] >= READS_AND_WRITES
    return imported in RANK and RANK[imported] <= RANK[unit]


def calls_print(tree: ast.Module) -> bool:
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return any(isinstance(f, ast.Name) and f.id == "print" for f in calls)


def compiles(tree: ast.Module) -> bool:
    names = {"jit", "filter_jit", "pmap"}
    by_attribute = any(
        isinstance(node, ast.Attribute) and node.attr in names for node in ast.walk(tree)
    )
    froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return by_attribute or any(alias.name in names for node in froms for alias in node.names)


@pytest.fixture(params=FILES, ids=lambda path: str(path.relative_to(ROOT)))
def path(request):
    return request.param


def test_a_file_imports_only_what_lies_before_it(path):
    unit = unit_of(path)
    if unit == "__init__":  # the public interface gathers everything
        return
    assert unit in RANK or unit in BESIDE, (
        f"{unit} has no place in the order of layers yet: give it one above"
    )
    imported = units_imported(parse(path))
    assert "" not in imported, (
        "inside the package, import the module that defines a thing, not laconic"
    )
    wrong = sorted(other for other in imported if not allowed(unit, other))
    assert not wrong, f"{unit} must not import {', '.join(wrong)}"
    assert not any(name.startswith(".") for name in imports_of(parse(path))), (
        "imports are absolute here"
    )


def test_units_of_one_layer_do_not_import_each_other_in_a_circle():
    graph: dict[str, set[str]] = {}
    for path in FILES:
        graph.setdefault(unit_of(path), set()).update(units_imported(parse(path)) - {unit_of(path)})
    for units in LAYERS:
        for unit in units:
            reached, front = set(), {unit}
            while front:
                front = {o for u in front for o in graph.get(u, set()) & units} - reached
                reached |= front
            assert unit not in reached, f"{unit} imports itself by way of its layer"


def test_a_file_imports_nothing_that_the_project_keeps_out(path):
    tops = {name.split(".")[0] for name in imports_of(parse(path))}
    assert not tops & FORBIDDEN


def test_library_code_never_prints(path):
    assert unit_of(path) in DISPLAYS or not calls_print(parse(path))


def test_library_code_never_compiles(path):
    trains = path.relative_to(ROOT).as_posix() == "meta/train.py"
    assert trains or unit_of(path) in COMPILES or not compiles(parse(path)), (
        "only those who run things call jax.jit"
    )


def test_the_checks_can_fail():
    see = lambda text: units_imported(ast.parse(text))
    assert see("import laconic\nfrom laconic import x\nimport laconic.round as r\nimport os") == {
        "",
        "round",
    }
    assert see("def f():\n    from laconic.outer.base import OuterOptimizer") == {"outer"}
    assert allowed("round", "outer")
    assert allowed("outer", "outer")
    assert not allowed("outer", "round")
    assert not allowed("errors", "data")
    assert not allowed("round", "store")
    assert allowed("runs", "store")
    assert allowed("zoo", "outer")
    assert not allowed("store", "outer")
    assert not allowed("cli", "")
    assert imports_of(ast.parse("from . import x\nfrom ..y import z")) == [".", "..y"]
    assert calls_print(ast.parse("print(1)"))
    assert not calls_print(ast.parse("console.print(1)"))
    assert compiles(ast.parse("run = jax.jit(f)"))
    assert compiles(ast.parse("@partial(jax.jit, static_argnums=0)\ndef f(): ..."))
    assert compiles(ast.parse("from jax import jit"))
    assert not compiles(ast.parse("x = jnp.sum(y)"))
    assert len(FILES) > 30
