"""The shim attaches to programs in every way that they reach libibverbs, and hides nothing of the real library."""

import json
import re
from pathlib import Path

import pytest

from tests.native.building import BUILD_SECONDS, KINDS, built, need_tool, run, run_checks

pytestmark = pytest.mark.timeout(BUILD_SECONDS)

TARGETS = (
    "linkpass_shim",
    "linkpass_verbs_name",
    "fakeverbs",
    "fakeverbs_threads",
    "attach_seam",
    "attach_pieces",
    "attach_threads",
    "attach_opener",
    "attach_bench",
    "nullverbs",
)
COUNTS = re.compile(r"linkpass: pid=\d+ attached=yes real=(\S+) send=(\d+) recv=(\d+) complete=(\d+) refused=(\d+)")


@pytest.fixture(scope="module")
def build() -> Path:
    return built("plain", TARGETS)


def fake(build: Path) -> str:
    return str(build / "fakeverbs" / "lib" / "libfakeverbs.so.1")


def shim(build: Path) -> str:
    return str(build / "liblinkpass_shim.so")


def ways(build: Path) -> dict[str, dict[str, str]]:
    """How the shim gets into a process: as `linkpass run` does it, and each half of that alone."""
    folder = {"LD_LIBRARY_PATH": str(build / "verbs")}
    preload = {"LD_PRELOAD": shim(build)}
    return {"both": folder | preload, "folder": folder, "preload": preload}


def system_library() -> Path:
    """The real libibverbs of this machine."""
    listed = run([need_tool("ldconfig"), "-p"]).stdout
    found = re.search(r"libibverbs\.so\.1 .*=> (\S+)", listed)
    if found is None:
        pytest.fail("libibverbs isn't installed: apt-get install libibverbs1 ibverbs-providers")
    return Path(found.group(1))


def exported(library: Path | str) -> set[str]:
    """name@version of all that a library defines."""
    lines = run([need_tool("readelf"), "--dyn-syms", "-W", library]).stdout.splitlines()
    fields = [line.split() for line in lines]
    return {f[7].replace("@@", "@") for f in fields if len(f) > 7 and f[6] != "UND" and "@" in f[7]}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("program", ["attach_pieces", "attach_seam", "attach_threads"])
def test_attach_program_passes(kind: str, program: str) -> None:
    folder = built(kind, TARGETS)
    run_checks(folder / "attach" / program, {"LINKPASS_REAL_IBVERBS": fake(folder)})


def test_exports_cover_the_real_library(build: Path) -> None:
    real = exported(system_library())
    assert len(real) > 150
    assert real - exported(shim(build)) == set()
    assert real - exported(build / "verbs" / "libibverbs.so.1") == set()


@pytest.mark.parametrize("way", ["both", "folder", "preload"])
def test_linked_program_has_every_post_counted(build: Path, way: str) -> None:
    """4,000 messages each way, three times; the third time two more threads post receives that are flushed."""
    program = build / "fakeverbs" / "fakeverbs_threads"
    # This program names the fake library, so the shim must come by preload; the folder is along for the ride.
    env = ways(build)["preload"] | ways(build)[way] | {"LINKPASS_REAL_IBVERBS": fake(build), "LINKPASS_DEBUG": "1"}
    done = run([program, "threads_exchange"], env)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = COUNTS.search(done.stderr)
    assert counts is not None, done.stderr
    assert counts.group(1) == fake(build)
    messages = 2 * 2 * 4000
    receives = messages + 2 * 2 * 8  # those posted before the first message
    assert [int(counts.group(i)) for i in (2, 3, 4, 5)] == [messages, receives, 2 * messages, 0]


@pytest.mark.parametrize("way", ["both", "folder"])
@pytest.mark.parametrize("name", ["libibverbs.so", "libibverbs.so.1"])
def test_opened_library_is_the_shim_and_lacks_what_the_real_one_lacks(build: Path, way: str, name: str) -> None:
    env = ways(build)[way] | {
        "LINKPASS_REAL_IBVERBS": fake(build),
        "FAKEVERBS_AUTO": "1",
        "LINKPASS_DEBUG": "1",
    }
    done = run([build / "attach" / "attach_opener", name], env)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert "ibv_open_device@IBVERBS_1.1 found" in lines
    assert "ibv_query_ece@IBVERBS_1.10 found" in lines
    assert "ibv_reg_dmabuf_mr@IBVERBS_1.12 missing" in lines  # the fake library has none
    assert "ibv_open_device@IBVERBS_9.9 missing" in lines
    assert lines[-2:] == ["devices 4", "flushed 1"]
    counts = COUNTS.search(done.stderr)
    assert counts is not None and counts.group(3) == "1" and counts.group(4) == "1", done.stderr


