"""Compiling at smoke scale: what XLA is told, and when its optimizer rests."""

import subprocess

import jax
import pytest

from laconic.reproduce.scale import XLA_FLAGS, compile_quickly, compiled_for
from tests.cli.commands import process


@pytest.mark.parametrize(
    ("scale", "tasks", "quick"),
    [
        ("smoke", ["fmnist-mlp2:width=16"], True),
        ("smoke", ["cifar10-cnn:width=2"], False),
        ("smoke", ["fmnist-mlp2", "cifar10-cnn-bn"], False),
        ("full", ["fmnist-mlp2"], False),
    ],
)
def test_only_small_runs_without_convolutions_are_not_optimized(scale, tasks, quick):
    before = jax.config.read("jax_disable_most_optimizations")
    with compiled_for(scale, tasks):
        assert jax.config.read("jax_disable_most_optimizations") is (before or quick)
    assert jax.config.read("jax_disable_most_optimizations") is before


def test_flags_are_added_and_the_users_own_come_last():
    environment = {"XLA_FLAGS": "--xla_dump_to=/x --xla_cpu_use_fusion_emitters=true", "HOME": "/h"}
    compile_quickly(environment, (0, 10, 2))
    words = environment["XLA_FLAGS"].split()
    assert words == [*XLA_FLAGS, "--xla_dump_to=/x", "--xla_cpu_use_fusion_emitters=true"]
    assert environment["HOME"] == "/h"


def test_a_release_that_may_not_know_the_flags_gets_none():
    environment = {}
    compile_quickly(environment, (0, 11, 0))
    assert environment == {}


CODE = """
import jax, os
from laconic.cli import reproduce as command
from laconic.reproduce import scale

def stopped(name, scale, out, *, panels, watching, stop):
    print(os.environ.get("XLA_FLAGS", ""), "|", jax.jit(lambda x: x + 1)(1.0))
    raise command.Interrupted("stopped.", ".")

command.reproduce = stopped
scale.XLA_FLAGS += tuple(os.environ["MORE"].split())
command.run_reproduce(["fig-ablation", "--scale", os.environ["SCALE"]])
"""


def in_a_process(scale, more=""):
    argv, environment = process(CODE)
    environment = {**environment, "SCALE": scale, "MORE": more, "XLA_FLAGS": ""}
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(("scale", "given"), [("smoke", " ".join(XLA_FLAGS)), ("full", "")])
def test_the_command_gives_flags_that_this_xla_accepts(scale, given):
    done = in_a_process(scale)
    assert done.stdout == f"{given} | 2.0\n", done.stderr


def test_xla_starts_only_after_it_was_given_them():
    done = in_a_process("smoke", "--xla_no_such_flag=1")
    assert done.returncode != 0
    assert "xla_no_such_flag" in done.stderr
