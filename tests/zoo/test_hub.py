"""Push, pull and load: through folders, and through the real client of the Hub to a stub of it."""

import hashlib
import json
import os
import pickle
import socket
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from laconic import load, zoo
from laconic.methods import optimizer_sha256, parse_method
from laconic.zoo import hub, pull, push, repository
from laconic.zoo.hub import Repo, repo_from
from tests.cli.commands import assert_one_error, laconic
from tests.zoo.hub_stub import TOKEN, Hub
from tests.zoo.made import LEARNED, LOPT_A, a_card, weights


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "source" / "made-up.safetensors"
    zoo.publish(path, LOPT_A, weights(), a_card())
    return path


@pytest.fixture
def folder(source, tmp_path):
    """A repository in a folder."""
    push(source, tmp_path / "repo")
    return tmp_path / "repo"


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A Hub, an empty cache, a token, and an empty working directory."""
    constants = pytest.importorskip("huggingface_hub.constants", reason="needs the extra hub")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with Hub() as found:
        monkeypatch.setenv("HF_ENDPOINT", found.address)
        yield found


def same_bits(got, learned=LOPT_A):
    assert got.learned == learned
    assert got.card == a_card(learned)
    for name, value in weights(learned).items():
        np.testing.assert_array_equal(got.theta[name], value)


# --- a folder -------------------------------------------------------------------------------------


@pytest.mark.parametrize("learned", LEARNED, ids=lambda x: x.architecture)
def test_a_folder_gives_the_same_bits_again(learned, tmp_path):
    path = tmp_path / "made-up.safetensors"
    zoo.publish(path, learned, weights(learned), a_card(learned))
    where = push(path, tmp_path / "a" / "repo")
    assert sorted(os.listdir(where)) == ["README.md", "config.json", "model.safetensors"]
    same_bits(load(where), learned)
    push(where, tmp_path / "again")
    for name in repository.FILES:
        if name != "README.md":  # which says where it is
            there, again = Path(where, name), tmp_path / "again" / name
            assert there.read_bytes() == again.read_bytes()


def test_a_folder_is_a_method_by_its_path(folder):
    spec = f"{folder}:scale=0.5"
    assert parse_method(spec, 4).optimizer_sha256 == load(folder).sha256
    assert optimizer_sha256(spec) == load(folder).sha256


def test_the_readme_is_a_card_that_the_hub_reads(folder):
    _, front, page = (folder / "README.md").read_text().split("---\n", 2)
    told = yaml.safe_load(front)
    tags = ["learned-optimizer", "distributed-training", "lopt-a"]
    assert told == {"library_name": "laconic", "license": "apache-2.0", "tags": tags}
    assert page.lstrip() == zoo.to_markdown(a_card(), str(folder))
    assert f'laconic.load("{folder}")' in page


def test_the_config_says_what_sha256sum_says(folder, source, raises_clearly):
    config = json.loads((folder / "config.json").read_text())
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    assert config["sha256"] == digest
    for where in (folder, source):
        same_bits(load(where, sha256=digest))
        with raises_clearly("sha256", digest, "you say", "changed or damaged"):
            load(where, sha256="0" * 64)
        with raises_clearly("sha256 must be 64 hexadecimal digits"):
            load(where, sha256="abc")


def test_a_push_overwrites_nothing(folder, source, raises_clearly):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with raises_clearly("exists already", "another folder"):
        push(source, folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_changed_byte_is_refused(folder, raises_clearly):
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with raises_clearly(str(path), "sha256", "config.json says", "changed or damaged"):
        load(folder)


def test_other_weights_under_a_config_that_fits_their_hash_are_refused(folder, raises_clearly):
    """Whoever rewrites hash and weights still has to agree with what the config says they are."""
    path = folder / "model.safetensors"
    other = LEARNED[2]
    zoo.publish(path, other, weights(other), a_card(other))
    change(folder, sha256=hashlib.sha256(path.read_bytes()).hexdigest())
    with raises_clearly("config.json tells of another optimizer"):
        load(folder)


def change(folder, **values):
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **values}
    path.write_text(json.dumps({name: x for name, x in config.items() if x is not None}))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"version": 2}, "a laconic-repository of version 2, and this laconic reads version 1"),
        ({"version": True}, "config.version must be 1, got True"),
        ({"version": 0}, "config.version must be 1, got 0"),
        ({"format": "transformers"}, "config.format must be laconic-repository"),
        ({"library_name": "other"}, "config.library_name must be laconic"),
        ({"sha256": "A" * 64}, "config.sha256 must be 64 hexadecimal digits"),
        ({"sha256": None}, "config lacks the field sha256"),
        ({"auto_map": "x.py"}, "config has the unknown field 'auto_map'"),
        ({"learned": {}}, "tells of another optimizer"),
    ],
)
def test_a_config_that_laconic_never_wrote_is_refused(folder, raises_clearly, values, said):
    change(folder, **values)
    with raises_clearly("config.json", said):
        load(folder)


@pytest.mark.parametrize("text", ["", "[", "[" * 10_000, "[]", '"x"', "\udcff", " " * (1 << 17)])
def test_a_config_that_is_no_object_is_refused(folder, raises_clearly, text):
    (folder / "config.json").write_text(text, errors="surrogateescape")
    with raises_clearly("config.json", "no JSON object that laconic wrote"):
        load(folder)


class Bomb:
    """What a pickle can do: reading it makes a folder."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pkl", "weights.pt", "x.ckpt"])
