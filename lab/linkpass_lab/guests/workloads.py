"""The verbs clients, each as a value: what runs at the server, what at the client, how its words are read.

The binaries are the distribution's, unmodified. `size` scales how much a job does; 1 is some 3 to 6 seconds of work
in emulated guests. TCP connections of the clients' own (to exchange queue pair numbers) go over the management
network, so that what is measured is what the verbs do.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from linkpass_lab.guests import results
from linkpass_lab.guests.results import Reader

PERFTEST_PORT = 18515
UCX_PORT = 13337
# UCX over rxe: only these transports; set-up over UD times out with the IPv4 GID, so GID 0, the IPv6 one.
UCX_ENV = {"UCX_TLS": "rc_verbs,ud_verbs,self", "UCX_IB_GID_INDEX": "0"}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a job runs: the two guests, the server's addresses, the RDMA device and GID index, the lab's tools."""

    server: str
    client: str
    server_management: str
    server_rail: str
    device: str
    gid: int
    client_gid: int
    tools: Path
    clients: Path  # where rcflow and ncclflow are
    size: float = 1.0
    wrap: tuple[str, ...] = ()  # a command that runs each process with verbs, such as `linkpass run --`
    log: Path | None = None  # where rcflow and ncclflow, as clients, note each completion

    def times(self, count: int) -> str:
        return str(max(1, int(count * self.size)))


Argv = Callable[[Place], list[str]]


@dataclass(frozen=True, slots=True)
class Workload:
    """One client. `listens`: the server's TCP port, 0 when it listens by rdma_cm, None when there is no server."""

    name: str
    text: str
    server: Argv | None
    client: Argv
    listens: int | None
    read: Reader
    env: Callable[[Place], Mapping[str, str]] = field(default=lambda _: {})
    packages: tuple[str, ...] = ()
    own: bool = False  # built from the project's own source


def _perftest(name: str, tool: str, text: str, size: int, count: int, *options: str) -> Workload:
    def argv(place: Place, gid: int) -> list[str]:
        base = [*place.wrap, tool, "-d", place.device, "-x", str(gid), "-F", "-n", place.times(count), *options]
        return base if tool == "ib_atomic_bw" else [*base, "-s", str(size)]

    return Workload(
        name,
        text,
        lambda p: argv(p, p.gid),
        lambda p: [*argv(p, p.client_gid), p.server_management],
        PERFTEST_PORT,
        results.perftest,
        packages=("perftest",),
    )


def _pingpong(name: str, text: str, *options: str) -> Workload:
    def argv(place: Place, gid: int) -> list[str]:
        # Both ends must be given the same count, and -e: polling ones keep an emulated CPU from the network's work.
        base = [*place.wrap, "ibv_rc_pingpong", "-d", place.device, "-g", str(gid)]
        return [*base, "-n", place.times(1200), "-e", *options]

    return Workload(
        name,
        text,
        lambda p: argv(p, p.gid),
        lambda p: [*argv(p, p.client_gid), p.server_management],
        PERFTEST_PORT,
        results.pingpong,
        packages=("ibverbs-utils",),
    )


def _ucx(name: str, test: str, text: str) -> Workload:
    def argv(place: Place) -> list[str]:
        return [*place.wrap, "ucx_perftest", "-t", test, "-s", "65536", "-n", place.times(400), "-w", "10"]

    return Workload(
        name,
        text,
        argv,
        lambda p: [*argv(p), p.server_management],
        UCX_PORT,
        results.ucx,
        lambda p: {**UCX_ENV, "UCX_NET_DEVICES": f"{p.device}:1"},
        ("ucx-utils", "libucx0"),
    )


def _rping() -> Workload:
    def argv(place: Place) -> list[str]:
        return [*place.wrap, "rping", "-a", place.server_rail, "-C", place.times(800), "-V"]

    return Workload(
        "rping",
        "rdma_cm connection, then WRITE and READ in turn, contents checked",
        lambda p: [*argv(p), "-s"],
        lambda p: [*argv(p), "-c"],
        0,
        results.nothing,
        packages=("rdmacm-utils",),
    )


