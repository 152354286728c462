"""Strict numerics for every test, eight forced CPU devices, and what real data there is."""

import os
from pathlib import Path

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Most of the suite's time is compiling, much of it the same programs again: keep what was compiled,
# a folder a process.
_CACHE = (
    Path(__file__).parents[1]
    / ".pytest_cache"
    / "jax"
    / os.environ.get("PYTEST_XDIST_WORKER", "alone")
)
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

import jax
import pytest

from laconic.data.files import search_path
from laconic.errors import LaconicError

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

NEEDED = {
    "fashion-mnist": "fashion-mnist/train-images-idx3-ubyte.gz",
    "cifar-10": "cifar-10-batches-bin/data_batch_1.bin",
    "tiny-imagenet-32": "tiny-imagenet-32/val_data.npz",
    "text": "text/tinyshakespeare.txt",
}


@pytest.fixture
def real_data():
    """`real_data("fashion-mnist")` skips, with the reason, where that data set is not on this
    machine."""

    def need(name: str) -> None:
        relative = NEEDED[name]
        if not any((root / relative).exists() for root in search_path()):
            pytest.skip(f"{name} is not here: put {relative} under $LACONIC_DATA")

    return need


@pytest.fixture
def raises_clearly():
    """`with raises_clearly("part", "part"):` expects one LaconicError that says each part."""

    class Clearly:
        def __init__(self, *parts: str):
            self.parts = parts

        def __enter__(self):
            self.context = pytest.raises(LaconicError)
            self.info = self.context.__enter__()
            return self.info

        def __exit__(self, *exc):
            result = self.context.__exit__(*exc)
            message = str(self.info.value)
            assert "\n" not in message
            for part in self.parts:
                assert part in message, f"{part!r} not in {message!r}"
            return result

    return Clearly


@pytest.fixture
def standard_promotion():
    """For tests that run optax's Adam, which raises β to an integer power and so breaks strict
    promotion."""
    with jax.numpy_dtype_promotion("standard"):
        yield
