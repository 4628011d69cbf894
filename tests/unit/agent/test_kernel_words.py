"""What the kernel says, byte by byte: netlink attributes, ethtool's modules, RDMA device events, the log's records.

The bytes are written down here from the formats (netlink(7), SFF-8636, CMIS, dev-kmsg), in the machine's byte order.
"""

import struct

import pytest

from linkpass_agent.see.attributes import NESTED, attribute, attributes
from linkpass_agent.see.ethtool import module
from linkpass_agent.see.kernel_log import hint, parse
from linkpass_agent.see.rdma_events import DeviceEvent, notifications, uevent

SHORT = struct.pack("=HH", 5, 1) + b"x\0\0\0"  # a value of one byte, padded
LONG = struct.pack("=HHI", 8, 2 | 0x8000, 7)


def test_attributes_are_padded_and_lose_the_nested_bit():
    assert attribute(1, b"x") == SHORT
    assert list(attributes(SHORT + LONG)) == [(1, b"x"), (2, struct.pack("=I", 7))]
    assert attribute(2 | NESTED, struct.pack("=I", 7)) == LONG


@pytest.mark.parametrize(
    "rest",
    [b"\x01", struct.pack("=HH", 3, 9), struct.pack("=HH", 0, 9), struct.pack("=HHI", 9, 9, 0)],
    ids=["half a head", "shorter than its head", "length 0", "longer than the message"],
)
def test_malformed_attribute_ends_the_row_and_keeps_what_came_before(rest):
    assert list(attributes(LONG + rest)) == [(2, struct.pack("=I", 7))]


def page(kind, **values):
    data = bytearray(128)
    data[0] = kind
    for offset, packed in values.items():
        at = int(offset[1:])
        data[at : at + len(packed)] = packed
    return bytes(data)


def test_qsfp28_module_tells_degrees_volts_and_milliwatts():
    lower = page(
        0x11, _22=bytes([35, 128]), _26=struct.pack(">H", 33000), _34=struct.pack(">4H", 10000, 5000, 0, 65535)
    )
    found = module(lower)
    assert (found.temperature, found.voltage, found.received) == (35.5, 3.3, (1.0, 0.5, 0.0, 6.5535))


def test_cmis_module_has_its_powers_in_the_upper_page():
    lower = page(0x18, _14=bytes([0xFF, 0]), _16=struct.pack(">H", 33100))
    upper = bytes(58) + struct.pack(">8H", *range(1000, 9000, 1000)) + bytes(54)
    found = module(lower, upper)
    assert (found.temperature, found.voltage) == (-1.0, 3.31)
    assert found.received == pytest.approx((0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8))
    assert module(lower).received == ()


@pytest.mark.parametrize("lower", [b"", bytes(127), page(0x03)], ids=["nothing", "cut off", "SFP"])
def test_module_of_another_kind_or_cut_off_tells_nothing(lower):
    assert module(lower) is None


def test_uevent_of_an_rdma_device_is_told_and_others_are_not():
    def words(action, subsystem):
        path = "/devices/pci0000:00/0000:3b:00.0/infiniband/mlx5_0"
        return f"{action}@{path}\0ACTION={action}\0DEVPATH={path}\0SUBSYSTEM={subsystem}\0SEQNUM=7\0".encode()

    assert uevent(words("remove", "infiniband")) == DeviceEvent("unregistered", "mlx5_0", "uevent")
    assert uevent(words("remove", "net")) is None
    assert uevent(words("change", "infiniband")) is None
    assert uevent(b"\xff\0=") is None


def test_rdma_notification_gives_what_happened_and_the_name():
    body = attribute(102, bytes([4])) + attribute(2, b"rxe7\0")
    message = struct.pack("=IHHII", 16 + len(body), 5 << 10 | 28, 0, 0, 0) + body
    assert notifications(message) == [DeviceEvent("renamed", "rxe7", "rdma netlink")]
    assert notifications(message[:-9]) == []  # cut off
    assert notifications(message.replace(bytes([28, 20]), bytes([29, 20]), 1)) == []  # another command


def test_record_of_the_kernel_log_gives_seconds_and_text():
    assert parse(b"6,1234,5500000,-;mlx5_core 0000:3b:00.0 eth1: Link down\n SUBSYSTEM=pci\n") == (
        5.5,
        "mlx5_core 0000:3b:00.0 eth1: Link down",
    )
    assert parse(b"no record") is None


def test_line_is_a_hint_only_for_a_port_named_as_a_whole_word():
    ports = {"eth1": "eth1", "0000:3b:00.0": "eth9"}
    assert hint(1.0, "eth1: Link down", ports).meaning == "link down"
    assert hint(1.0, "mlx5_core 0000:3b:00.0: Cable unplugged", ports).port == "eth9"
    assert hint(1.0, "eth11: Link down", ports) is None
    assert hint(1.0, "eth1: hello", ports) is None
