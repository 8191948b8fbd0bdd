"""`millstream completion`: completes commands, options, topics and groups in a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

PROGRAM, VARIABLE = "millstream", "_MILLSTREAM_COMPLETE"


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash:  eval "$(millstream completion bash)"     in ~/.bashrc
    zsh:   eval "$(millstream completion zsh)"      in ~/.zshrc
    fish:  millstream completion fish > ~/.config/fish/completions/millstream.fish
    """
    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(context.find_root().command, {}, PROGRAM, VARIABLE).source())
