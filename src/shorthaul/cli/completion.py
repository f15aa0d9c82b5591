"""`shorthaul completion`: scripts that let a shell complete verbs, options and names."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = {
    "bash": "shorthaul completion bash > ~/.local/share/bash-completion/completions/shorthaul",
    "zsh": "shorthaul completion zsh > ~/.zfunc/_shorthaul  (with ~/.zfunc in fpath)",
    "fish": "shorthaul completion fish > ~/.config/fish/completions/shorthaul.fish",
}


@click.command()
@click.argument("shell", type=click.Choice(list(SHELLS)))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script of a shell, and how to install it."""
    complete = get_completion_class(shell)
    if complete is None:  # only by somebody taking it out of click's register
        raise click.ClickException(f"click knows no completion for {shell}")
    program = context.find_root().command
    click.echo(complete(program, {}, "shorthaul", "_SHORTHAUL_COMPLETE").source().rstrip())
    # At the end: zsh wants its `#compdef` in the first line.
    click.echo(f"# To install it, once:  {SHELLS[shell]}")
