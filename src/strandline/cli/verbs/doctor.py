"""`strandline doctor`: whether all that a node needs is there."""

from dataclasses import asdict

import click

from strandline.cli.command_group import command
from strandline.cli.node_options import Home, home_options, note
from strandline.cli.show import print_json, shown
from strandline.config.config import Config


@command("doctor")
@click.option(
    "--prepare",
    "is_preparing",
    is_flag=True,
    help="First fetch the jars and make Spark's class archive: for an image, or a machine without a network.",
)
@home_options
def doctor_(home: Home, is_preparing: bool, as_json: bool) -> int:
    """Look at Java, jars, disk space, content, catalog, store, clock, destinations and collectors, and say
    what to do about what is wrong. Nothing is started or written, unless --prepare asks for it. It ends with
    1 if something is at fault.

    With --json one object a line: what, level (ok, warning, fault), text, remedy.

    For example: strandline doctor
    """
    from strandline.node.doctor import examine

    config = home.config()
    if is_preparing:
        _prepare(config)
    worst = 0
    for each in examine(config):
        worst = max(worst, int(each.level == "fault"))
        if as_json:
            print_json(asdict(each))
            continue
        click.echo(f"{each.level:8} {each.what}: {shown(each.text)}")
        if each.remedy:
            click.echo(f"         remedy: {shown(each.remedy)}")
    return worst


def _prepare(config: Config) -> None:
    from strandline.lake.spark.classic import prepare

    if config.spark.remote is not None:
        note("Spark runs elsewhere, by [spark] remote: there is nothing to prepare here")
    elif not prepare(config.lake_settings(), config.spark_settings(), note):
        note("this Java makes no class archive: Spark starts without, and takes half as long again")
