"""The command line. A command is imported when it is named, so that `strandline --help` needs no driver."""

from strandline.cli.command_group import Root, Subcommand

cli = Root(
    "strandline",
    help="An event store, and a data pipeline that delivers each row exactly once.",
    subcommands={
        "append": Subcommand("strandline.cli.verbs.append:append_", "Take rows in from files or stdin."),
        "backfill": Subcommand("strandline.cli.verbs.backfill:backfill", "Rows from before, each once."),
        "completion": Subcommand(
            "strandline.cli.verbs.completion:completion_", "Have a shell complete commands."
        ),
        "config": Subcommand(
            "strandline.cli.verbs.config:config", "What the node is told; find faults in it."
        ),
        "conformance": Subcommand(
            "strandline.cli.verbs.conformance:conformance", "Certify that a store keeps its promises."
        ),
        "doctor": Subcommand(
            "strandline.cli.verbs.doctor:doctor_", "Look whether all that it needs is there."
        ),
        "dlq": Subcommand("strandline.cli.verbs.dlq:dlq", "Rows that a destination refused."),
        "flush": Subcommand("strandline.cli.verbs.flush:flush_", "Land what is pending in the tables."),
        "import": Subcommand(
            "strandline.cli.verbs.import_:import_", "Bring in rows that were never numbered, once."
        ),
        "init": Subcommand("strandline.cli.verbs.init:init_", "Make a node in a folder."),
        "load": Subcommand(
            "strandline.cli.verbs.load:load_", "Land files or tables of any size through Spark."
        ),
        "maintain": Subcommand(
            "strandline.cli.verbs.maintain:maintain_",
            "Merge small files, let old ones go; re-point a moved warehouse.",
        ),
        "persist": Subcommand(
            "strandline.cli.verbs.persist.commands:persist", "Use and look after an event store."
        ),
        "prove": Subcommand("strandline.cli.verbs.prove:prove_", "Check that each row arrived, and once."),
        "purge": Subcommand(
            "strandline.cli.verbs.purge:purge_", "Take rows out for good, wherever they are."
        ),
        "read": Subcommand("strandline.cli.verbs.read:read_", "Print the rows of a dataset in order."),
        "retention": Subcommand(
            "strandline.cli.verbs.retention:retention", "Take out rows that are not kept."
        ),
        "server": Subcommand("strandline.cli.verbs.server:server", "Take rows of other nodes in over HTTP."),
        "sink": Subcommand("strandline.cli.verbs.sink:sink", "Where rows go, and how far they are."),
        "spool": Subcommand(
            "strandline.cli.verbs.spool:spool", "Rows that have not landed yet, and bad rows."
        ),
        "sql": Subcommand("strandline.cli.verbs.sql:sql_", "Print what a query over the datasets gives."),
        "status": Subcommand(
            "strandline.cli.verbs.status:status_", "How the node stands, and what repairs it."
        ),
        "up": Subcommand(
            "strandline.cli.verbs.up:up_", "Run the node: take rows in, land them, deliver them."
        ),
        "sync": Subcommand("strandline.cli.verbs.sync:sync_", "Deliver what sinks are owed, now."),
    },
)


def main() -> None:
    cli.main(prog_name="strandline")


__all__ = ["cli", "main"]