def _mpi(name: str, text: str, script: str, argv: Argv) -> Workload:
    """OpenMPI over UCX, one rank on each guest; `argv` are the script's arguments."""

    def client(place: Place) -> list[str]:
        settings = {**UCX_ENV, "UCX_NET_DEVICES": f"{place.device}:1"}
        command = ["mpirun", "--allow-run-as-root", "-np", "2", "--host", f"{place.client},{place.server}"]
        command += ["--mca", "plm_rsh_agent", str(place.tools / "gx"), "--mca", "oob_tcp_if_include", "10.99.0.0/16"]
        command += ["--mca", "pml", "ucx", "--mca", "btl", "^openib"]
        for variable, value in settings.items():
            command += ["-x", f"{variable}={value}"]
        return [*command, *place.wrap, "/usr/bin/python3", str(Path(__file__).with_name(script)), *argv(place)]

    return Workload(
        name, text, None, client, None, results.mpi, packages=("openmpi-bin", "python3-mpi4py", "libucx0")
    )


def training(steps: int, seed: int) -> Workload:
    """A training run of so many steps, whose final weights depend on nothing but these two."""
    return _mpi(
        "training",
        "a perceptron trained by both guests, gradients summed by MPI's allreduce",
        "training_job.py",
        lambda _: [str(steps), str(seed)],
    )


def own(name: str, text: str, *options: str, port: int = PERFTEST_PORT) -> Workload:
    """rcflow or ncclflow with other options of the client's, or on another TCP port."""

    def argv(place: Place, gid: int) -> list[str]:
        return [*place.wrap, str(place.clients / name), "-d", place.device, "-x", str(gid), "-p", str(port)]

    def log(place: Place) -> list[str]:
        return ["--log", str(place.log)] if place.log else []

    return Workload(
        name,
        text,
        lambda p: argv(p, p.gid),
        lambda p: [*argv(p, p.client_gid), *options, *log(p), "-D", str(6 * p.size), p.server_management],
        port,
        results.flow,
        own=True,
    )


def every() -> dict[str, Workload]:
    """All workloads by name, in the order in which tables show them."""
    bulk = 65_536
    listed = [
        _perftest("ib_write_bw", "ib_write_bw", "RDMA WRITE, 64 KiB, 128 under way", bulk, 1000),
        _perftest("ib_send_bw", "ib_send_bw", "SEND, 64 KiB, polling", bulk, 800),
        _perftest("ib_send_bw -e", "ib_send_bw", "SEND, 64 KiB, completion events", bulk, 1000, "-e"),
        _perftest("ib_read_bw", "ib_read_bw", "RDMA READ, 64 KiB", bulk, 1000),
        _perftest("ib_atomic_bw", "ib_atomic_bw", "FETCH_AND_ADD", 8, 15_000),
        _perftest("ib_write_lat", "ib_write_lat", "RDMA WRITE, 8 bytes, ping-pong by polling memory", 8, 1500),
        _pingpong("rc_pingpong", "SEND, 4 KiB, in turn"),
        _pingpong("rc_pingpong -N", "the same by ibv_wr_* calls", "-N"),
        _rping(),
        _ucx("ucx tag", "tag_bw", "UCX tag matching, 64 KiB"),
        _ucx("ucx stream", "stream_bw", "UCX stream, 64 KiB"),
        _mpi(
            "mpi4py",
            "OpenMPI over UCX: allreduce of a number and of 64 KiB, sums checked",
            "mpi_job.py",
            lambda p: [p.times(60)],
        ),
        own("rcflow", "all RC operations mixed, every byte and completion checked"),
        own("ncclflow", "NCCL's pattern: clear-to-send, WRITE_WITH_IMM, flush; checksummed"),
    ]
    return {w.name: w for w in listed}
