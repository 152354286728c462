"""Published optimizers given to others and taken from them: push and pull, a folder or the Hub."""

import os
from pathlib import Path

from laconic.errors import LaconicError
from laconic.zoo import file, hub, repository


def push(
    source: str | os.PathLike[str],
    repo: str | os.PathLike[str],
    *,
    private: bool = False,
    message: str | None = None,
) -> str:
    """Put a published optimizer into a repository.

    Args:
        source: what `load` takes.
        repo: user/repo or user/repo@branch on the Hugging Face Hub, which is made if missing; or a
            folder, a `Path` or a text with ./, ../ or / in front, where nothing is overwritten.
        private: whether a repository that is made is shown to its owner only.
        message: of the commit. A folder has no owner and no commits, and refuses both.

    Returns:
        The address of the commit, or the full path of the folder.
    """
    path = file.locate(source)
    opened = file.read(path)
    found, learned = _repo_meant(repo), file.fields_of(opened.architecture)
    if found is None and (private or message is not None):
        raise LaconicError(
            f"{os.fspath(repo)!r:.200} is a folder: it is not private to anybody and has no "
            "commits; leave out private and message."
        )
    shown = str(found or Path(repo))
    files = repository.files_of(path.read_bytes(), learned, opened.card, shown)
    if found is None:
        return str(repository.write(Path(repo), files)[0].parent.resolve())
    return hub.upload(found, files, private, message or f"{opened.card.name} by laconic")


def pull(repo: str, folder: str | os.PathLike[str] | None = None) -> list[Path]:
    """Fetch a repository's files from the Hugging Face Hub into a folder, checked as `load` does.

    Args:
        repo: user/repo or user/repo@revision.
        folder: where to; by default one named like the repository. Nothing is overwritten.

    Returns:
        The paths of the files.
    """
    found = hub.repo_from(repo)
    if found is None:
        raise LaconicError(f"{repo!r:.200} names no repository: give user/repo, or user/repo@tag.")
    target = Path(folder or found.name.partition("/")[2])
    repository.check_free(target)
    there = hub.download(found, repository.FILES)
    file.read(file.locate(there))
    return repository.write(
        target, {name: (there / name).read_bytes() for name in repository.FILES}
    )


def _repo_meant(repo: str | os.PathLike[str]) -> hub.Repo | None:
    """The repository on the Hub that is meant; None if it is a folder."""
    found = hub.repo_from(repo) if isinstance(repo, str) else None
    if found is not None and Path(repo).exists():
        raise LaconicError(
            f"{repo} could be the folder here or a repository on the Hugging Face Hub: write "
            f"./{repo} for the folder, or push from elsewhere."
        )
    told = not isinstance(repo, str) or os.path.isabs(repo) or Path(repo).parts[:1] == ("..",)
    if found is None and not told and not os.fspath(repo).startswith(f".{os.sep}"):
        raise LaconicError(
            f"{os.fspath(repo)!r:.200} could be a folder or a repository: write ./NAME for a "
            "folder, or USER/NAME for one on the Hugging Face Hub."
        )
    return found
