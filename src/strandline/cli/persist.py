"""`strandline persist`: the commands over an event store, each imported when it is named."""

from strandline.cli.group import Group, Subcommand


def _group(name: str, module: str, help_: str, commands: dict[str, str], default: str | None = None) -> Group:
    places = {
        command: Subcommand(f"strandline.cli.{module}:{command.replace('-', '_')}_", text)
        for command, text in commands.items()
    }
    return Group(name, help=help_, subcommands=places, default=default)


kv = _group(
    "kv",
    "persist_kv",
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
    "persist_consumers",
    "Durable consumers and their cursors; without a command it lists them.",
    {"drop": "End a consumer; its hold goes with it.", "list": "List consumers with their lags."},
    default="list",
)

persist = Group(
    "persist",
    help="Use and look after an event store.",
    subcommands={
        "append": Subcommand("strandline.cli.persist_log:append_", "Append an event, or a batch of them."),
        "backup": Subcommand("strandline.cli.persist_upkeep:backup_", "Copy the store into a new file."),
        "consumers": Subcommand("strandline.cli.persist:consumers", "Durable consumers and their cursors."),
        "erase": Subcommand("strandline.cli.persist_upkeep:erase_", "Remove every event of a stream."),
        "follow": Subcommand("strandline.cli.persist_log:follow_", "Print events as they come."),
        "kv": Subcommand("strandline.cli.persist:kv", "Current values by key."),
        "read": Subcommand("strandline.cli.persist_log:read_", "Print the events of a stream."),
        "redact": Subcommand("strandline.cli.persist_upkeep:redact_", "Blank one value in a stored event."),
        "restore": Subcommand("strandline.cli.persist_upkeep:restore_", "Fill an empty store from a backup."),
        "serve": Subcommand("strandline.cli.persist_serve:serve_", "Serve a store over HTTP."),
        "stats": Subcommand("strandline.cli.persist_upkeep:stats_", "Sizes, tails and lags."),
        "streams": Subcommand("strandline.cli.persist_log:streams_", "List the streams."),
        "verify": Subcommand("strandline.cli.persist_upkeep:verify_", "Find what is damaged or missing."),
    },
)
