"""What each verb of `linkpass-lab` does. Each takes the parsed options and returns an exit code."""

import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from linkpass.errors import LinkPassError
from linkpass_lab import fault as values
from linkpass_lab import realisations, scenario
from linkpass_lab.agents import Agents
from linkpass_lab.breaking import broken, mend, strike
from linkpass_lab.fault import VERBS, Fault, FaultKind
from linkpass_lab.lab import Lab, LabError
from linkpass_lab.ledger import Ledger, LedgerError, runs
from linkpass_lab.runner import Report, play
from linkpass_topology import fabric as fabrics

READY = b"ready\n"


def up(options: argparse.Namespace) -> int:
    """Bring a lab up, in the foreground or as a process of its own."""
    fabric = fabrics.load(scenario.find_fabric(options.fabric))
    if not options.detach:
        return _stay(fabric, options, None)
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.close(reader)
        os.setsid()
        code = 3
        try:
            code = _stay(fabric, options, writer)
        except Exception as e:  # the parent has to hear of whatever it is
            os.write(writer, f"{e if isinstance(e, LinkPassError) else repr(e)}\n".encode())
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as words:
        said = words.read()
    if not said.endswith(READY):
        raise LabError(said.decode().strip() or "the lab's process died while it came up")
    sys.stdout.write(said[: -len(READY)].decode())
    return 0


def _stay(fabric: fabrics.Fabric, options: argparse.Namespace, tell: int | None) -> int:
    """Make the lab and hold it until SIGINT or SIGTERM. `tell`: a pipe that gets the words, then READY, then EOF."""
    extra = {name: True for name in ("equal_ifindex", "bond") if getattr(options, name)}
    lab = realisations.up("guests" if options.rdma else "namespaces", fabric, **extra)
    try:
        if not options.no_agents:
            Agents(lab).start_all()
        words = _welcome(lab, agents=not options.no_agents)
        if tell is None:
            print(words, flush=True)
        else:
            os.write(tell, words.encode() + b"\n" + READY)
            os.close(tell)
            null = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(null, stream)
        signal.pause()
    except (KeyboardInterrupt, SystemExit):
        pass
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):  # taking down isn't to be broken off half-way
            signal.signal(number, signal.SIG_IGN)
        lab.close()
    return 0


def _welcome(lab: Lab, *, agents: bool) -> str:
    rails = lab.fabric.rails
    lines = [f"lab {lab.folder.name} is up ({lab.folder})"]
    for host in lab.fabric.hosts:
        on = "  ".join(f"{lab.port(host.name, r)} {host.on_rail(i)}" for i, r in enumerate(rails))
        lines.append(f"  {host.name}: {host.service}  over  {on}")
    first = lab.fabric.hosts[0].name
    lines.append(f"try: linkpass-lab exec {first} -- {'linkpassctl status' if agents else 'ip route'}")
    lines.append(f"     linkpass-lab fault carrier {lab.fabric.hosts[-1].name} {rails[0]}     linkpass-lab repair")
    return "\n".join(lines)


def down(options: argparse.Namespace) -> int:
    """Take labs down: ask the process that holds each, then undo what its ledger still lists."""
    ledgers = [Ledger(folder) for folder in runs()] if options.all else [Ledger.find(options.name)]
    problems = []
    for ledger in ledgers:
        try:
            ledger.take_over()
            ledger.undo()
            print(f"{ledger.folder.name} is down")
        except LedgerError as e:
            problems.append(str(e))
    if problems:
        raise LedgerError("; ".join(problems))
    return 0


def labs(_: argparse.Namespace) -> int:
    """One line for each run folder."""
    for folder in runs():
        ledger = Ledger(folder)
        state = "up" if ledger.alive() else "left behind; `linkpass-lab down` it"
        faults = [m.name for m in ledger.standing("fault")]
        print(f"{folder.name}  {state}{'  faults: ' + '; '.join(faults) if faults else ''}")
    return 0


