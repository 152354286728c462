"""The Hugging Face Hub: which texts name a repository there, its download and its upload.

`huggingface_hub` (the extra `hub`) moves the bytes and keeps the token and the cache. Only the
files of `repository.FILES` are asked for.
"""

# The extra is not part of what developers need.
# pyright: reportMissingImports=false

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from laconic.errors import LaconicError
from laconic.version import __version__
from laconic.zoo import repository

PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
SHAPE = re.compile(rf"({PART}/{PART})(?:@([A-Za-z0-9][A-Za-z0-9._/-]{{0,99}}))?")
SECONDS = 10.0  # to wait for the Hub's answer about a repository


class Unreached(LaconicError):
    """The Hub has no such repository for us, or cannot be asked."""


class Repo(NamedTuple):
    """A repository on the Hub, at a branch, tag or commit; None: its main branch."""

    name: str
    revision: str | None

    def __str__(self) -> str:
        return self.name if self.revision is None else f"{self.name}@{self.revision}"


def repo_from(text: str) -> Repo | None:
    """What user/repo or user/repo@revision names; None for any other text."""
    found = None if text.endswith(".safetensors") else SHAPE.fullmatch(text)
    return None if found is None else Repo(found[1], found[2])


def download(repo: Repo, names: Sequence[str]) -> Path:
    """Some files of a repository, all of one commit → the folder of the cache that they lie in.

    With HF_HUB_OFFLINE set, they are taken from the cache alone.
    """
    api, _ = _api()
    from huggingface_hub import constants

    with _explained(repo):
        commit = None
        if not constants.is_offline_mode():
            info = api.model_info(
                repo.name, revision=repo.revision, files_metadata=True, timeout=SECONDS
            )
            _check_listing(info.siblings or [], repo)
            commit = info.sha
        # by the name that was given, so that the cache knows it when there is no network
        paths = [api.hf_hub_download(repo.name, name, revision=repo.revision) for name in names]
    folder, *others = {Path(path).parent for path in paths}  # a folder is named by its commit
    if others or commit not in (None, folder.name):
        raise LaconicError(f"{repo} changed while it was fetched: try again.")
    return folder


def upload(repo: Repo, files: Mapping[str, bytes], private: bool, message: str) -> str:
    """Commit files to a repository, which is made if missing → the address of the commit."""
    api, hub = _api()
    operations = [hub.CommitOperationAdd(name, data) for name, data in files.items()]
    with _explained(repo):
        api.create_repo(repo.name, exist_ok=True, private=private or None)
        told = {"commit_message": message, "revision": repo.revision}
        return str(api.create_commit(repo.name, operations, **told).commit_url)


def _api() -> tuple[Any, Any]:
    """The client of the Hub, and its library."""
    try:
        import huggingface_hub as hub
    except ImportError:
        raise Unreached(
            "to ask the Hugging Face Hub for it huggingface_hub is needed: pip install "
            "'laconic[hub]'."
        ) from None
    endpoint = os.environ.get("HF_ENDPOINT")
    return hub.HfApi(endpoint, library_name="laconic", library_version=__version__), hub


def _check_listing(siblings: Sequence[Any], repo: Repo) -> None:
    """Refuse a repository by its list of files, before any of them is fetched."""
    sizes = {each.rfilename: each.size or 0 for each in siblings}
    repository.check_names(sizes, str(repo))
    if sizes[repository.WEIGHTS] > repository.LARGEST_WEIGHTS:
        raise LaconicError(
            f"{repo} has weights of {sizes[repository.WEIGHTS]} bytes, more than any learned "
            "optimizer: it must be something else."
        )


@contextlib.contextmanager
def _explained(repo: Repo) -> Iterator[None]:
    """What goes wrong with the Hub as one clear error."""
    from huggingface_hub import errors

    network: type[Exception] = vars(errors)["HTTPError"]  # of the HTTP library that it uses
    try:
        yield
    except errors.RevisionNotFoundError:
        raise LaconicError(
            f"{repo.name} has no revision {repo.revision!r} on the Hugging Face Hub: give one of "
            "its branches, tags or commits."
        ) from None
    except errors.RepositoryNotFoundError:
        raise Unreached(
            f"the Hugging Face Hub shows you no repository {repo.name}: check the name, or log in "
            "if it is private (hf auth login, or HF_TOKEN)."
        ) from None
    except errors.HfHubHTTPError as error:
        if error.response.status_code in (401, 403):
            raise LaconicError(
                f"the Hugging Face Hub does not allow that on {repo}: log in (hf auth login, or "
                "HF_TOKEN) with a token that may."
            ) from None
        raise LaconicError(f"{repo}: the Hugging Face Hub refused: {_line(error)}") from None
    except (network, OSError, ValueError) as error:
        raise Unreached(
            f"the Hugging Face Hub cannot be asked about {repo} ({_line(error)}): check the "
            "network and HF_ENDPOINT. HF_HUB_OFFLINE=1 takes what is in the cache."
        ) from None


def _line(error: Exception) -> str:
    """What an error says, on one line."""
    return " ".join(str(error).split()) or type(error).__name__
