"""The filters, run by an interpreter of classic BPF written for this test, on packets built by scapy."""

import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import ARP, Ether

from linkpass_lab.guests import bpf

DROP, KEEP = 2, 0xFFFFFFFF


def run(program, packet, random=0):
    """What the kernel's interpreter would return (Documentation/networking/filter.rst)."""
    a = x = 0
    at = 0
    while True:
        code, jt, jf, k = program[at]
        at += 1
        match code:
            case 0x20:  # ld [k]
                a = random if k == 0xFFFFF038 else int.from_bytes(packet[k : k + 4], "big")
            case 0x28 | 0x48:  # ldh
                where = k + (x if code == 0x48 else 0)
                if where + 2 > len(packet):
                    return 0
                a = int.from_bytes(packet[where : where + 2], "big")
            case 0x30 | 0x50:  # ldb
                where = k + (x if code == 0x50 else 0)
                if where >= len(packet):
                    return 0
                a = packet[where]
            case 0xB1:  # ldx 4*([k]&0xf)
                x = 4 * (packet[k] & 15)
            case 0x05:
                at += k
            case 0x15:
                at += jt if a == k else jf
            case 0x35:
                at += jt if a >= k else jf
            case 0x06:
                return k
            case _:
                raise AssertionError(f"no instruction {code:#x}")


def bth(opcode):
    return bytes([opcode]) + bytes(11)


@pytest.mark.parametrize("network", [IP(), IP(options=b"\x01\x01\x01\x01"), IPv6()], ids=["v4", "v4 options", "v6"])
@pytest.mark.parametrize(
    ("opcode", "fate"),
    [(0x11, DROP), (0x12, DROP), (0x04, KEEP), (0x0A, KEEP), (0x10, KEEP), (0x0D, KEEP), (0x81, KEEP)],
    ids=["ack", "atomic ack", "send", "write", "read response", "read response first", "cnp"],
)
def test_acknowledgements_are_dropped_and_nothing_else(network, opcode, fate):
    packet = bytes(Ether() / network / UDP(sport=49152, dport=4791) / bth(opcode))
    assert run(bpf.acknowledgements(), packet) == fate


@pytest.mark.parametrize(
    "packet",
    [
        Ether() / IP() / UDP(sport=4791, dport=53) / bth(0x11),
        Ether() / IP() / TCP(dport=4791) / bth(0x11),
        Ether() / IPv6() / UDP(dport=4790) / bth(0x11),
        Ether() / IPv6() / TCP(dport=4791) / bth(0x11),
        Ether() / ARP(),
    ],
    ids=["other port", "tcp", "v6 other port", "v6 tcp", "arp"],
)
def test_packets_that_are_not_roce_are_kept(packet):
    assert run(bpf.acknowledgements(), bytes(packet)) == KEEP


def test_everything_drops_everything():
    assert run(bpf.everything(), bytes(Ether() / ARP())) == DROP


@pytest.mark.parametrize(("random", "fate"), [(0, DROP), (2**30 - 1, DROP), (2**30, KEEP), (2**32 - 1, KEEP)])
def test_a_quarter_drops_the_lowest_quarter_of_random_words(random, fate):
    assert run(bpf.some(25.0), b"", random) == fate


def test_all_of_some_is_everything():
    assert run(bpf.some(100.0), b"", 2**32 - 1) == DROP


def test_text_is_what_tc_reads():
    assert bpf.text(bpf.everything()) == "1,6 0 0 2,"
