"""The JSON schema of `strandline.toml`, for editors that complete and check it as it is written."""

from typing import Any, Final

import msgspec

from strandline.config.datasets import DatasetTable
from strandline.config.keys import SECTIONS, VERSION, RetentionTable
from strandline.config.sinks import KINDS as SINKS
from strandline.config.sinks import SinkTable
from strandline.config.sources import PROVIDER_KINDS, BackfillTable
from strandline.config.toml_file import Section

_SIZE: Final = {"type": "string", "pattern": r"^\d+ ?([KMGT]iB|B)$"}


def config_schema() -> dict[str, Any]:
    """What `load_config` takes, as far as a schema can say it."""
    sections = {name: _table(kind) for name, kind in SECTIONS.items()}
    sections["retention"]["properties"]["datasets"] |= _named(_table(RetentionTable))
    found = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "strandline.toml",
        "type": "object",
        "required": ["version"],
        "additionalProperties": False,
        "$defs": _nested(),
        "properties": {
            "version": {"const": VERSION},
            **sections,
            "datasets": _named(_table(DatasetTable)),
            "sinks": _named(_by_type(SinkTable, SINKS)),
            "backfill": _named(_by_type(BackfillTable, PROVIDER_KINDS)),
        },
    }
    return msgspec.json.decode(msgspec.json.encode(found), type=dict[str, Any])


def _nested() -> dict[str, Any]:
    """What tables have inside that has a name of its own."""
    tables: list[type[Section]] = [*SECTIONS.values(), DatasetTable, SinkTable, *SINKS.values()]
    _, components = msgspec.json.schema_components(tables)
    names = {kind.__name__ for kind in tables}
    return {name: each for name, each in components.items() if name not in names}


def _named(table: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": table}


def _table(*kinds: type[Section]) -> dict[str, Any]:
    """The keys of one table, which several structs may describe together."""
    properties: dict[str, Any] = {}
    required: list[str] = []
    for kind in kinds:
        _, components = msgspec.json.schema_components([kind])
        own = components[kind.__name__]
        properties |= {name: _with_sizes(name, each) for name, each in own["properties"].items()}
        required += own.get("required", [])
    found = {"type": "object", "additionalProperties": False, "properties": properties}
    return found | ({"required": required} if required else {})


def _by_type(common: type[Section], kinds: Any) -> dict[str, Any]:
    """A table whose `type` says which other keys it has; those of a kind that a package brings are not known
    here."""
    known = [
        {
            **_table(common, kind),
            "properties": {**_table(common, kind)["properties"], "type": {"const": name}},
        }
        for name, kind in kinds.items()
    ]
    other = {**_table(common), "additionalProperties": True}
    other["properties"] = {**other["properties"], "type": {"type": "string", "not": {"enum": [*kinds]}}}
    return {"anyOf": [*known, other]}


def _with_sizes(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """A key that takes a number of bytes takes a text such as "128MiB" too."""
    if not name.endswith("_bytes"):
        return schema
    said: dict[str, Any] = {key: schema[key] for key in ("description", "default") if key in schema}
    plain = {key: value for key, value in schema.items() if key not in said}
    if plain.get("type") == "array":
        return {**schema, "items": {"anyOf": [plain.get("items", {}), _SIZE]}}
    return {**said, "anyOf": [plain, _SIZE]}
