"""The config file: what is taken, what is refused, and that each refusal names file, line and key."""

import socket
import tomllib
from pathlib import Path

import pytest

from linkpass.errors import ConfigError
from linkpass.settings import Endpoint, RuleSettings, Settings, load, parse

SHIPPED = Path(__file__).parents[2] / "agent" / "linkpass.toml"
FILE = Path("/etc/x.toml")
SMALLEST = """\
[[port]]
name = "a-rail0"
rail = "rail0"
[share]
listen = "10.99.0.1:7471"
keyring = "/etc/linkpass/fleet.keys"
"""  # 6 lines


def refused(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as e:
        parse(text, FILE)
    return e.value


def test_shipped_file_loads_in_shadow_mode_and_holds_the_defaults() -> None:
    shipped = load(SHIPPED)
    defaults = parse(SMALLEST, FILE)
    assert shipped.mode == "shadow"
    for table in ("paths", "control", "probe", "hold_down", "see", "routes", "log"):
        assert getattr(shipped, table) == getattr(defaults, table), table
    assert shipped.share.anti_entropy == defaults.share.anti_entropy


def test_shipped_file_shows_every_key() -> None:
    text = SHIPPED.read_text()
    for prefix in ("# host", "# fabric", "# manifest", "# socket", "# jobs_socket", "# group", "# rdma", "# pci"):
        text = text.replace(f"{prefix} =", f"{prefix[2:]} =")
    text = text.replace("# [[rule]]", "[[rule]]")
    for key in ("name", "drivers", "limit", "window", "clear", "act", "enabled"):
        text = text.replace(f"\n# {key} =", f"\n{key} =")
    data = tomllib.loads(text)
    assert set(data["rule"][0]) == set(RuleSettings.model_fields)
    assert set(data) == {f.alias or n for n, f in Settings.model_fields.items()}
    whole = parse(text, SHIPPED).model_dump(by_alias=True, mode="json")
    for table, value in data.items():
        if isinstance(value, dict):
            assert set(value) == set(whole[table]), table


def test_smallest_file_gets_the_documented_defaults() -> None:
    s = parse(SMALLEST, FILE)
    assert (s.host, s.mode) == (socket.gethostname(), "shadow")
    assert (s.paths.run, s.paths.state) == (Path("/run/linkpass"), Path("/var/lib/linkpass"))
    assert s.paths.socket == Path("/run/linkpass/agent.sock")
    assert s.control.group is None
    assert [(p.name, p.rail) for p in s.ports] == [("a-rail0", "rail0")]
    assert (s.share.listen, s.share.seeds, s.share.anti_entropy) == (("10.99.0.1", 7471), (), 5.0)
    p = s.probe
    assert (p.port, p.period, p.idle_period, p.timeout, p.lost, p.max_rate) == (7472, 0.05, 1.0, 0.015, 3, 2000)
    assert p.peers_in_use == ()
    assert (s.hold_down.first, s.hold_down.max, s.hold_down.decay) == (1.0, 300.0, 10.0)
    assert (s.see.carrier_poll, s.see.carrier_idle, s.see.sweep, s.see.absent_sweeps) == (0.01, 0.05, 1.0, 3)
    r = s.routes
    assert (r.addresses, r.metric, r.protocol, r.table, r.nexthop_base) == ((), 50, 76, 254, 0x4C500000)
    assert r.on_stop == "undo"
    assert (s.log.level, s.log.format) == ("info", "auto")


def test_socket_follows_run_unless_it_is_given() -> None:
    assert parse(SMALLEST + '[paths]\nrun = "/run/x"\n', FILE).paths.socket == Path("/run/x/agent.sock")
    both = parse(SMALLEST + '[paths]\nrun = "/run/x"\nsocket = "/tmp/s"\n', FILE)
    assert both.paths.socket == Path("/tmp/s")


def test_endpoints_take_both_families_and_whole_numbers_of_seconds_are_fine() -> None:
    s = parse(SMALLEST + 'seeds = ["10.99.0.2:1", "[fd00::2]:65535"]\n[probe]\nidle_period = 2\n', FILE)
    assert s.share.seeds == (Endpoint("10.99.0.2", 1), Endpoint("fd00::2", 65535))
    assert [str(e) for e in s.share.seeds] == ["10.99.0.2:1", "[fd00::2]:65535"]
    assert s.probe.idle_period == 2.0


def test_settings_cannot_be_changed() -> None:
    s = parse(SMALLEST, FILE)
    with pytest.raises(ValueError, match="frozen"):
        setattr(s, "mode", "act")  # noqa: B010


@pytest.mark.parametrize(
    ("lines", "line", "key", "says"),
    [  # `lines` follow the smallest file, so the first of them is line 7
        (["[probe]", "period = 0"], 8, "probe.period", "greater than 0, got 0"),
        (["[probe]", "", "period = -1.5"], 9, "probe.period", "greater than 0"),
        (["[probe]", "period = inf"], 8, "probe.period", "finite"),
        (["[probe]", "period = nan"], 8, "probe.period", "finite"),
        (["[probe]", 'period = "0.05"'], 8, "probe.period", "valid number, got '0.05'"),
        (["[probe]", "lost = true"], 8, "probe.lost", "valid integer"),
        (["[probe]", "lost = 1", "timeout = 0.05"], 9, "probe.timeout", "period x lost (0.05 s x 1 = 0.05 s)"),
        (["[probe]", "lost = 1", "period = 0.01"], 7, "probe.timeout", "period x lost"),
        (["[probe]", "idle_period = 0.01"], 8, "probe.idle_period", "not be less than period (0.05 s)"),
        (["[probe]", "port = 65536"], 8, "probe.port", "65535"),
        (["[probe]", 'peers_in_use = ["a", "-"]'], 8, "probe.peers_in_use[1]", "'-'"),
        (["[probe]", "peers_in_use = [", '"a",', '"a"]'], 10, "probe.peers_in_use[1]", "'a' is in the list twice"),
        (["[hold_down]", "max = 0.5"], 8, "hold_down.max", "not be less than first (1 s), got 0.5 s"),
        (["[hold_down]", "decay = 0"], 8, "hold_down.decay", "greater than 0"),
        (["[see]", "absent_sweeps = 0"], 8, "see.absent_sweeps", "greater than or equal to 1"),
        (["[see]", "carrier_pol = 1"], 8, "see.carrier_pol", "unknown key; did you mean 'carrier_poll'?"),
        (["[see]", "anti_entropy = 1"], 8, "see.anti_entropy", "unknown key; it belongs into [share]"),
        (["[see]", "zzz = 1"], 8, "see.zzz", "known here: carrier_poll, carrier_idle, sweep, absent_sweeps"),
        (["[sea]", "sweep = 1"], 7, "sea", "did you mean 'see'?"),
        (["[routes]", 'addresses = ["10.255.0.1/32"]'], 8, "routes.addresses[0]", "not an IP address"),
        (["[routes]", 'addresses = ["127.0.0.1"]'], 8, "routes.addresses[0]", "can't be reached by peers"),
        (["[routes]", 'addresses = ["::1"]'], 8, "routes.addresses[0]", "can't be reached by peers"),
        (["[routes]", 'addresses = "10.255.0.1"'], 8, "routes.addresses", "should be a list"),
        (["[routes]", "protocol = 4"], 8, "routes.protocol", "greater than or equal to 5"),
        (["[routes]", "protocol = 256"], 8, "routes.protocol", "less than or equal to 255"),
        (["[routes]", 'on_stop = "undone"'], 8, "routes.on_stop", "'undo' or 'keep', got 'undone'"),
        (["[paths]", 'run = "run"'], 8, "paths.run", "absolute path"),
        (["[paths]", f'socket = "/{"x" * 107}"'], 8, "paths.socket", "at most 107 bytes"),
        (["[paths]", f'run = "/{"x" * 97}"'], 7, "paths.socket", "at most 107 bytes"),
        (["[log]", 'level = "INFO"'], 8, "log.level", "got 'INFO'"),
        (["[control]", 'group = ""'], 8, "control.group", "at least 1 character"),
        (["[[port]]", 'name = "a-rail0"', 'rail = "rail1"'], 8, "port[1].name", "'a-rail0' is there twice"),
        (["[[port]]", 'name = "b"', 'rail = "rail0"'], 9, "port[1].rail", "already has port 'a-rail0'"),
        (["[[port]]", 'name = "sixteen-letters-"', 'rail = "r"'], 8, "port[1].name", "15 characters"),
        (["[[port]]", 'name = "a/b"', 'rail = "r"'], 8, "port[1].name", "no network device's name"),
        (["[[port]]", 'name = "b"', 'rail = "ra il"'], 9, "port[1].rail", "'ra il'"),
        (["[[port]]", 'name = "b"'], 7, "port[1].rail", "missing"),
        (['seeds = ["10.99.0.2"]'], 7, "share.seeds[0]", "ADDRESS:PORT"),
        (['seeds = ["10.99.0.2:0"]'], 7, "share.seeds[0]", "1 to 65535"),
        (['seeds = ["b:7471"]'], 7, "share.seeds[0]", "not an IP address"),
        (['seeds = ["fd00::2:7471"]'], 7, "share.seeds[0]", "brackets before the port"),
        (['seeds = ["[10.0.0.1]:7471"]'], 7, "share.seeds[0]", "no brackets"),
        (["seeds = [7471]"], 7, "share.seeds[0]", "text in quotes"),
        (["anti_entropy = 0"], 7, "share.anti_entropy", "greater than 0"),
    ],
)
def test_bad_value_is_refused_by_line_and_key(lines: list[str], line: int, key: str, says: str) -> None:
    e = refused(SMALLEST + "\n".join(lines) + "\n")
    assert (e.path, e.line, e.key) == (FILE, line, key)
    assert says in e.problem
    assert "\n" not in e.problem
    assert str(e) == f"/etc/x.toml:{line}: {key}: {e.problem}"


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("a = 1\nb\n", 2, "Expected '=' after a key"),
        ("a = [1,\n2", 2, "end of file"),
        ("a = 1\na = 2\n", 2, "Cannot overwrite a value"),
        ("", 1, "add a [[port]]"),
    ],
)
def test_text_that_is_no_toml_is_refused_by_line(text: str, line: int, says: str) -> None:
    e = refused(text)
    assert e.line == line
    assert says in e.problem


