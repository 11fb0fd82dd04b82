"""`strandline conformance`: does a store keep its promises?"""

from pathlib import Path

import click

from strandline.cli.command_group import Group, Subcommand, command
from strandline.errors import UsageError


@command("run")
@click.option("--store", metavar="URL", help="Certify the backend of this URL, in scratch stores of its own.")
@click.option("--fixture", metavar="MODULE:NAME", help="Certify what this fixture makes.")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Write the scoreboard there.")
@click.option("--suite", "suites", multiple=True, metavar="NAME", help="Only this suite; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, whose fields only ever get more.")
@click.option("--debug", is_flag=True, help="Show the stack trace of an error.")
def run_(
    store: str | None,
    fixture: str | None,
    out: Path | None,
    suites: tuple[str, ...],
    as_json: bool,
    debug: bool,  # noqa: ARG001  # looked at by Command
) -> int:
    """Run the suites over a store or a fixture. It ends with 0 only if every case ran and passed.

    For example: strandline conformance run --store postgresql://localhost/scratch --out scoreboard
    """
    if (store is None) is (fixture is None):
        raise UsageError(
            "one of --store and --fixture is needed", hint="--store URL, or --fixture module:name"
        )
    from strandline.conformance.command import run_cli

    return run_cli(store_url=store, fixture=fixture, out_dir=out, suites=list(suites), json=as_json)


conformance = Group(
    "conformance",
    help="Certify that a store keeps its promises.",
    subcommands={"run": Subcommand("strandline.cli.verbs.conformance:run_", "Run the suites.")},
)
