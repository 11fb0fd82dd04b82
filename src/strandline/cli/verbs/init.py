"""`strandline init`: a folder becomes a node."""

import uuid
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from strandline.cli.command_group import command, confirmed
from strandline.cli.missing_extras import install
from strandline.cli.node_options import output_options
from strandline.cli.show import print_facts, print_json
from strandline.config.config import FILE_NAME, Config, load_config, write_default
from strandline.config.home import HOME_VARIABLE, HomeNotFound
from strandline.errors import UnavailableError, UsageError
from strandline.persist import AtomicBackend, Conflict, ExpectKey, Put, kv_put_new, open_store
from strandline.state.context import ORIGIN, open_site


@command("init")
@click.argument("folder", required=False, type=click.Path(path_type=Path), envvar=HOME_VARIABLE)
@click.option("--new-origin", is_flag=True, help="Give the node that is in FOLDER, a copy, an id of its own.")
@click.option("--yes", is_flag=True, help="With --new-origin: do not ask.")
@output_options
def init_(folder: Path | None, as_json: bool, new_origin: bool, yes: bool) -> int:
    """Make a node in FOLDER, this one if none is named: a strandline.toml with every default, and its store.

    A file that is there is never overwritten. A node that was copied, and is to live beside the original,
    needs --new-origin: tokens of the original are then refused here.

    With --json: home, config, origin; with --new-origin also former_origin.

    For example: strandline init mynode
    """
    home = (folder or Path()).absolute()
    if yes and not new_origin:
        raise UsageError("--yes goes with --new-origin", hint="leave it out: init overwrites nothing")
    if new_origin:
        return _renew(home, as_json, yes)
    path = write_default(home)
    # A kill here leaves a node whose store is made by whoever opens it first.
    site = open_site(load_config(path))
    try:
        facts = {"home": str(home), "config": str(path), "origin": site.origin}
    finally:
        site.b.close()
    _print(facts, as_json)
    if not as_json:
        click.echo(_next_steps(home), err=True)
    return 0


def _renew(home: Path, as_json: bool, yes: bool) -> int:
    path = home / FILE_NAME
    if not path.is_file():
        raise HomeNotFound(f"{home} holds no {FILE_NAME}", home)
    config = load_config(path)
    question = f"Give {home} a new origin id? Tokens that were given out by it are refused from then on."
    if not confirmed(question, yes=yes):
        return 1
    former, origin = _replaced(config)
    facts: dict[str, Any] = {"home": str(home), "config": str(path), "origin": origin}
    _print({**facts, "former_origin": former}, as_json)
    return 0


def _replaced(config: Config) -> tuple[str | None, str]:
    """The id that was there and the new one; of two at once one is refused."""
    b: AtomicBackend = open_store(config.store_url, create=False)
    try:
        former, origin = b.kv_get(ORIGIN), uuid.uuid4().hex
        if former is None:
            kv_put_new(b, ORIGIN, origin)
        elif isinstance(b.commit([ExpectKey(ORIGIN, former)], [Put(ORIGIN, origin)]), Conflict):
            raise UnavailableError(
                "another command gave the node a new origin at the same time",
                hint="nothing more is to be done, if one new id is enough",
            )
        return (None if former is None else str(former)), str(b.kv_get(ORIGIN))
    finally:
        b.close()


def _print(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(facts)
    else:
        print_facts(facts)


def _next_steps(home: Path) -> str:
    option = "" if home == Path.cwd() else f" --home {home}"
    first = "" if find_spec("pyarrow") else f"\n  {install('lake')}  # rows and tables need it"
    return f"""
what next:{first}
  echo '{{"message": "hello"}}' | strandline append logs{option}
  strandline flush{option}
  strandline sql 'SELECT * FROM logs'{option}"""
