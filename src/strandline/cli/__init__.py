"""The command line. A group is imported when it is named, so that `strandline --help` needs no driver."""

from strandline.cli.group import Root, Subcommand

cli = Root(
    "strandline",
    help="An event store, and a data pipeline that delivers each row exactly once.",
    subcommands={
        "conformance": Subcommand(
            "strandline.cli.conformance:conformance", "Certify that a store keeps its promises."
        ),
        "persist": Subcommand("strandline.cli.persist:persist", "Use and look after an event store."),
    },
)


def main() -> None:
    cli.main(prog_name="strandline")


__all__ = ["cli", "main"]
