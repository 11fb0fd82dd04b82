"""A TOML file into structs, each fault in it named by line and key, all of them at once.

    strandline.toml has 2 faults
      line 4: spool.max_age: no such key; did you mean max_age_s?
      line 9: lake.format: 5 does not fit (Invalid enum value 5); the key means: the format of tables, 2 or 3

Sizes are numbers of bytes or texts such as "128MiB"; a key that takes one ends in `_bytes`. A secret is never
in the file: it is named, as `env:NAME` or `file:PATH`, and looked up when it is needed.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, TypeAlias, TypeVar

import msgspec

from strandline.base import secret
from strandline.base.schedule import Cron
from strandline.errors import UsageError

Keys: TypeAlias = tuple[str, ...]
Scalar: TypeAlias = str | bool | int | float
Name: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
Fields: TypeAlias = Mapping[str, msgspec.structs.FieldInfo]

KIB: Final = 1024
MIB: Final = 1024**2
GIB: Final = 1024**3

_UNITS: Final = {"TiB": 1024**4, "GiB": GIB, "MiB": MIB, "KiB": KIB, "B": 1}
_SIZE: Final = re.compile(r"(\d+) ?([KMGT]iB|B)")
_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
_NAMES_A_SECRET: Final = re.compile(
    r"(password|passwd|secret|token|credential|(secret|access|account|api|private|sas)[._-]?(access[._-]?)?key)$"
    r"|sas-token\.|account\.key\.",
    re.IGNORECASE,
)


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file. Each field says what it is about; see `about`."""


S = TypeVar("S", bound=Section)


class Problem(NamedTuple):
    """One fault: where it is, and what was found and wanted there."""

    line: int | None
    key: str
    text: str

    def __str__(self) -> str:
        where = f"line {self.line}: " if self.line else ""
        return f"{where}{self.key}: {self.text}" if self.key else f"{where}{self.text}"


class ConfigError(UsageError):
    """The configuration cannot be used as it is."""

    def __init__(self, file: str, problems: Sequence[Problem], *, hint: str | None = None) -> None:
        first, *more = map(str, problems)
        found = "".join(f"\n  {text}" for text in (first, *more))
        super().__init__(
            f"{file} has {len(problems)} faults{found}" if more else f"{file}: {first}",
            hint=hint or "correct it, and run the command again: nothing was changed",
        )
        self.file, self.problems = file, tuple(problems)


def about(text: str, *, default: str = "", sample: str = "") -> msgspec.Meta:
    """What a key is for. `default` says in words, `sample` shows in TOML, what no value of its own could."""
    return msgspec.Meta(description=text, extra={"default": default, "sample": sample})


class Faults:
    """The faults of one file, gathered until all of it has been looked at."""

    def __init__(self, file: str, text: str) -> None:
        self._file, self._text = file, text
        self._found: list[tuple[Keys, str]] = []

    def add(self, at: Keys, text: str) -> None:
        self._found.append((at, text))

    def raise_any(self) -> None:
        if not self._found:
            return
        lines = key_lines(self._text)
        problems = [Problem(_line(lines, at), dotted(at), text) for at, text in self._found]
        raise ConfigError(self._file, sorted(problems, key=lambda problem: problem.line or 0))


