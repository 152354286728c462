"""The command line as a user meets it: lists, help, errors, signals, the summary."""

import json
import signal
import subprocess
import sys

import pytest

from laconic import cli, zoo
from laconic.methods import METHODS
from laconic.store.records import read
from laconic.tasks.catalog import TASKS
from laconic.version import __version__
from tests.cli.commands import assert_help_has, assert_one_error, laconic, process

QUICK = ["--rounds", "6", "--seeds", "2", "--batch", "4", "--workers", "2", "--evaluate-every", "2"]


def test_help_teaches(capfd):
    code, out, _ = laconic(capfd)
    assert code == 0
    for word in (*cli.COMMANDS, *cli.EXAMPLES, "laconic compare --link"):
        assert word in out
    commands = {word for example in cli.EXAMPLES for word in example.split()[1:2]}
    assert commands - {"COMMAND"} <= set(cli.COMMANDS)
    assert laconic(capfd, "--help")[1] == out


def test_compare_help_names_flags_and_recipes(capfd):
    words = [
        "--task",
        "--optimizers",
        "--link",
        "--compress",
        "fmnist-baselines",
        "communication rounds",
    ]
    assert_help_has(capfd, "compare", words)


def test_version(capfd):
    assert laconic(capfd, "--version")[1].strip() == f"laconic {__version__}"


def test_one_optimizer_is_described(capfd):
    out = laconic(capfd, "optimizers", "scaffold")[1]
    assert "gamma=0.05" in out
    assert "learning rate of the workers; positive and finite" in out
    assert "It cannot be a Flower strategy" in out


def test_lists_have_one_line_each(capfd):
    named, own = laconic(capfd, "tasks")[1].split("\n\n")
    assert [line.split()[0] for line in named.splitlines()] == list(TASKS)
    assert "--task mymodule:make_task" in own
    methods, trained, words = laconic(capfd, "optimizers")[1].split("\n\n")
    assert [line.split()[0] for line in methods.splitlines()] == list(METHODS)
    heading, *lines = trained.splitlines()
    assert "Trained learned optimizers" in heading
    assert [line.split()[0] for line in lines] == zoo.published()
    for line, card in zip(lines, zoo.cards().values(), strict=True):
        assert card.summary in line
        fill = ", fill=mean" if card.architecture.startswith("lagg") else ""
        fill = ", agreement=seen" if card.architecture == "lopt-r" else fill
        assert line.endswith(
            f"(gamma={card.local['learning_rate']}, scale=1.0, weight_decay=0.0{fill})"
        )
    assert ".safetensors" in words


def test_a_comparison_ends_with_the_table_and_the_report(capfd, tmp_path):
    folder = tmp_path / "run"
    code, out, err = laconic(
        capfd, "compare", *QUICK, "--optimizers", "local-sgd", "slowmo", "--out", str(folder)
    )
    assert code == 0, err
    assert "rounds/s" in err
    lines = out.strip().splitlines()
    assert lines[-1] == f"report: {folder}/report.html"
    assert any(line.split()[:1] == ["SlowMo"] for line in lines)
    assert any(line.startswith("lowest train loss") for line in lines)
    records = read(folder / "records.jsonl")
    assert records[0]["command"].startswith("laconic compare --rounds 6")
    assert (folder / "command.txt").read_text().strip() == records[0]["command"]


def test_markup_in_a_label_is_only_text(capfd, tmp_path):
    spec = "local-sgd:label=a[/red]"
    code, out, err = laconic(
        capfd, "compare", *QUICK, "--optimizers", spec, "--out", str(tmp_path / "run")
    )
    assert code == 0, err
    assert "a[/red] ended at a training loss" in out