def test_a_pickle_instead_of_weights_is_refused_unread(folder, tmp_path, raises_clearly, name):
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(pickle.dumps(Bomb(tmp_path / "executed")))
    with raises_clearly(f"holds {name}", "pickle can run code", "reads model.safetensors only"):
        load(folder)
    (folder / "config.json").unlink()
    with raises_clearly(f"holds {name}", "pickle can run code"):
        load(folder)
    assert not (tmp_path / "executed").exists()


def test_a_pickle_called_safetensors_is_refused_unread(folder, tmp_path, raises_clearly):
    data = pickle.dumps(Bomb(tmp_path / "executed"))
    (folder / "model.safetensors").write_bytes(data)
    change(folder, sha256=hashlib.sha256(data).hexdigest())
    with raises_clearly("model.safetensors", "not a whole safetensors file"):
        load(folder)
    assert not (tmp_path / "executed").exists()


def test_half_a_repository_is_refused(folder, raises_clearly):
    (folder / "config.json").unlink()
    with raises_clearly("holds no config.json", "laconic zoo push"):
        load(folder)


def test_a_run_folder_is_no_repository(tmp_path, raises_clearly):
    with raises_clearly("is not a file", "a folder that laconic zoo push made"):
        load(tmp_path)


# --- names ----------------------------------------------------------------------------------------


def test_which_texts_name_a_repository():
    assert repo_from("user/repo") == Repo("user/repo", None)
    assert repo_from("u.s-er/re_po@v1.0") == Repo("u.s-er/re_po", "v1.0")
    assert repo_from("user/repo@refs/pr/1") == Repo("user/repo", "refs/pr/1")
    assert str(Repo("user/repo", "v1")) == "user/repo@v1"
    for text in (
        "name",
        "a/b/c",
        "./a/b",
        "/a/b",
        "~/b",
        "a/",
        "/b",
        "a/b@",
        "a/b c",
        "a/..",
        "",
        "runs/x.safetensors",
    ):
        assert repo_from(text) is None, text


def test_where_a_push_goes_is_never_guessed(source, tmp_path, monkeypatch, raises_clearly):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "user" / "repo").mkdir(parents=True)
    with raises_clearly("could be the folder here", "write ./user/repo"):
        push(source, "user/repo")
    for unclear in ("repo", "user/", "a/b/c", "user/repo@", "user/re po", "~/repo"):
        with raises_clearly("could be a folder or a repository", "./NAME", "USER/NAME"):
            push(source, unclear)
    with raises_clearly("is a folder", "leave out private"):
        push(source, "./new", private=True)
    assert not (tmp_path / "new").exists()
    assert push(source, "./user/repo") == str(tmp_path / "user" / "repo")
    same_bits(load("user/repo"))  # what is here comes first


def test_without_the_extra_one_error_says_what_to_install(monkeypatch, source, raises_clearly):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with raises_clearly("user/repo is no file or folder here", "pip install 'laconic[hub]'"):
        load("user/repo")
    with raises_clearly("pip install 'laconic[hub]'"):
        push(source, "user/repo")
    with raises_clearly("pip install 'laconic[hub]'"):
        pull("user/repo")


# --- the Hub --------------------------------------------------------------------------------------


def test_push_pull_load_give_the_same_bits(site, source, capfd):
    code, out, _ = laconic(capfd, "zoo", "push", source, "user/repo")
    assert code == 0
    commit, files = site.files("user/repo")
    assert f"pushed to: {site.address}/user/repo/commit/{commit}" in out
    assert 'laconic.load("user/repo")' in out
    assert files["model.safetensors"] == source.read_bytes()
    assert b'laconic.load("user/repo")' in files["README.md"]
    same_bits(load("user/repo"))
    code, out, _ = laconic(capfd, "zoo", "pull", "user/repo")
    assert code == 0
    assert out.splitlines() == [str(Path("repo", name).absolute()) for name in repository.FILES]
    assert {path.name: path.read_bytes() for path in Path("repo").iterdir()} == files
    same_bits(load("./repo"))
    assert_one_error(capfd, ("zoo", "pull", "user/repo"), ["exists already"])


def test_a_repository_is_a_method_by_its_name(site, source, raises_clearly):
    push(source, "user/repo")
    assert parse_method("user/repo:scale=0.5", 4).optimizer_sha256 == load(source).sha256
    with raises_clearly("user/nothing is no file or folder here"):
        parse_method("user/nothing", 4)