def test_monstrous_values_are_refused_not_crashed_on() -> None:
    assert "nested too deeply" in str(refused("a = " + "[" * 5000))
    assert "digits" in str(refused("a = " + "9" * 5000))


def test_all_errors_are_told_in_the_order_of_the_file() -> None:
    e = refused('mode = "on"\n[probe]\nlost = 0\nperod = 1\n')
    first, *rest = str(e).splitlines()
    assert first.startswith("/etc/x.toml:1: mode: should be 'shadow' or 'act'")
    assert rest[0].startswith("/etc/x.toml:3: probe.lost: ")
    assert rest[1] == "/etc/x.toml:4: probe.perod: unknown key; did you mean 'period'?"
    assert [line.split(": ")[:2] for line in rest[2:]] == [["/etc/x.toml:4", "port"], ["/etc/x.toml:4", "share"]]


@pytest.mark.parametrize("port", ["[port]\nname = 'x'\nrail = 'r'\n", "port = []\n", "port = 1\n"])
def test_ports_in_another_form_are_refused_with_the_right_one(port: str) -> None:
    text = port + SMALLEST.split('rail = "rail0"\n')[1]
    e = refused(text)
    assert e.key == "port"
    assert "[[port]]" in e.problem


def test_probe_port_taken_by_a_wildcard_listen_is_refused() -> None:
    text = SMALLEST.replace("10.99.0.1:7471", "0.0.0.0:7472")
    assert refused(text).key == "probe.port"
    assert parse(SMALLEST.replace("7471", "7472"), FILE).share.listen.port == 7472


