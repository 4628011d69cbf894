#!/usr/bin/env python3
"""Seeded runs of the project's verbs clients over the fake verbs library, the shim between, links failing at random.

    soak.py BUILD [--first SEED] [--runs N] [--seconds S] [--jobs J] [--only SUBSTRING] [--preload LIBRARY]

A seed decides the client, its options, the faults and the agent's manners; the same seed gives the same plan (not the
same interleaving: threads and clocks are real). A run is right when both ends exit with 0: the clients check every
byte and every completion. Those that aren't are printed with the command that repeats them.
"""

import argparse
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

PATIENCE = ("--retry", "3", "-u", "13", "--deadline", "60", "--wait", "20")


@dataclass(frozen=True, slots=True)
class Plan:
    seed: int
    client: str
    faults: int
    kinds: str
    manners: tuple[str, ...]
    options: tuple[str, ...]
    psn: str  # LINKPASS_PSN


def plan_of(seed: int, seconds: float) -> Plan:
    r = random.Random(seed)
    # A driver whose packet numbers aren't trusted can't settle plain WRITEs: only receives tell (see watermark.h).
    doubt = r.random() < 0.15
    kinds = r.choice(("p", "s", "a", "g", "o", "psago", "psagok", "k", "pk", "sk"))
    manners: list[str] = ["attempt=" + str(r.choice((50, 200, 1000)))]
    for name in ("drop", "repeat", "shuffle", "lie"):
        if r.random() < 0.25:
            manners.append(f"{name}={r.choice((5, 20, 40))}")
    if r.random() < 0.3 and not doubt:
        # Its flush is a READ over a queue pair connected to itself, which has no other path. It signals one request
        # in 64, so that lost acknowledgements fill its send queue, whoever carries them.
        kinds = kinds.replace("a", "") or "p"
        options = [f"-D{seconds}", "-q", str(r.choice((1, 2, 4))), "-g", str(r.choice((1, 4))), "--no-flush"]
        options += ["-b"] if r.random() < 0.5 else []
        options += [*PATIENCE, "-m", str(r.choice((256, 1024, 4096)))]
        return Plan(seed, "ncclflow", r.randint(1, 12), kinds, tuple(manners), tuple(options), "trust")
    options = [f"-D{seconds}", "-q", str(r.choice((1, 2, 4, 8))), "-t", str(r.choice((1, 4, 32)))]
    options += [*PATIENCE, "-m", str(r.choice((256, 1024, 4096)))]
    options += ["-s", r.choice(("0-200", "0-4097", "1-20000", "4096", "0,1,4095,65536"))]
    options += ["--seed", str(seed)]
    if doubt:
        options += ["--ops", r.choice(("send,send_imm", "send,send_imm,read", "write_imm,send"))]
    else:
        mixes = ("write,write_imm,send,send_imm,read", "write", "write:4,read", "send,read")
        options += ["--ops", r.choice(mixes)]
    if r.random() < 0.7:
        options.append("-b")
    for flag, probability in (
        ("--new-api", 0.25), ("--split-cq", 0.25), ("--threads", 0.2), ("--fence", 0 if doubt else 0.2),
        ("--sq-sig-all", 0.1), ("--srq", 0.3),
    ):  # fmt: skip
        if r.random() < probability:
            options.append(flag)
    if "--split-cq" in options and r.random() < 0.3:
        options += ["-e", "--solicited"]
    elif r.random() < 0.35:
        options.append("-e")
    elif r.random() < 0.3:
        options.append(r.choice(("--cq-ex", "--cq-ex-batch")))
    if r.random() < 0.3 and "--sq-sig-all" not in options and "-t1" not in options and options[4] != "1":
        options += ["-Q", "3"]
    if r.random() < 0.3:
        options += ["-I", "64"]
    if r.random() < 0.3:
        options += ["--sges", "3"]
    if r.random() < 0.3:
        options += ["--mrs", "4"]
    return Plan(
        seed, "rcflow", r.randint(1, 12), kinds, tuple(manners), tuple(options), "doubt" if doubt else "trust"
    )


def run(build: Path, plan: Plan, preload: str, log: Path) -> tuple[bool, str]:
    """Whether it was right, and the last line of what it said."""
    socket = log.with_suffix(".sock")
    environment = {
        **os.environ,
        "LINKPASS_SOCKET": str(socket),
        "LINKPASS_REAL_IBVERBS": str(build / "fakeverbs/lib/libfakeverbs.so.1"),
        "LINKPASS_PSN": plan.psn,
        "LD_PRELOAD": f"{preload}:{build}/liblinkpass_shim.so",
    }
    command = [
        str(build / "engine/engine_twoends"), str(build / f"engine/libengine_{plan.client}.so"),
        str(plan.seed), str(plan.faults), plan.kinds, *plan.manners, "--", *plan.options,
    ]  # fmt: skip
    with log.open("w") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        try:
            code = process.wait(timeout=90)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            code = -1
    socket.unlink(missing_ok=True)
    lines = log.read_text(errors="replace").splitlines() or [""]
    return code == 0, f"exit {code}: {shlex.join(command)} LINKPASS_PSN={plan.psn}\n    {lines[-1]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="")
    parser.add_argument("--preload", default="")
    wish = parser.parse_args()
    seeds = range(wish.first, wish.first + wish.runs)
    plans = [p for p in (plan_of(s, wish.seconds) for s in seeds) if wish.only in repr(p)]
    failed = migrations = 0
    with tempfile.TemporaryDirectory(prefix="engine-soak-") as folder, ThreadPoolExecutor(wish.jobs) as pool:
        jobs = [
            (p, pool.submit(run, wish.build.resolve(), p, wish.preload, Path(folder, f"{p.seed}.log"))) for p in plans
        ]
        for plan, job in jobs:
            right, words = job.result()
            text = Path(folder, f"{plan.seed}.log").read_text(errors="replace")
            migrations += sum(int(number) for number in re.findall(r"migrations (\d+),", text))
            if not right:
                failed += 1
                print(f"seed {plan.seed}: {words}")
                for line in text.splitlines()[:40]:
                    print("    " + line[:300])
    print(f"{migrations} migrations, counted at both ends")
    print(f"{len(plans) - failed} passed, {failed} failed")
    return 1 if failed or not plans else 0


if __name__ == "__main__":
    sys.exit(main())