def test_load_asks_for_two_files_only(site, source, monkeypatch):
    push(source, "user/repo")
    _, files = site.files("user/repo")
    site.put("user/repo", {**files, "setup.py": b"raise SystemExit", "pytorch_model.bin": b"x"})
    site.asked.clear()
    load("user/repo")
    fetched = {path.rpartition("/")[2] for _, path in site.asked if "/resolve/" in path}
    assert fetched == {"config.json", "model.safetensors"}


def test_every_architecture_loads_from_the_hub_in_torch_too(site, source):
    torch = pytest.importorskip("torch", reason="needs the extra torch")
    from laconic.torch import LearnedOuter

    push(source, "user/repo")
    outer = LearnedOuter([torch.nn.Parameter(torch.zeros(3, 2))], "user/repo")
    assert outer.card == a_card()


def test_a_revision_is_pinned(site, source, raises_clearly):
    push(source, "user/repo")
    first, _ = site.files("user/repo")
    other = source.with_name("other.safetensors")
    zoo.publish(other, LOPT_A, weights(seed=6), a_card(name="other"))
    push(other, "user/repo", message="better")
    push(other, "user/repo@trial")
    same_bits(load(f"user/repo@{first}"))
    assert load("user/repo").name == "other"
    assert load("user/repo@trial").name == "other"
    with raises_clearly("user/repo has no revision 'v9'", "branches, tags or commits"):
        load("user/repo@v9")
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    same_bits(load(f"user/repo@{first}", sha256=digest))
    with raises_clearly("you say"):
        load("user/repo", sha256=digest)


def test_a_private_repository_needs_the_token(site, source, monkeypatch, raises_clearly):
    push(source, "user/hidden", private=True)
    assert site.private == {"user/hidden"}
    same_bits(load("user/hidden"))
    monkeypatch.delenv("HF_TOKEN")
    with raises_clearly("shows you no repository user/hidden", "hf auth login"):
        load("user/hidden")
    with raises_clearly("user/new", "hf auth login"):
        push(source, "user/new")


def test_what_a_repository_may_not_hold(site, source, raises_clearly):
    push(source, "user/repo")
    _, files = site.files("user/repo")
    weight = files.pop("model.safetensors")
    site.put("user/pickled", {**files, "pytorch_model.bin": b"x"})
    site.put("user/changed", {**files, "model.safetensors": weight[:-1] + b"?"})
    files["model.safetensors"] = weight
    newer = json.dumps({**json.loads(files["config.json"]), "version": 2}).encode()
    site.put("user/newer", {**files, "config.json": newer})
    site.put("user/other", {**files, "config.json": b'{"model_type": "bert"}'})
    site.put("user/empty", {"README.md": b"hello"})
    for name, said in {
        "user/pickled": "a pickle can run code",
        "user/changed": "it was changed or damaged",
        "user/newer": "of version 2, and this laconic reads version 1",
        "user/other": "config lacks the field library_name",
        "user/empty": "holds no config.json and no model.safetensors",
        "user/nobody": "the Hugging Face Hub shows you no repository user/nobody",
    }.items():
        with raises_clearly(said):
            load(name)
        with raises_clearly(said):
            pull(name)
    assert not list(Path().iterdir())


def test_weights_too_large_are_not_fetched(site, source, monkeypatch, raises_clearly):
    push(source, "user/repo")
    monkeypatch.setattr(repository, "LARGEST_WEIGHTS", 100)
    site.asked.clear()
    with raises_clearly("more than any learned optimizer"):
        load("user/repo")
    assert not any("resolve" in path for _, path in site.asked)


@pytest.mark.parametrize(
    ("status", "said"), [(403, "does not allow that"), (500, "refused"), (429, "refused")]
)
def test_a_hub_in_trouble(site, status, said, raises_clearly):
    site.put("user/repo", {})
    site.fails = status
    with raises_clearly(said):
        load("user/repo")


def test_a_stale_copy_is_never_taken_silently(site, source, monkeypatch, raises_clearly):
    """Where a file cannot be asked for, the client takes the cached one of its branch."""
    push(source, "user/repo")
    load("user/repo")
    site.put("user/repo", {**site.files("user/repo")[1], "note.txt": b"newer"})
    answer = site.answer
    broken = lambda method, path, *rest: (
        (503, {}, b"") if "/resolve/" in path else answer(method, path, *rest)
    )
    monkeypatch.setattr(site, "answer", broken)
    with raises_clearly("changed while it was fetched"):
        load("user/repo")


def test_no_network_and_the_cache(site, source, monkeypatch, raises_clearly):
    from huggingface_hub import constants

    push(source, "user/repo")
    same_bits(load("user/repo"))
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and never answers
        monkeypatch.setattr(hub, "SECONDS", 0.2)
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with raises_clearly("cannot be asked about user/repo", "HF_HUB_OFFLINE=1"):
            load("user/repo")
    with raises_clearly("cannot be asked about user/repo", "HF_ENDPOINT"):  # nobody listens now
        load("user/repo")
    commit, _ = site.files("user/repo")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for known in ("user/repo", f"user/repo@{commit}"):
        same_bits(load(known))
    with raises_clearly("user/unseen", "cannot be asked"):
        load("user/unseen")
