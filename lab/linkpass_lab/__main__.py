"""`linkpass-lab`: the command line of the lab. Flags stand here, what they do in `commands` and `demo`."""

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from linkpass import __version__
from linkpass.errors import LinkPassError
from linkpass_lab import commands
from linkpass_lab.fault import FaultKind
from linkpass_lab.guests import verbs as guests

EPILOG = """exit codes: 0 all holds, 1 something did not hold, 2 usage, 3 the lab can't be made or reached
run folders are in /run/linkpass-lab, or where LINKPASS_LAB_ROOT says"""


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(
        prog="linkpass-lab",
        description="fabrics out of network namespaces, with agents, faults and scenarios",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=__version__)
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    which = argparse.ArgumentParser(add_help=False)
    which.add_argument("--lab", metavar="NAME", help="which lab; needed only when several are up")

    up = verbs.add_parser("up", help="bring a fabric up; Ctrl-C takes it down")
    up.add_argument("fabric", metavar="FABRIC", help="a name in topology/fabrics, or a file")
    up.add_argument("--no-agents", action="store_true", help="leave the hosts without LinkPass")
    up.add_argument("--detach", action="store_true", help="return when it is up; `linkpass-lab down` takes it down")
    up.add_argument("--equal-ifindex", action="store_true", help="make the kernel throttle link events, as of NICs")
    up.add_argument("--rdma", action="store_true", help="hosts are QEMU guests with Soft-RoCE devices")
    up.add_argument("--bond", action="store_true", help="with --rdma: an active-backup bond over the first two rails")
    up.set_defaults(do=commands.up)

    down = verbs.add_parser("down", help="take a lab down, also one whose process was killed")
    down.add_argument("name", nargs="?", metavar="NAME", help="its run folder's name")
    down.add_argument("--all", action="store_true", help="every lab in the root folder")
    down.set_defaults(do=commands.down)

    labs = verbs.add_parser("labs", help="list the labs that are up or were left behind")
    labs.set_defaults(do=commands.labs)

    run = verbs.add_parser("run", help="play scenarios and say whether what must hold does")
    run.add_argument("scenarios", nargs="+", metavar="SCENARIO", help="a name from `scenarios`, a folder, or `all`")
    run.add_argument("--json", action="store_true", help="print one JSON list at the end")
    run.add_argument("--keep", type=Path, metavar="FOLDER", help="save logs there when something doesn't hold")
    run.set_defaults(do=commands.run)

    listing = verbs.add_parser("scenarios", help="list the scenarios")
    listing.set_defaults(do=commands.scenarios)

    execute = verbs.add_parser("exec", parents=[which], help="run a program on a host")
    execute.add_argument("host", metavar="HOST")
    execute.add_argument("argv", nargs=argparse.REMAINDER, metavar="-- CMD ...")
    execute.set_defaults(do=commands.execute)

    shell = verbs.add_parser("shell", parents=[which], help="a shell on a host")
    shell.add_argument("host", metavar="HOST")
    shell.set_defaults(do=commands.shell)

    fault = verbs.add_parser("fault", parents=[which], help="break something; `faults` lists the verbs")
    fault.add_argument("kind", choices=[str(k) for k in FaultKind], metavar="KIND")
    fault.add_argument("words", nargs="*", metavar="WORD", help="the target, then parameters as name=value")
    fault.set_defaults(do=commands.fault)

    repair = verbs.add_parser("repair", parents=[which], help="take a fault back (all of them, without a KIND)")
    repair.add_argument("kind", nargs="?", choices=[str(k) for k in FaultKind], metavar="KIND")
    repair.add_argument("words", nargs="*", metavar="WORD")
    repair.set_defaults(do=commands.repair)

    faults = verbs.add_parser("faults", help="list the fault verbs and their parameters")
    faults.set_defaults(do=commands.faults)

    demo = verbs.add_parser("demo", help="a flow survives the loss of the far host's switch port, step by step")
    demo.add_argument("--fabric", default="2x2", metavar="FABRIC", help="default: 2x2")
    demo.add_argument("--json", action="store_true", help="print the figures as JSON at the end")
    demo.add_argument("--rdma", action="store_true", help="an RDMA job between guests, instead of packets")
    demo.add_argument("--picture", default="demo.png", metavar="PNG", help="with --rdma: the plot")
    demo.set_defaults(do=commands.demo)
    guests.add_verbs(verbs)

    # Its words go on as they are, `--help` too: see `main`.
    verbs.add_parser("simulate", add_help=False, help="agents of a whole fleet on virtual time, from seeds")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["simulate"]:
        return commands.simulate(words[1:])
    options = parser().parse_args(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that what was made is taken away
    try:
        return int(options.do(options))
    except LinkPassError as e:
        print(f"linkpass-lab: {e}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        print("linkpass-lab: interrupted; what it made is gone", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 0


if __name__ == "__main__":
    sys.exit(main())