def test_a_recipe_can_be_changed_by_flags(capfd, tmp_path):
    out = str(tmp_path / "run")
    words = [
        "compare",
        "digits",
        *QUICK,
        "--optimizers",
        "local-sgd",
        "--link",
        "10Mbit/1ms",
        "--out",
        out,
    ]
    code, out, _ = laconic(capfd, *words)
    assert code == 0
    assert "time to" in out.replace("\n", " ")


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["comapre"], ["unknown command", "Did you mean 'compare'?"]),
        (["compare", "fmnist-baseline"], ["unknown recipe", "Did you mean 'fmnist-baselines'?"]),
        (["compare", "--task", "digits-mpl"], ["unknown task", "Did you mean 'digits-mlp'?"]),
        (["compare", "--optimizers", "slomo"], ["unknown optimizer", "Did you mean 'slowmo'?"]),
        (["compare", "--workers", "0"], ["workers must be positive"]),
        (["compare", "--rounds", "-5"], ["rounds must be positive"]),
        (["compare", "--compress", "gzip"], ["unknown compressor"]),
        (["compare", "--link", "100"], ["100Mbit/20ms"]),
        (["compare", "--out", "/dev/null/run"], ["cannot write"]),
        (["compare", "--resume", "/nowhere"], ["nothing to resume"]),
        (["tasks", "extra"], ["takes no arguments"]),
        (["compare", "--out", "\udcff"], ["not valid UTF-8"]),
    ],
)
def test_errors_are_one_line_with_a_way_out(argv, parts, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert_one_error(capfd, argv, parts)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "argv", [["--roundz", "3"], ["--rounds", "many"], ["--resume", "/tmp/x", "--rounds", "3"]]
)
def test_bad_flags_are_refused_with_a_suggestion(argv, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = laconic(capfd, "compare", *argv)
    assert code == 2
    assert "--rounds" in out + err
    assert list(tmp_path.iterdir()) == []


def test_missing_data_says_which_file_goes_where(capfd, tmp_path, monkeypatch):
    monkeypatch.setenv("LACONIC_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr("laconic.data.images.FMNIST_ADDRESS", "http://127.0.0.1:9/", raising=False)
    monkeypatch.setattr("laconic.data.files.search_path", lambda: [tmp_path / "data"])
    monkeypatch.setattr("urllib.request.urlopen", unreachable)
    monkeypatch.chdir(tmp_path)
    code, _, err = laconic(capfd, "compare", "--task", "fmnist-mlp2")
    assert code == 1
    assert "train-images-idx3-ubyte.gz" in err
    assert str(tmp_path / "data") in err


def unreachable(*args, **kwargs):
    raise OSError("no network")


SIGNALLED = """
import os, signal, sys
from laconic.cli import console, main
seen = []
class Bars(console.LiveBars):
    def progress(self, label, done, loss):
        super().progress(label, done, loss)
        seen.append(label)
        if len(seen) == 3:
            os.kill(os.getpid(), {signal})
console.LiveBars = Bars
main(sys.argv[1:])
"""


def run_process(code, *argv, cwd):
    command, environment = process(code, *argv)
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300
    )


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_a_run_that_resumes_to_the_same_bits(number, tmp_path):
    words = ["compare", "--optimizers", "local-sgd", "slowmo", *QUICK]
    whole = run_process(None, *words, "--out", "whole", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    stopped = run_process(
        SIGNALLED.format(signal=int(number)), *words, "--out", "cut", cwd=tmp_path
    )
    # the third chunk ends the first method; the signal is honoured in the second
    assert stopped.returncode == 128 + number, stopped.stderr
    assert "laconic compare --resume cut" in stopped.stderr
    resumed = run_process(None, "compare", "--resume", "cut", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    one, two = (read(tmp_path / name / "records.jsonl") for name in ("whole", "cut"))
    for key in ("label", "train", "heldout", "params_sha256"):
        assert [r[key] for r in one if r["kind"] == "method"] == [
            r[key] for r in two if r["kind"] == "method"
        ]
    assert json.dumps(one[-1]) == json.dumps(two[-1])


def test_ctrl_c_where_there_is_nothing_to_save_is_one_line(capfd, monkeypatch):
    def interrupted(argv):
        raise KeyboardInterrupt

    monkeypatch.setitem(cli.COMMANDS, "report", cli.Command(interrupted, ""))
    assert laconic(capfd, "report") == (130, "", "stopped.\n")


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["comapre"]], ids=str)
def test_help_and_errors_in_words_need_no_jax(words):
    code = (
        "import sys\nfrom laconic.cli import main\n"
        f"try:\n    main({words!r})\nexcept SystemExit:\n    print('jax' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
