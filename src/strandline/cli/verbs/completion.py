"""`strandline completion`: what a shell needs to complete commands, options and names."""

import click
from click.shell_completion import get_completion_class

from strandline.cli.command_group import command
from strandline.cli.node_options import output_options
from strandline.cli.show import print_json

_VARIABLE = "_STRANDLINE_COMPLETE"


@command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@output_options
def completion_(as_json: bool, shell: str) -> None:
    """Print the script by which SHELL completes commands, options, and the datasets, sinks and providers of
    the node's file. With --json one object: shell, script.

    For example: strandline completion bash > ~/.local/share/bash-completion/completions/strandline
    """
    kind = get_completion_class(shell)
    root = click.get_current_context().find_root()
    assert kind is not None  # it is one of the choices
    script = kind(root.command, {}, "strandline", _VARIABLE).source()
    if as_json:
        print_json({"shell": shell, "script": script})
    else:
        click.echo(script)
