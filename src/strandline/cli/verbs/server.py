"""`strandline server`: the receiver, and the tokens of those who may send to it."""

import sys
from typing import Any

import click

from strandline.cli.command_group import Group, Subcommand, command, confirmed
from strandline.cli.node_options import Home, home_options, note
from strandline.cli.show import json_text, print_json, print_table
from strandline.cli.verbs.spool import at_text
from strandline.errors import UsageError

token = Group(
    "token",
    help="Who may send; without a command it lists the tokens.",
    subcommands={
        "list": Subcommand("strandline.cli.verbs.server:list_", "List the tokens; their texts are not kept."),
        "new": Subcommand("strandline.cli.verbs.server:new_", "Make a token, and show it this once."),
        "revoke": Subcommand("strandline.cli.verbs.server:revoke_", "Have a token open nothing any more."),
    },
    default="list",
)

server = Group(
    "server",
    help="Take rows of other nodes in over HTTP.",
    subcommands={
        "run": Subcommand("strandline.cli.verbs.server:run_", "Serve until SIGTERM or SIGINT."),
        "token": Subcommand("strandline.cli.verbs.server:token", "Who may send."),
    },
)


@command("run")
@click.option("--listen", metavar="HOST:PORT", help="In place of [server] listen; port 0 is a free one.")
@home_options
def run_(home: Home, as_json: bool, listen: str | None) -> None:
    """Take rows of other nodes in until SIGTERM or SIGINT. The first line on stdout names the URL.

    What is received is spooled: `strandline flush` lands it. Datasets must be declared, or have rows already,
    unless [node] strict_datasets is false. With --json the first line is {"listening": URL}.

    For example: strandline server run --listen 127.0.0.1:8080
    """
    try:
        from strandline.server.bearer_tokens import Gate, tokens
        from strandline.server.receiver import Receiver
        from strandline.server.serve import address, is_loopback, serve_until_signal, url_of
        from strandline.server.serve import listen as listen_on
    except ImportError as error:
        raise UsageError(
            f"to receive rows needs {error.name}, which is not installed",
            hint='pip install "strandline[server,lake]"',
        ) from error
    from strandline.daemon.metrics_page import metrics_page
    from strandline.flush.reconcile import reconcile
    from strandline.observe.process_counts import Live
    from strandline.observe.span import send_traces
    from strandline.persist.backend import why_spent

    config = home.config()
    host, port = address(listen or config.server.listen)
    tls = config.server_tls()
    with home.site() as site:
        site.is_strict = config.node.strict_datasets is not False
        reconcile(site, config.lake_settings())
        gate = Gate(site.b, config.server_tokens())
        if not config.server.tokens and all(each.revoked_at is not None for each in tokens(site.b)):
            note("there is no token, so nobody may send: `strandline server token new NAME` makes one")
        if tls is None and not is_loopback(host):
            note(f"{host} is open to other machines and tokens come in clear: [server] tls_certificate")
        send_traces(config.observe.traces, node=config.node.name)
        metrics = metrics_page(lambda: config, site, Live())
        app = Receiver(site, gate, config.server, dataset_of=config.dataset_of_signal, metrics=metrics)
        try:
            listening = listen_on(host, port)
        except BaseException:
            app.close()
            raise
        url = url_of(listening, scheme="https" if tls else "http")
        serve_until_signal(
            app,
            listening,
            lambda: _announce(url, as_json),
            tls=tls,
            why_spent=lambda: why_spent(site.b),
        )


def _announce(url: str, as_json: bool) -> None:
    click.echo(json_text({"listening": url}) if as_json else f"listening on {url}")


@command("new")
@click.argument("name")
@click.option(
    "--dataset", "datasets", multiple=True, help="Only for this one; may be repeated. Else for all."
)
@click.option(
    "--origin", "origins", multiple=True, help="Only from this store; may be repeated. Else from all."
)
@home_options
def new_(home: Home, as_json: bool, name: str, datasets: tuple[str, ...], origins: tuple[str, ...]) -> None:
    """Make a token for NAME, whoever that is, and print it: this once, only a hash of it is kept.

    A token for some datasets names them as the sender calls them, and as this node does where that is
    another name. With --json: id, name, token, datasets, origins (null for all), at.

    For example: strandline server token new laptop --dataset logs
    """
    from strandline.server.bearer_tokens import new_token

    with home.site() as site:
        made, text = new_token(
            site.b,
            name,
            at=site.clock.now_us(),
            datasets=datasets or None,
            origins=origins or None,
        )
    if as_json:
        print_json({**_facts(made), "token": text})
        return
    click.echo(text)
    if sys.stderr.isatty():
        note(f"this is token {made.id}; it is not shown again")


@command("list")
@home_options
def list_(home: Home, as_json: bool) -> None:
    """List the tokens. With --json one object each: id, name, datasets, origins (null for all), at,
    revoked_at (UTC microseconds).

    For example: strandline server token list
    """
    from strandline.server.bearer_tokens import tokens

    with home.site() as site:
        found = list(tokens(site.b))
    if as_json:
        for each in found:
            print_json(_facts(each))
        return
    if not found:
        click.echo("there are no tokens", err=True)
        return
    lines = [
        (
            each.id,
            each.name,
            "all" if each.datasets is None else ", ".join(each.datasets),
            "all" if each.origins is None else ", ".join(each.origins),
            at_text(each.at),
            "" if each.revoked_at is None else at_text(each.revoked_at),
        )
        for each in found
    ]
    print_table(("ID", "NAME", "DATASETS", "ORIGINS", "MADE", "REVOKED"), lines)


@command("revoke")
@click.argument("token_id", metavar="ID")
@click.option("--dry-run", is_flag=True, help="Only look whether there is such a token.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@home_options
def revoke_(home: Home, as_json: bool, token_id: str, dry_run: bool, yes: bool) -> int:
    """Have token ID open nothing from now on, also at receivers that run. With --json what `list` has.

    For example: strandline server token revoke 0f3c9a1b2d4e --dry-run
    """
    from strandline.server.bearer_tokens import revoke, token_of

    with home.site() as site:
        found = token_of(site.b, token_id)
        if not dry_run:
            if not confirmed(f"Revoke token {found.id} of {found.name!r} for good?", yes=yes):
                return 1
            found = revoke(site.b, token_id, at=site.clock.now_us())
    if as_json:
        print_json({**_facts(found), "dry_run": dry_run})
    else:
        click.echo(f"token {found.id} of {found.name} {'would be' if dry_run else 'is'} revoked")
    return 0


def _facts(token: Any) -> dict[str, Any]:
    return {
        "id": token.id,
        "name": token.name,
        "datasets": None if token.datasets is None else list(token.datasets),
        "origins": None if token.origins is None else list(token.origins),
        "at": token.at,
        "revoked_at": token.revoked_at,
    }
