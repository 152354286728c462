"""The public interface: every name is there, and importing it touches no device."""

import subprocess

import laconic
from tests.cli.commands import process


def test_every_public_name_exists_once():
    assert len(set(laconic.__all__)) == len(laconic.__all__)
    assert [name for name in laconic.__all__ if not hasattr(laconic, name)] == []


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
