"""`strandline config`: what the node is told, whether that is right, and what could be said."""

from pathlib import Path
from typing import Any

import click
from msgspec.structs import fields

from strandline.cli.command_group import Group, Subcommand, command
from strandline.cli.node_options import Home, home_options, note, output_options
from strandline.cli.show import json_text, print_json, print_table
from strandline.config.config import FILE_NAME, ConfigError, find_home, load_config
from strandline.config.keys import SECTIONS
from strandline.config.toml_file import parse_toml, size_text, toml_text

config = Group(
    "config",
    help="What the node is told; without a command it shows that.",
    subcommands={
        "schema": Subcommand("strandline.cli.verbs.config:schema_", "Print the JSON schema of the file."),
        "show": Subcommand(
            "strandline.cli.verbs.config:show_", "Print every setting, and where it comes from."
        ),
        "validate": Subcommand("strandline.cli.verbs.config:validate_", "Look for faults; change nothing."),
    },
    default="show",
)


@command("show")
@home_options
def show_(home: Home, as_json: bool) -> None:
    """Print every setting with its value, and whether the file or a default says so. Secrets are shown by
    name.

    With --json one object: file, settings (key, value, is_default each), and datasets, sinks and backfill as
    they stand in the file.

    For example: strandline config show
    """
    path = find_home(home.named) / FILE_NAME
    found = home.config()
    given = parse_toml(str(path), path.read_text("utf-8"))
    settings = [
        {
            "key": f"{section}.{info.name}",
            "value": _plain(info.name, getattr(getattr(found, section), info.name)),
            "is_default": info.name not in given.get(section, {}),
        }
        for section, kind in SECTIONS.items()
        for info in fields(kind)
    ]
    own = {name: given.get(name, {}) for name in ("datasets", "sinks", "backfill")}
    if as_json:
        print_json({"file": str(path), "settings": settings, **own})
        return
    click.echo(str(path))
    rows = [
        (each["key"], _shown(each["value"]), "default" if each["is_default"] else "") for each in settings
    ]
    rows += [
        (f"{group}.{name}.{key}", _shown(value), "")
        for group, tables in own.items()
        for name, table in tables.items()
        for key, value in table.items()
    ]
    print_table(("KEY", "VALUE", "FROM"), rows)


@command("validate")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@home_options
def validate_(home: Home, as_json: bool, file: Path | None) -> int:
    """Look for faults in the node's file, or in FILE: all of them at once, each with its line and key.
    Nothing is opened and nothing is changed. It ends with 1 if there is a fault.

    With --json one object: file, problems (line, key, text each) and notes.

    For example: strandline config validate other.toml
    """
    path = file if file is not None else find_home(home.named) / FILE_NAME
    try:
        found = load_config(path)
    except ConfigError as error:
        if as_json:
            problems = [each._asdict() for each in error.problems]
            print_json({"file": str(path), "problems": problems, "notes": []})
        else:
            for each in error.problems:
                click.echo(f"{path}: {each}", err=True)
        return 1
    if as_json:
        print_json({"file": str(path), "problems": [], "notes": list(found.warnings)})
        return 0
    for text in found.warnings:
        note(text)
    click.echo(f"{path} has no fault")
    return 0


@command("schema")
@output_options
def schema_(as_json: bool) -> None:
    """Print the JSON schema of strandline.toml, by which an editor completes and checks it.

    For example: strandline config schema > strandline.schema.json, and as the first line of the file
    `#:schema ./strandline.schema.json`.
    """
    import json

    from strandline.config.json_schema import config_schema

    found = config_schema()
    click.echo(json_text(found) if as_json else json.dumps(found, indent=2))


def _plain(name: str, value: Any) -> Any:
    """As JSON has it; sizes in the form in which people write them."""
    if isinstance(value, tuple):
        return [_plain(name, each) for each in value]
    if isinstance(value, dict):
        return {key: _plain(key, each) for key, each in value.items()}
    if name.endswith("_bytes") and isinstance(value, int):
        return size_text(value)
    if hasattr(value, "__struct_fields__"):
        return {field.name: _plain(field.name, getattr(value, field.name)) for field in fields(value)}
    return value


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    return toml_text(tuple(value) if isinstance(value, list) else value)
