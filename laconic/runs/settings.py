"""Settings of a run: read from its record, compared with others, and as a command line."""

import shlex
import sys
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from laconic.errors import LaconicError
from laconic.store.records import plain

Config = TypeVar("Config")


def read_config(cls: type[Config], data: Mapping[str, Any], source: str) -> Config:
    """The config that a record holds. This is the only reader of settings.

    A field that the record lacks takes its default, an int is fine where a float is asked for, and
    an unknown field or a value of the wrong type is named in the error.

    Args:
        cls: the config's dataclass; fields may be dataclasses too.
        data: what `store.records.plain(config)` gave.
        source: what the error names.
    """
    unknown = sorted(set(data) - {f.name for f in fields(cls)})  # type: ignore[arg-type]
    if unknown:
        raise LaconicError(
            f"the settings in {source} have {', '.join(unknown)}, which this version does not "
            "know; start anew."
        )
    hints = typing.get_type_hints(cls)
    values = {}
    for name, value in data.items():
        try:
            values[name] = _read_value(hints[name], value, source)
        except TypeError:
            raise LaconicError(
                f"the settings in {source} have a {name} of the wrong type; start anew."
            ) from None
    return cls(**values)


def located(config: Any, path: Path) -> Any:
    """The config with its `out` at a folder, if it has one."""
    return replace(config, out=path) if any(f.name == "out" for f in fields(config)) else config


def settled(config: Config) -> Config:
    """The config as its own record would give it back: floats where floats are asked for."""
    return read_config(type(config), plain(config), "Python")


def different(
    then: Mapping[str, Any], now: Mapping[str, Any], besides: Collection[str] = ()
) -> list[str]:
    """The names of settings, but for some, that two runs do not share."""
    names = {*then, *now} - set(besides)
    return sorted(name for name in names if then.get(name) != now.get(name))


def require_same(
    what: str, then: Mapping[str, Any], now: Mapping[str, Any], besides: Collection[str] = ()
) -> None:
    """Refuse to go on with other settings, but for some, than something was begun with."""
    for name in different(then, now, besides):
        raise LaconicError(
            f"{what} was begun with {name} {then.get(name)!r}, and now it is {now.get(name)!r}; "
            "go on with the same as before, or begin elsewhere."
        )


def _read_value(hint: Any, value: Any, source: str) -> Any:
    """`value`, read from JSON, as the type that is asked for; TypeError if it is another."""
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in inside:
            return None
        kinds = [kind for kind in inside if kind is not type(None)]
        return _read_any(kinds, value, source)
    if origin is tuple:
        if not isinstance(value, list):
            raise TypeError(value)
        return tuple(_read_value(inside[0], item, source) for item in value)
    if isinstance(hint, type) and is_dataclass(hint):
        if not isinstance(value, dict):
            raise TypeError(value)
        return read_config(hint, value, source)
    if hint is float and type(value) is int:
        return float(value)
    if hint is Path and isinstance(value, str):
        return Path(value)
    wanted = str if origin is typing.Literal else hint
    if type(value) is not wanted:
        raise TypeError(value)
    return value


def _read_any(kinds: Sequence[Any], value: Any, source: str) -> Any:
    """`value` as the first of some types that it can be read as."""
    for kind in kinds[:-1]:
        try:
            return _read_value(kind, value, source)
        except TypeError:
            continue
    return _read_value(kinds[-1], value, source)


def program(command: str) -> list[str]:
    """The words that run a command: `laconic COMMAND`, or by the script that was started with it,
    which may register optimizers of its own."""
    script = Path(sys.argv[0])
    own = script.suffix == ".py" and script.name != "__main__.py" and sys.argv[1:2] == [command]
    return ["python", str(script), command] if own else ["laconic", command]


def resume_command(command: str, folder: Path) -> str:
    """The command that resumes a run."""
    return shlex.join([*program(command), "--resume", str(folder)])


def command_line(command: str, config: Any) -> str:
    """`laconic COMMAND` with a flag for every field in which a config differs from the default."""
    return shlex.join(["laconic", command, *flags_of(config, type(config)())])


def begun_with(command: str, config: Any, own_task: bool) -> str:
    """What a header says a run was started with, where nobody gives the command."""
    return f"laconic.{command}, from Python" if own_task else command_line(command, config)


def flags_of(config: Any, default: Any, prefix: str = "") -> list[str]:
    """The flags in which a config differs from another; those of a nested one are `NAME.FIELD`."""
    words = []
    for each in fields(config):
        value = getattr(config, each.name)
        usual = getattr(default, each.name)
        name = f"{prefix}{each.name.replace('_', '-')}"
        if is_dataclass(value):
            words += flags_of(value, usual, f"{name}.")
        elif value != usual:
            words.append(f"--{name}")
            words += map(str, value if isinstance(value, tuple) else (value,))
    return words
