"""linkpassd: the host agent.

    linkpassd --config /etc/linkpass/linkpass.toml            run in the foreground; SIGTERM ends it tidily
    linkpassd --config /etc/linkpass/linkpass.toml --check    only check the file
    linkpassd --config /etc/linkpass/linkpass.toml --undo     remove everything that an agent left in the kernel

Exit codes: 0 fine, 1 failed while running, 2 bad configuration or usage.
"""

import argparse
import asyncio
import sys
from pathlib import Path

from linkpass import __version__, manifest
from linkpass.errors import ConfigError, LinkPassError
from linkpass.settings import load

from .from_fabric import fill

DEFAULT_CONFIG = Path("/etc/linkpass/linkpass.toml")


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="linkpassd", description="The LinkPass host agent.", epilog="See docs/operating.md."
    )
    parser.add_argument("--config", type=Path, default=DEFAULT_CONFIG, help="default: %(default)s")
    parser.add_argument("--check", action="store_true", help="check the config file and exit")
    parser.add_argument("--undo", action="store_true", help="remove what an agent left in the kernel, and exit")
    parser.add_argument("--version", action="version", version=f"linkpassd {__version__}")
    args = parser.parse_args(argv)
    try:
        settings = load(args.config, fill)
        from . import wiring  # after the config: a typo is told before anything heavy is loaded

        if args.check:
            wiring.keys(settings)
            if settings.manifest:
                manifest.load(settings.manifest)
            print(f"{args.config}: fine")
            return 0
        if args.undo:
            return wiring.undo(settings)
        return asyncio.run(wiring.run(settings))
    except ConfigError as e:
        print(e, file=sys.stderr)
        return 2
    except LinkPassError as e:
        print(f"linkpassd: {e}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