def parse_toml(file: str, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:  # its text names line and column
        raise ConfigError(file, [Problem(None, "", f"this is no TOML: {error}")]) from error


def read_struct(kind: type[S], table: object, at: Keys, faults: Faults) -> S | None:
    """`table` as a `kind`. A value that does not fit is a fault and the key's default stands in for it; None
    where there is none to do so."""
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    needed = {name for name, field in fields.items() if field.required}
    values: dict[str, Any] = {}
    if not isinstance(table, dict):
        faults.add(at, f"{shown(table)} is no table")
    else:
        values = dict(_values(fields, table, at, faults))
        for name in needed - table.keys():
            faults.add(at, f"{name} is missing; wanted: {describe(fields[name])}")
    return kind(**values) if needed <= values.keys() else None


def _values(fields: Fields, table: dict[str, Any], at: Keys, faults: Faults) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if key not in fields:
            faults.add((*at, key), no_such_key(key, fields))
            continue
        try:
            yield key, msgspec.convert(_prepared(key, value), fields[key].type)
        except (msgspec.ValidationError, ValueError) as error:
            faults.add((*at, key), _misfit(fields[key], value, error))


def read_kind(
    kind: type[S], common: type[msgspec.Struct], given: Mapping[str, Any], at: Keys, faults: Faults
) -> S | None:
    """The keys that only one kind of a table has, beside those that are `common` to all; what is neither is a
    fault."""
    known = [each.name for table in (common, kind) for each in msgspec.structs.fields(table)]
    for key in given.keys() - {*known}:
        faults.add((*at, key), no_such_key(key, known))
    return read_struct(kind, {key: given[key] for key in given if key in known}, at, faults)


def no_such_key(key: str, known: Iterable[str]) -> str:
    near = get_close_matches(key, known, n=1)
    return f"no such key; did you mean {near[0]}?" if near else f"no such key; there are {', '.join(known)}"


def describe(field: msgspec.structs.FieldInfo) -> str:
    return next(meta.description for meta in metas(field) if meta.description)


def metas(field: msgspec.structs.FieldInfo) -> tuple[msgspec.Meta, ...]:
    return getattr(field.type, "__metadata__", ())


def _prepared(name: str, value: Any) -> Any:
    if name.endswith("_bytes") and isinstance(value, str):
        return parse_size(value)
    if name.endswith("_bytes") and isinstance(value, list):
        return [parse_size(each) if isinstance(each, str) else each for each in value]
    return dict(_flat(value)) if name == "conf" and isinstance(value, dict) else value


def _misfit(field: msgspec.structs.FieldInfo, value: object, error: Exception) -> str:
    found = "what is written there" if is_secret_name(field.name) else shown(value)
    return f"{found} does not fit ({error}); the key means: {describe(field)}"


def _flat(table: Mapping[str, Any], under: str = "") -> Iterator[tuple[str, Any]]:
    """`spark.driver.memory = "2g"` is three tables to TOML and one key to Spark."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{under}{key}.")
        else:
            yield f"{under}{key}", value


# What tables of names of one's own share


def check_name(name: str, at: Keys, faults: Faults) -> None:
    try:
        msgspec.convert(name, Name)
    except msgspec.ValidationError:
        faults.add(at, f"{shown(name)} is no name; wanted: letters, digits, '_', '-', '.', at most 64")


def check_schedule(text: str, at: Keys, faults: Faults) -> None:
    try:
        Cron.parse(text)
    except UsageError as error:
        faults.add((*at, "schedule"), f"{error.message}; wanted: {error.hint}")


def check_secrets(keys: Mapping[str, Any], at: Keys, faults: Faults) -> None:
    for key, value in keys.items():
        if is_secret_name(key) and value is not None and not secret.is_reference(value):
            faults.add((*at, key), "a secret stands in the file; wanted: env:NAME or file:PATH")


# Lines


def key_lines(text: str) -> dict[str, int]:
    """The line at which each key and table header of a valid file starts, by its parts joined with dots.

    Statement by statement: none that goes on in the next line is TOML up to there.
    """
    lines: dict[str, int] = {}
    section: Keys = ()
    statement, first = "", 0
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        statement, first = (f"{statement}\n{line}", first) if statement else (line, number)
        try:
            paths = list(_paths(tomllib.loads(statement)))
        except tomllib.TOMLDecodeError:
            continue
        if statement.lstrip().startswith("["):
            section = paths[-1]
            for end in range(1, len(section) + 1):  # [sinks.archive] is where `sinks` starts, too
                lines.setdefault(".".join(section[:end]), first)
        else:
            for path in paths:
                lines.setdefault(".".join((*section, *path)), first)
        statement = ""
    return lines


def _paths(table: Mapping[str, Any]) -> Iterator[Keys]:
    for key, value in table.items():
        yield (key,)
        if isinstance(value, dict):
            yield from ((key, *path) for path in _paths(value))


def _line(lines: Mapping[str, int], at: Keys) -> int | None:
    """Of the key, else of what it should be in."""
    names = (".".join(at[:n]) for n in range(len(at), 0, -1))
    return next((lines[name] for name in names if name in lines), None)


def dotted(at: Keys) -> str:
    return ".".join(key if _BARE_KEY.fullmatch(key) else toml_text(key) for key in at)


# Values


def parse_size(text: str) -> int:
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError('no size such as "128MiB": B, KiB, MiB, GiB or TiB')
    return int(match[1]) * _UNITS[match[2]]


def size_text(size: int) -> str:
    unit = next(unit for unit, width in _UNITS.items() if size % width == 0 and (size or width == 1))
    return f"{size // _UNITS[unit]}{unit}"


def toml_text(value: Any) -> str:
    """A default as it would stand in the file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return msgspec.json.encode(value).decode()  # TOML's basic strings have JSON's escapes
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{dotted((key,))} = {toml_text(item)}" for key, item in value.items()) + "}"
    return f"[{', '.join(map(toml_text, value))}]" if isinstance(value, tuple) else str(value)


def shown(value: object) -> str:
    """A value as it was found; what is inside a list or a table may be a secret."""
    return f"{value!r:.60}" if isinstance(value, Scalar) else f"a {type(value).__name__}"


# Secrets


def is_secret_name(key: str) -> bool:
    """Whether the value of a key named like this must not stand in the file."""
    return _NAMES_A_SECRET.search(key) is not None


def look_up(reference: str, key: str, *, file: str, folder: Path) -> str:
    """What a reference stands for; a ConfigError says which `key` of which `file` named it."""
    try:
        return secret.look_up(reference, folder)
    except secret.SecretMissing as error:
        hint = f"put the secret where {reference} says, or name another place in {key}"
        raise ConfigError(file, [Problem(None, key, error.message)], hint=hint) from error
