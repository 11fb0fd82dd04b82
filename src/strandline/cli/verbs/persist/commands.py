"""`strandline persist`: the commands over an event store, each imported when it is named."""

from strandline.cli.command_group import Group, Subcommand


def _group(name: str, module: str, help_: str, commands: dict[str, str], default: str | None = None) -> Group:
    places = {
        command: Subcommand(f"strandline.cli.verbs.persist.{module}:{command.replace('-', '_')}_", text)
        for command, text in commands.items()
    }
    return Group(name, help=help_, subcommands=places, default=default)


kv = _group(
    "kv",
    "kv",
    "Current values by key.",
    {
        "cas": "Put a value if the present one is as expected.",
        "delete": "Remove a key.",
        "get": "Print the value of a key.",
        "list": "List keys with their values.",
        "put": "Put a value.",
    },
)

consumers = _group(
    "consumers",
    "consumers",
    "Durable consumers and their cursors; without a command it lists them.",
    {"drop": "End a consumer; its hold goes with it.", "list": "List consumers with their lags."},
    default="list",
)

persist = Group(
    "persist",
    help="Use and look after an event store.",
    subcommands={
        "append": Subcommand(
            "strandline.cli.verbs.persist.log:append_", "Append an event, or a batch of them."
        ),
        "backup": Subcommand(
            "strandline.cli.verbs.persist.upkeep:backup_", "Copy the store into a new file."
        ),
        "consumers": Subcommand(
            "strandline.cli.verbs.persist.commands:consumers", "Durable consumers and their cursors."
        ),
        "erase": Subcommand("strandline.cli.verbs.persist.upkeep:erase_", "Remove every event of a stream."),
        "follow": Subcommand("strandline.cli.verbs.persist.log:follow_", "Print events as they come."),
        "kv": Subcommand("strandline.cli.verbs.persist.commands:kv", "Current values by key."),
        "read": Subcommand("strandline.cli.verbs.persist.log:read_", "Print the events of a stream."),
        "redact": Subcommand(
            "strandline.cli.verbs.persist.upkeep:redact_", "Blank one value in a stored event."
        ),
        "repair": Subcommand(
            "strandline.cli.verbs.persist.repair:repair_", "Add checksums that another SQLite left out."
        ),
        "restore": Subcommand(
            "strandline.cli.verbs.persist.upkeep:restore_", "Fill an empty store from a backup."
        ),
        "serve": Subcommand("strandline.cli.verbs.persist.serve:serve_", "Serve a store over HTTP."),
        "stats": Subcommand("strandline.cli.verbs.persist.upkeep:stats_", "Sizes, tails and lags."),
        "streams": Subcommand("strandline.cli.verbs.persist.log:streams_", "List the streams."),
        "verify": Subcommand(
            "strandline.cli.verbs.persist.upkeep:verify_", "Find what is damaged or missing."
        ),
    },
)
