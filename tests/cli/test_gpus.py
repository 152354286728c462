"""Which GPUs the workers of a launch see, decided without a GPU."""

import pytest

from laconic.cli.gpus import gpus_here, hand_out, only_cpu, shares, told


@pytest.fixture
def nodes(tmp_path):
    """A /dev with four GPUs and what comes with them."""
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("environment", "seen"),
    [
        ({}, ["0", "1", "2", "3"]),
        ({"CUDA_VISIBLE_DEVICES": "2,3"}, ["2", "3"]),
        ({"CUDA_VISIBLE_DEVICES": " GPU-8a , MIG-1 "}, ["GPU-8a", "MIG-1"]),
        ({"CUDA_VISIBLE_DEVICES": "1,-1,2"}, ["1"]),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
        ({"JAX_PLATFORMS": "cpu"}, []),
        ({"JAX_PLATFORMS": "cuda,cpu"}, ["0", "1", "2", "3"]),
    ],
)
def test_a_launch_knows_the_gpus_that_its_workers_would_see(environment, seen, nodes):
    assert gpus_here(environment, nodes) == seen


def test_a_machine_without_accelerators_computes_on_its_cpu(nodes, tmp_path):
    assert not only_cpu({}, nodes)
    assert only_cpu({"JAX_PLATFORMS": "cpu"}, nodes)
    assert only_cpu({"CUDA_VISIBLE_DEVICES": ""}, nodes)
    amd = tmp_path / "amd"
    amd.mkdir()
    assert only_cpu({}, amd)
    (amd / "kfd").touch()
    assert not only_cpu({}, amd)


def test_every_worker_has_gpus_of_its_own():
    four = ["0", "1", "2", "3"]
    assert shares(four, 2, 2) == shares(four, 2, "all") == [["0", "1"], ["2", "3"]]
    assert shares(four, 1, "all") == [four]
    assert shares(four, 2, 1) == [["0"], ["1"]]
    assert shares(["5"], 3, 1) == [["5"], ["5"], ["5"]]  # as little as a GPU is shared
    assert told(shares(four, 2, 2)) == "worker 0 on GPUs 0, 1; worker 1 on GPUs 2, 3"
    assert told(shares(["7", "8"], 3, 1)) == "workers 0, 2 on GPU 7; worker 1 on GPU 8"


def test_too_few_gpus_are_refused(raises_clearly):
    with raises_clearly("2 workers with 3 devices each need 6 GPUs", "has 4 GPUs", "--here"):
        shares(list("0123"), 2, 3)
    with raises_clearly("4 GPUs", "over 3 workers", "--devices N"):
        shares(list("0123"), 3, "all")
    with raises_clearly("16 examples", "3 devices"):
        hand_out("all", 16, 1, {"CUDA_VISIBLE_DEVICES": "0,1,2"})
    with raises_clearly("99 devices", "platform cpu"):
        hand_out(99, 99, 1, {"JAX_PLATFORMS": "cpu"})
    assert hand_out(2, 16, 2, {"CUDA_VISIBLE_DEVICES": "3,1,0,2"}) == (2, [["3", "1"], ["0", "2"]])
    assert hand_out("all", 16, 2, {"JAX_PLATFORMS": "tpu"}) == ("all", [])