def run(options: argparse.Namespace) -> int:
    """Play scenarios one after the other."""
    names = scenario.names() if options.scenarios == ["all"] else options.scenarios
    chosen = [scenario.find(name) for name in names]  # all must be readable before the first one starts
    reports = []
    for one in chosen:
        say = (lambda _: None) if options.json else (lambda text: print(f"  {text}", flush=True))
        if not options.json:
            print(f"{one.name}: {one.title}", flush=True)
        report = play(one, say=say, keep=options.keep)
        reports.append(report)
        if not options.json:
            print(table(report), flush=True)
    if options.json:
        print(json.dumps([r.json() for r in reports], indent=2))
    elif len(reports) > 1:
        bad = [r.name for r in reports if not r.ok]
        print(f"{len(reports) - len(bad)} of {len(reports)} hold{'; not: ' + ', '.join(bad) if bad else ''}")
    return 0 if all(r.ok for r in reports) else 1


def table(report: Report) -> str:
    """The verdicts, a line each."""
    width = max(len(what) for what, _ in report.verdicts)
    lines = [f"  {'ok  ' if o.ok else 'FAIL'}  {what:<{width}}  {o.text}" for what, o in report.verdicts]
    return "\n".join([*lines, f"  {'holds' if report.ok else 'DOES NOT HOLD'}, {report.seconds:.1f} s", ""])


def scenarios(_: argparse.Namespace) -> int:
    """Names and titles."""
    names = scenario.names()
    for name in names:
        print(f"{name:<{max(map(len, names))}}  {scenario.find(name).title}")
    return 0


def execute(options: argparse.Namespace) -> int:
    """Run a program on a host, with this terminal; its exit code is ours (128 + N for signal N)."""
    argv = options.argv[1:] if options.argv[:1] == ["--"] else options.argv
    if not argv:
        print("linkpass-lab exec: say what to run: linkpass-lab exec HOST -- CMD", file=sys.stderr)
        return 2
    code = realisations.attach(Ledger.find(options.lab)).interact(options.host, argv)
    return code if code >= 0 else 128 - code


def shell(options: argparse.Namespace) -> int:
    """A shell on a host."""
    lab = realisations.attach(Ledger.find(options.lab))
    code = lab.interact(options.host, [os.environ.get("SHELL", "/bin/bash")])
    return code if code >= 0 else 128 - code


def parse_words(kind: str, words: list[str]) -> Fault:
    """A fault from words: the target's parts in their order, then name=value."""
    verb = VERBS[FaultKind(kind)]
    target = [w for w in words if "=" not in w]
    if len(target) != len(verb.target):
        raise values.FaultError(f"{kind} needs {' and '.join(verb.target)}; got {' '.join(target) or 'nothing'}")
    more: dict[str, Any] = dict(w.split("=", 1) for w in words if "=" in w)
    return values.parse({"kind": kind, **dict(zip(verb.target, target, strict=True)), **more})


def fault(options: argparse.Namespace) -> int:
    """Strike."""
    wanted = parse_words(options.kind, options.words)
    strike(realisations.attach(Ledger.find(options.lab)), wanted)
    print(f"in force: {wanted}")
    return 0


def repair(options: argparse.Namespace) -> int:
    """Take back one fault, or all."""
    lab = realisations.attach(Ledger.find(options.lab))
    todo = [parse_words(options.kind, options.words)] if options.kind else broken(lab.ledger)[::-1]
    for one in todo:
        mend(lab, one)
        print(f"repaired: {one}")
    if not todo:
        print("nothing is broken")
    return 0


def faults(_: argparse.Namespace) -> int:
    """The verbs, with targets, parameters and where they work."""
    for kind, verb in VERBS.items():
        where = ", ".join(name for name, known in realisations.FAULTS.items() if kind in known()) or "no lab here"
        print(f"{kind} {' '.join(p.upper() for p in verb.target)}: {verb.text} [{where}]")
        for name, p in verb.parameters.items():
            print(f"    {name}={p.default}: {p.text}")
    return 0


def simulate(words: list[str]) -> int:
    """The agents' own simulator, as a program: the lab knows nothing of what is inside an agent."""
    return subprocess.run([sys.executable, "-m", "linkpass_agent.simulate", *words], check=False).returncode


def demo(options: argparse.Namespace) -> int:
    """The guided tour."""
    if options.rdma:
        from linkpass_lab.guests.demo import demonstrate as demonstrate_rdma

        return demonstrate_rdma(Path(options.picture), as_json=options.json)
    from linkpass_lab.demo import demonstrate

    return demonstrate(fabrics.load(scenario.find_fabric(options.fabric)), as_json=options.json)
