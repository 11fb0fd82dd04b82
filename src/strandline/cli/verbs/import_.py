"""`strandline import`: rows that were never numbered become part of a dataset, once."""

import click

from strandline.cli.command_group import command
from strandline.cli.node_options import Home, home_options
from strandline.cli.verbs.load import print_load


@command("import")
@click.argument("dataset")
@click.argument("place", metavar="FOLDER|TABLE")
@click.option("--iceberg", "is_iceberg", is_flag=True, help="TABLE is the name of an Iceberg table in Spark.")
@click.option("--source", metavar="SOURCE", help="The source of all rows; else their own column `source`.")
@home_options
def import_(
    home: Home, as_json: bool, dataset: str, place: str, is_iceberg: bool, source: str | None
) -> None:
    """Bring the rows of a Parquet FOLDER, or with --iceberg of an Iceberg TABLE, into DATASET.

    They are numbered and stamped like any other row. Nothing is imported twice: of a folder a repeat brings
    the files that are new, and an import that was interrupted is finished by it. Files are known by the last
    part of the folder's name and their paths inside it, so a copy of the folder is the same folder. A file,
    or a table, that has changed since it was imported is refused, and nothing is imported then.

    With --json: as load.

    For example: strandline import orders old/orders --source shop
    """
    with home.node() as node:
        kind = "iceberg" if is_iceberg else "parquet"
        print_load(node.import_rows(dataset, place, kind=kind, source=source), as_json)  # type: ignore[arg-type]
