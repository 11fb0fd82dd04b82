"""`strandline up`: the daemon."""

import sys
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from strandline.cli.command_group import command
from strandline.cli.node_options import Home, home_options, note
from strandline.cli.show import json_text
from strandline.errors import UsageError

if TYPE_CHECKING:
    from strandline.daemon.loop import News


@command("up")
@click.option("--listen", metavar="HOST:PORT", help="In place of [server] listen; port 0 is a free one.")
@home_options
def up_(home: Home, as_json: bool, listen: str | None) -> None:
    """Run the node until SIGTERM or SIGINT: rows come in over HTTP, are landed when enough or old enough,
    delivered by the schedule of each sink, pruned and compacted; backfills run by theirs. SIGHUP has the
    configuration read again.

    The first line on stdout names the URL; what happens is told on stderr, a line each. With --json both are
    JSON: {"listening": URL}, and {"at", "what", "name", "facts", "error"}.

    For example: strandline up --listen 127.0.0.1:8080
    """
    try:
        from strandline.daemon.daemon import running, serve
        from strandline.server.serve import address, is_loopback
    except ImportError as error:
        raise UsageError(
            f"the daemon needs {error.name}, which is not installed",
            hint='pip install "strandline[server,lake]"',
        ) from error
    config = home.config()
    host, _ = address(listen or config.server.listen)
    if config.server.tls_certificate is None and not is_loopback(host):
        note(f"{host} is open to other machines and tokens come in clear: [server] tls_certificate")
    telling = threading.Lock()

    def tell(news: "News") -> None:
        if news.is_idle and not news.error:
            return
        with telling:
            click.echo(_json(news) if as_json else _line(news), err=True)
            sys.stderr.flush()

    with running(config, tell) as daemon:
        serve(config, daemon, listen=listen, when_ready=lambda url: _announce(url, as_json))


def _announce(url: str, as_json: bool) -> None:
    click.echo(json_text({"listening": url}) if as_json else f"listening on {url}")
    sys.stdout.flush()


def _line(news: "News") -> str:
    at = datetime.now(UTC).strftime("%H:%M:%S")
    facts = ", ".join(f"{name} {_shown(value)}" for name, value in news.facts.items())
    parts = [f"{at} {news.what}", news.name, facts, f"FAILED {news.error}" if news.error else ""]
    return "  ".join(part for part in parts if part)


def _shown(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, dict):
        return "(" + ", ".join(f"{name} {_shown(each)}" for name, each in value.items()) + ")"
    return str(value)


def _json(news: "News") -> str:
    at = datetime.now(UTC).isoformat()
    return json_text(
        {"at": at, "what": news.what, "name": news.name, "facts": dict(news.facts), "error": news.error}
    )
