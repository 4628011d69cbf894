"""linkpassctl completion: what a shell needs to complete linkpassctl's words."""

import argparse

from linkpass.ctl.verb import OK, Context, Verb


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=["bash", "zsh"])


def run(context: Context) -> int:
    import shtab  # rarely wanted

    context.say(shtab.complete(context.parser, context.args.shell))
    return OK


VERB = Verb(
    "completion",
    "print a completion script for a shell",
    """  linkpassctl completion bash > /etc/bash_completion.d/linkpassctl
  linkpassctl completion zsh > /usr/share/zsh/site-functions/_linkpassctl""",
    run,
    options,
)
