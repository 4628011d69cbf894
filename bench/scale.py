"""How news spreads in large fleets: runs the simulator's measurement and draws it: `python bench/scale.py`.

    python bench/scale.py [--hosts 64 512 2048] [--loss 0 0.01 0.05 0.2] [--from FILE ...] [--out docs/scale]

Writes OUT/scale.jsonl, OUT/*.png and the table in OUT.md. `--from` draws runs that were measured before. With 2,048
hosts one run takes minutes of CPU; 8,192 have not been run to the end (7 GB and 6 minutes of CPU were not enough).
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

Run = dict[str, Any]


def measure(hosts: list[int], losses: list[float]) -> list[Run]:
    """All runs, one after the other."""
    words = ["--hosts", *map(str, hosts), "--loss", *map(str, losses)]
    done = subprocess.run(
        [sys.executable, "-m", "linkpass_agent.simulate.scale", *words], check=True, stdout=subprocess.PIPE, text=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def ms(seconds: float | None) -> str:
    """Milliseconds, for the table."""
    return "not in 10 s" if seconds is None or seconds == float("inf") else f"{seconds * 1000:,.1f}"


def table(runs: Iterable[Run]) -> str:
    """Markdown; times in ms, bytes per host and second."""
    rows = [
        "| hosts | loss | peers know: p50 | p99 | max | all know: p50 | p99 | max "
        "| idle B/s | 2 s after: B/s | busiest | deaths |",
        "| --- " * 12 + "|",
    ]
    for r in runs:
        times = " | ".join(map(ms, (*r["peers"], *r["all"])))
        traffic = " | ".join(f"{r[k]:,.0f}" for k in ("idle_bytes", "busy_bytes", "busiest_bytes"))
        rows.append(f"| {r['hosts']:,} | {r['loss']:.0%} | {times} | {traffic} | {r['deaths']} |")
    return "\n".join(rows)


def put(text: str, doc: Path) -> None:
    """Put the table in place of the one that the page has."""
    lines = doc.read_text().split("\n")
    first = next(i for i, line in enumerate(lines) if line.startswith("| hosts | loss |"))
    end = next(i for i in range(first, len(lines)) if not lines[i].startswith("|"))
    doc.write_text("\n".join([*lines[:first], text, *lines[end:]]))


def draw(runs: list[Run], out: Path) -> None:
    """Two figures: times until peers and until all know; bytes."""
    losses = sorted({r["loss"] for r in runs})
    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4), sharey=True)
    for axis, what, title in zip(axes, ("peers", "all"), ("peers of the failed port", "all hosts"), strict=True):
        for loss in losses:
            row = sorted((r for r in runs if r["loss"] == loss), key=lambda r: r["hosts"])
            hosts = [r["hosts"] for r in row]
            line = axis.plot(hosts, [1000 * r[what][1] for r in row], "o-", label=f"p99, {loss:.0%} lost")[0]
            axis.plot(hosts, [1000 * r[what][2] for r in row], ":", color=line.get_color())
        axis.set(xscale="log", yscale="log", title=f"until {title} know", xlabel="hosts")
        axis.grid(visible=True, which="both", alpha=0.3)
    axes[0].set_ylabel("ms after the failure (dotted: the last one)")
    axes[1].legend()
    figure.tight_layout()
    figure.savefig(out / "times.png", dpi=110)
    figure, axis = pyplot.subplots(figsize=(6, 4))
    for what, title in (("idle_bytes", "idle"), ("busy_bytes", "2 s after a leaf failed")):
        for loss in losses:
            row = sorted((r for r in runs if r["loss"] == loss), key=lambda r: r["hosts"])
            style = "o-" if what == "idle_bytes" else "s--"
            axis.plot([r["hosts"] for r in row], [r[what] for r in row], style, label=f"{title}, {loss:.0%} lost")
    axis.axhline(2048, color="black", linewidth=0.8)
    axis.set(xscale="log", yscale="log", xlabel="hosts", ylabel="bytes sent per host and second")
    axis.grid(visible=True, which="both", alpha=0.3)
    axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(out / "bytes.png", dpi=110)


def main() -> int:
    """Measure, or read, and draw."""
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--hosts", type=int, nargs="+", default=[64, 512, 2048])
    top.add_argument("--loss", type=float, nargs="+", default=[0.0, 0.01, 0.05, 0.2])
    top.add_argument("--from", dest="files", type=Path, nargs="+", metavar="FILE")
    top.add_argument("--out", type=Path, default=Path("docs/scale"))
    options = top.parse_args()
    if options.files:
        runs = [json.loads(line) for file in options.files for line in file.read_text().splitlines()]
    else:
        runs = measure(options.hosts, options.loss)
    runs.sort(key=lambda r: (r["hosts"], r["loss"]))
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "scale.jsonl").write_text("".join(json.dumps(r) + "\n" for r in runs))
    draw(runs, options.out)
    put(table(runs), options.out.with_suffix(".md"))
    print(table(runs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
