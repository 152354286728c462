"""What SLURM and torchrun say of a process, in environments made up after their documentation."""

import pytest

from laconic.engines.address import ProcessRank, first_host, rank_from

TORCHRUN = {
    "RANK": "2",
    "WORLD_SIZE": "4",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
    "LOCAL_RANK": "0",
}
SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "8",
    "SLURM_JOB_ID": "123456",
    "SLURM_JOB_NODELIST": "n[01-04]",
}
STEP = {"SLURM_STEP_NODELIST": "n[03-04]", "SLURM_STEP_NUM_TASKS": "4"}


def without(environment, name):
    return {key: value for key, value in environment.items() if key != name}


def test_an_environment_that_says_nothing_gives_no_place():
    assert rank_from({"PATH": "/bin", "SLURM_CONF": "/etc/slurm.conf", "RANK": ""}) is None


def test_torchrun():
    assert rank_from(TORCHRUN) == ProcessRank(2, 4, "10.0.0.1", 29501, "torchrun")


def test_slurm_and_the_step_inside_a_job():
    assert rank_from(SLURM) == ProcessRank(3, 8, "n01", 15000 + 123456 % 15000, "SLURM")
    assert rank_from(SLURM | STEP) == ProcessRank(3, 4, "n03", 18456, "SLURM")


def test_slurm_falls_back_to_the_launching_node_and_gives_way_to_a_master():
    ip = without(SLURM, "SLURM_JOB_NODELIST") | {"SLURM_LAUNCH_NODE_IPADDR": "192.168.7.1"}
    assert rank_from(ip) == ProcessRank(3, 8, "192.168.7.1", 18456, "SLURM")
    assert rank_from(SLURM | {"MASTER_ADDR": "head", "MASTER_PORT": "4321"}) == ProcessRank(
        3, 8, "head", 4321, "SLURM"
    )
    few = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "MASTER_ADDR": "head", "MASTER_PORT": "4321"}
    assert rank_from(few) == ProcessRank(0, 2, "head", 4321, "SLURM")


def test_torchrun_inside_slurm_counts_and_mere_ranks_must_agree(raises_clearly):
    assert rank_from(SLURM | TORCHRUN | {"TORCHELASTIC_RUN_ID": "none"}) == rank_from(TORCHRUN)
    agreeing = SLURM | TORCHRUN | {"RANK": "3", "WORLD_SIZE": "8"}
    assert rank_from(agreeing) == ProcessRank(3, 8, "10.0.0.1", 29501, "torchrun")
    with raises_clearly("worker 3 of 8", "2 of 4", "unset", "--join"):
        rank_from(SLURM | TORCHRUN)


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"])
def test_half_of_torchruns_variables_are_an_error(name, raises_clearly):
    with raises_clearly(f"but not {name}", "torchrun", "--join and --worker"):
        rank_from(without(TORCHRUN, name))


def test_a_master_alone_is_an_error(raises_clearly):
    with raises_clearly("MASTER_ADDR, MASTER_PORT but not RANK, WORLD_SIZE"):
        rank_from({"MASTER_ADDR": "head", "MASTER_PORT": "4321"})


@pytest.mark.parametrize(
    "name", ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_JOB_ID", "SLURM_JOB_NODELIST"]
)
def test_half_of_slurms_variables_are_an_error(name, raises_clearly):
    with raises_clearly(f"but not {name}", "srun"):
        rank_from(without(SLURM, name))


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"RANK": "two"}, ["RANK must be a whole number", "'two'"]),
        ({"RANK": "-1"}, ["RANK must be a whole number"]),
        ({"RANK": "4"}, ["RANK is 4", "only 4 workers"]),
        ({"WORLD_SIZE": "0"}, ["only 0 workers"]),
        ({"MASTER_PORT": "65535"}, ["65536", "MASTER_PORT"]),
    ],
)
def test_numbers_that_cannot_be_are_errors(change, parts, raises_clearly):
    with raises_clearly(*parts):
        rank_from(TORCHRUN | change)


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("n1", "n1"),
        ("n1,n2", "n1"),
        ("gpu[07-09,12],cpu1", "gpu07"),
        ("gpu[7]", "gpu7"),
        ("gpu[3,5]", "gpu3"),
        ("rack[1-2]n[00-15]", "rack1n00"),
        ("a-[2-4]-ib.cluster.org,b", "a-2-ib.cluster.org"),
        ("192.168.7.1", "192.168.7.1"),
    ],
)
def test_the_first_host_of_a_list(nodes, host):
    assert first_host(nodes) == host


@pytest.mark.parametrize("nodes", ["[", "n[1", ",", "n 1", "$(x)"])
def test_a_list_that_names_nobody_is_an_error(nodes, raises_clearly):
    with raises_clearly("cannot be told", "MASTER_ADDR"):
        first_host(nodes)