def test_library_given_by_path_is_the_shim(build: Path) -> None:
    """What NCCL_IBVERBS_LIB does."""
    env = {"LINKPASS_REAL_IBVERBS": fake(build), "FAKEVERBS_AUTO": "1", "LINKPASS_DEBUG": "1"}
    done = run([build / "attach" / "attach_opener", shim(build)], env)
    assert done.stdout.splitlines()[-1] == "flushed 1"
    assert COUNTS.search(done.stderr) is not None, done.stderr


def test_told_off_it_passes_through_and_sees_nothing(build: Path) -> None:
    env = ways(build)["both"] | {
        "LINKPASS_REAL_IBVERBS": fake(build),
        "FAKEVERBS_AUTO": "1",
        "LINKPASS_DEBUG": "1",
        "LINKPASS": "off",
    }
    done = run([build / "attach" / "attach_opener", "libibverbs.so"], env)
    assert done.stdout.splitlines()[-1] == "flushed 1"
    assert done.stderr == ""


OPEN_AND_LIST = """
import ctypes, sys
for name in sys.argv[1:]:
    ctypes.CDLL(name)
files = {line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}
print("\\n".join(sorted(files)))
"""


def test_process_has_one_shim_and_one_real_library(build: Path) -> None:
    names = ["libibverbs.so", "libibverbs.so.1", "librdmacm.so.1", shim(build)]
    done = run(["/usr/bin/python3", "-c", OPEN_AND_LIST, *names], ways(build)["both"])
    assert done.returncode == 0, done.stderr
    mapped = done.stdout.splitlines()
    real = system_library().resolve()
    assert str(real) in mapped
    assert shim(build) in mapped
    assert str(build / "verbs" / "libibverbs.so.1") not in mapped


@pytest.mark.parametrize("way", ["both", "folder", "preload"])
def test_every_provider_loads_behind_the_shim(build: Path, way: str) -> None:
    """Providers need libibverbs.so.1 with IBVERBS_PRIVATE_*, and are bound while they are loaded."""
    providers = sorted((system_library().parent / "libibverbs").glob("*.so"))
    if not providers:
        pytest.fail("no verbs provider is installed: apt-get install ibverbs-providers")
    env = ways(build)[way] | {"LD_BIND_NOW": "1"}
    done = run(["/usr/bin/python3", "-c", OPEN_AND_LIST, "libibverbs.so.1", *providers], env)
    assert done.returncode == 0, done.stderr
    assert {str(path.resolve()) for path in providers} <= set(done.stdout.splitlines())


@pytest.mark.parametrize("wish", ["relative.so", "/nonexistent/libibverbs.so.1", "/etc/hostname", "SHIM", "COPY"])
def test_bad_wish_for_the_real_library_is_ignored(build: Path, wish: str) -> None:
    path = {"SHIM": shim(build), "COPY": str(build / "verbs" / "libibverbs.so.1")}.get(wish, wish)
    env = ways(build)["both"] | {"LINKPASS_REAL_IBVERBS": path}
    done = run(["/usr/bin/python3", "-c", OPEN_AND_LIST, "libibverbs.so.1"], env)
    assert done.returncode == 0, done.stderr
    assert f"LINKPASS_REAL_IBVERBS={path}" in done.stderr
    assert str(system_library().resolve()) in done.stdout.splitlines()


def test_bench_measures_bare_passing_and_protected(build: Path, tmp_path: Path) -> None:
    bench = build / "attach" / "attach_bench"
    shimmed = ways(build)["preload"] | {
        "LINKPASS_REAL_IBVERBS": str(build / "attach" / "libnullverbs.so.1"),
        "LINKPASS_DEBUG": "1",
    }
    protected = run([bench, "20"], shimmed | {"LINKPASS_SOCKET": str(tmp_path / "jobs.sock")})
    passing = run([bench, "20"], shimmed)
    bare = run([bench, "20"])
    sizes = [json.loads(done.stdout)["allocated_per_qp"] for done in (bare, passing, protected)]
    assert sizes == sorted(set(sizes))  # each remembers more than the one before
    assert "queue pairs recorded: 1095\n" in protected.stderr and "unprotected" not in protected.stderr
    assert "queue pairs recorded" not in passing.stderr
    counts = COUNTS.search(passing.stderr)
    assert counts is not None and int(counts.group(2)) == int(counts.group(4)) > 0
    assert bare.stderr == ""
