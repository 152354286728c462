"""The public interface: every name exists, is documented with an example that runs, and importing
it touches no device."""

import ast
import dataclasses
import doctest
import inspect
import subprocess
import textwrap
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import laconic
from tests.cli.commands import process

# Names whose docstring still lacks arguments, result or an example. Nothing may be added here.
UNFINISHED: set[str] = set()
# Examples that train.
SLOW = {"Interrupted", "Observer", "compare", "meta_train", "resume", "sweep", "train"}
DOCUMENTED = sorted(name for name in laconic.__all__ if callable(getattr(laconic, name)))


def test_every_public_name_exists_once():
    assert len(set(laconic.__all__)) == len(laconic.__all__)
    assert [name for name in laconic.__all__ if not hasattr(laconic, name)] == []


def fields_have_docstrings(kind: type) -> bool:
    """Whether each field of a configuration is followed by a string, its help text."""
    source = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    body = next(node.body for node in source.body if isinstance(node, ast.ClassDef))
    rows = zip(body, [*body[1:], None], strict=True)
    is_text = lambda node: isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return all(is_text(after) for node, after in rows if isinstance(node, ast.AnnAssign))


def lacks_of(name: str, thing: Any) -> list[str]:
    """What its docstring lacks."""
    text = inspect.getdoc(thing) or ""
    lacks = [] if ">>> " in text or "Example::" in text else ["an example"]
    is_error = isinstance(thing, type) and issubclass(thing, Exception)
    if is_error or not inspect.signature(thing).parameters:
        return lacks
    is_config = dataclasses.is_dataclass(thing) and fields_have_docstrings(thing)
    if "Args:" not in text and "Attributes:" not in text and not is_config:
        lacks.append("Args:")
    if not isinstance(thing, type) and "Returns:" not in text:
        lacks.append("Returns:")
    return lacks


@pytest.mark.parametrize("name", DOCUMENTED)
def test_every_public_name_says_what_it_takes_and_shows_an_example(name):
    lacks = lacks_of(name, getattr(laconic, name))
    if name in UNFINISHED:
        assert lacks, f"{name} is documented: take it off the list"
    else:
        assert not lacks, f"the docstring of {name} lacks {', '.join(lacks)}"


def run_examples(name: str, thing: Any) -> None:
    """The examples as a reader would type them.

    Those with `>>>` in a fresh namespace; blocks after `Example::` with all public names and the
    usual abbreviations.
    """
    text = inspect.getdoc(thing) or ""
    example = doctest.DocTestParser().get_doctest(text, {}, name, None, 0)
    told: list[str] = []
    result = doctest.DocTestRunner(verbose=False).run(example, out=told.append)
    assert not result.failed, "".join(told)
    names = {name: getattr(laconic, name) for name in laconic.__all__}
    names |= {"jax": jax, "jnp": jnp, "np": np, "optax": optax, "laconic": laconic}
    for block in text.split("Example::")[1:]:
        exec(textwrap.dedent(block), names)


def slow_or_not(name: str) -> Any:
    return pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW))


@pytest.mark.parametrize("name", [slow_or_not(name) for name in DOCUMENTED])
def test_examples_run(name, tmp_path, monkeypatch, standard_promotion):
    monkeypatch.chdir(tmp_path)
    run_examples(name, getattr(laconic, name))


def test_the_example_in_pytorch_runs():
    pytest.importorskip("torch")
    from laconic.torch import LearnedOuter

    assert lacks_of("LearnedOuter", LearnedOuter) == []
    run_examples("LearnedOuter", LearnedOuter)


def test_importing_touches_no_device():
    """With a platform that does not exist JAX fails as soon as it looks for devices, and not
    before."""
    command, environment = process(
        "import laconic.cli, jax; laconic.published(); print('imported'); jax.devices()"
    )
    environment["JAX_PLATFORMS"] = "nowhere"
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout == "imported\n"
    assert done.returncode == 1
    assert "nowhere" in done.stderr
