"""linkpassctl manifest and check, against an agent without a host."""

import json
from pathlib import Path

from tests.fakes.ctl import Ctl
from tests.fakes.facade import FakeFacade, present


async def test_manifest_captured_to_a_file_then_checked_is_the_same(
    facade: FakeFacade, ctl: Ctl, tmp_path: Path
) -> None:
    path = tmp_path / "m.toml"
    code, out, _ = await ctl("manifest", "capture", "-o", str(path))
    assert code == 0 and out.startswith(f"{path}: 1 ports")
    assert await ctl("check", "--manifest", str(path)) == (0, f"as in {path}\n", "")
    facade.manifest_path = str(path)
    assert (await ctl("check"))[0] == 0
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


async def test_manifest_of_an_unhealthy_host_is_refused_and_says_why(facade: FakeFacade, ctl: Ctl) -> None:
    facade.present_ports = [present(state="down", cause="carrier lost")]
    code, out, err = await ctl("manifest", "capture")
    assert (code, out) == (1, "") and "a-rail0 is down: carrier lost" in err and "--anyway" in err
    code, out, _ = await ctl("manifest", "capture", "--anyway")
    assert code == 0 and 'pci = "0000:17:00.0"' in out


async def test_check_shows_differences_and_gives_exit_code_1(facade: FakeFacade, ctl: Ctl, tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    await ctl("manifest", "capture", "-o", str(path))
    facade.present_ports = [present(mtu=1500), present("eth9", "rail9", pci=None)]
    code, out, _ = await ctl("check", "--manifest", str(path))
    assert code == 1 and "mtu is 1500 bytes, expected 4200 bytes" in out and "never called a fault" in out
    code, out, _ = await ctl("check", "--manifest", str(path), "--json")
    told = json.loads(out)
    assert (code, told["same"]) == (1, False)
    assert [(d["port"], d["kind"]) for d in told["differences"]] == [("a-rail0", "differs"), ("eth9", "unexpected")]


async def test_check_without_a_manifest_or_with_a_bad_one_is_wrong_usage(
    facade: FakeFacade, ctl: Ctl, tmp_path: Path
) -> None:
    assert (await ctl("check"))[0] == 2
    bad = tmp_path / "m.toml"
    bad.write_text('[[port]]\nname = "x"\nrail = "r"\nrat = 1\n')
    code, _, err = await ctl("check", "--manifest", str(bad))
    assert code == 2 and f"{bad}:4: port[0].rat: unknown key" in err
    code, _, err = await ctl("check", "--manifest", str(tmp_path / "none.toml"))
    assert code == 2 and "can't be read" in err


async def test_manifest_that_cant_be_written_is_told(facade: FakeFacade, ctl: Ctl) -> None:
    code, _, err = await ctl("manifest", "capture", "-o", "/proc/nowhere/m.toml")
    assert code == 1 and "can't be written" in err
