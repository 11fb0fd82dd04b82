"""`strandline persist serve`: a store over HTTP, or empty ones for tests."""

from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

import click

from strandline.cli.command_group import command
from strandline.cli.store_options import TOKEN_VARIABLE, Target, store_options
from strandline.errors import UsageError
from strandline.persist.backend import Backend
from strandline.persist.opening import mem_backend, open_store


@command("serve")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=7411, show_default=True, help="0 is a free one."
)
@click.option(
    "--scratch", is_flag=True, help="Keep an empty store for each name in X-Strandline-Scratch instead."
)
@store_options
def serve_(target: Target, as_json: bool, host: str, port: int, scratch: bool) -> None:
    """Serve a store over HTTP until SIGTERM or SIGINT.

    The first line on stdout names the URL. The token that clients must bring is read from --token-file or
    from STRANDLINE_TOKEN; an address that other machines reach needs one.

    With --scratch the store itself is not touched: each name has an empty one of its own, made on first use,
    in the folder STORE.scratch (SQLite), a schema (Postgres) or memory. They are there after a restart.

    For example: strandline persist serve --port 8081 --store events.db
    """
    try:
        from strandline.server.event_store.host import persist_app
        from strandline.server.event_store.open_stores import Stores, one_store
        from strandline.server.serve import is_loopback, listen, serve_until_signal, url_of
    except ImportError as error:
        raise UsageError(
            f"to serve a store needs {error.name}, which is not installed",
            hint='pip install "strandline[server]"',
        ) from error
    if target.is_http:
        raise UsageError("a store over HTTP is served already", hint="name the store beside that host")
    token = target.token
    if token is None and not is_loopback(host):
        raise UsageError(
            f"address {host} is open to other machines and there is no token",
            hint=f"--token-file FILE, or {TOKEN_VARIABLE} in the environment",
        )
    beside = Target(target.url, target.schema, None)
    if scratch:
        is_memory = target.url.startswith("memory:")
        stores = Stores(
            _scratch_opener(beside), is_scratch=True, **({"kept_open": None} if is_memory else {})
        )
    else:
        stores = one_store(lambda: open_store(beside.url, **beside.options()))
    try:
        app = persist_app(stores, token=token)
        listening = listen(host, port)
    except BaseException:
        stores.close()
        raise
    url = url_of(listening)
    serve_until_signal(app, listening, lambda: _announce(url, as_json))


def _announce(url: str, as_json: bool) -> None:
    from strandline.cli.show import json_text

    click.echo(json_text({"listening": url}) if as_json else f"listening on {url}")


def _scratch_opener(target: Target) -> Callable[[str], Backend]:
    if target.url.startswith("memory:"):
        return lambda _: mem_backend()
    if target.is_postgres:
        return lambda name: open_store(target.url, schema=f"strandline_scratch_{name}")
    scheme, separator, _ = target.url.partition(":")
    if separator and "/" not in scheme and len(scheme) > 1 and scheme != "sqlite":
        open_store(target.url, create=False)  # which names the schemes that there are
    path = unquote(target.url.removeprefix("sqlite:///")) if target.url.startswith("sqlite:") else target.url
    folder = Path(f"{path}.scratch")
    folder.mkdir(parents=True, exist_ok=True)
    return lambda name: open_store(folder / f"{name}.db")