def test_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file") as missing:
        load(tmp_path / "none.toml")
    assert str(missing.value).startswith(f"{tmp_path}/none.toml: ")
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b"# one\n# \xe4\n")
    with pytest.raises(ConfigError, match="not UTF-8") as e:
        load(latin)
    assert e.value.line == 2


def test_rule_changes_are_read_with_what_they_leave_alone_as_none() -> None:
    s = parse(f'{SMALLEST}\n[[rule]]\nname = "symbol-errors"\ndrivers = ["mlx5"]\nlimit = 5\n', FILE)
    (change,) = s.rules
    assert (change.name, change.drivers, change.limit) == ("symbol-errors", ("mlx5",), 5.0)
    assert (change.window, change.clear, change.act, change.enabled) == (None, None, None, None)


@pytest.mark.parametrize(
    ("rule", "key", "says"),
    [
        ('name = "symbol-error"', "rule[0].name", "did you mean 'symbol-errors'?"),
        ('name = "x"', "rule[0].name", "there are link-flaps, "),
        ('name = "symbol-errors"\ndrivers = ["mlx4"]', "rule[0].drivers[0]", "no driver 'mlx4'; there are mlx5, "),
        ('name = "symbol-errors"\nlimit = -1', "rule[0].limit", "greater than or equal to 0"),
        ('name = "symbol-errors"\nact = "kill"', "rule[0].act", "'alarm', 'suspect' or 'down'"),
        ('name = "symbol-errors"\nlimits = 1', "rule[0].limits", "did you mean 'limit'?"),
        ("limit = 1", "rule[0].name", "missing"),
    ],
)
def test_rule_changes_that_are_wrong_are_refused_by_line_and_key(rule: str, key: str, says: str) -> None:
    before = SMALLEST.count("\n") + 2  # of [[rule]]
    e = refused(f"{SMALLEST}\n[[rule]]\n{rule}\n")
    assert (e.key, says in e.problem) == (key, True), str(e)
    assert before <= e.line <= before + 2


def test_port_by_pci_address_takes_lspcis_short_form_and_refuses_what_is_none() -> None:
    text = SMALLEST.replace('rail = "rail0"', 'rail = "rail0"\npci = "{}"')
    assert parse(text.format("17:00.0"), FILE).ports[0].pci == "0000:17:00.0"
    assert parse(text.format("0000:AF:00.1"), FILE).ports[0].pci == "0000:af:00.1"
    e = refused(text.format("mlx5_0"))
    assert (e.key, "no PCI address" in e.problem) == ("port[0].pci", True)


def test_excluded_port_that_is_none_of_the_ports_is_refused() -> None:
    e = refused(f'{SMALLEST}\n[see]\nexclude = ["eth9"]\n')
    assert (e.key, "'eth9' is none of the ports" in e.problem) == ("see.exclude[0]", True)
