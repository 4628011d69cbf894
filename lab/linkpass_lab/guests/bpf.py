"""Classic BPF programs for tc's cls_bpf in direct-action mode, written on the switch ports (taps) of guests.

Offsets count from the Ethernet header. Codes are those of linux/bpf_common.h. Values only.
"""

from collections.abc import Sequence

LDH_ABS, LDB_ABS, LDW_ABS = 0x28, 0x30, 0x20
LDH_IND, LDB_IND, LDX_MSH = 0x48, 0x50, 0xB1
JA, JEQ, JGE, RET = 0x05, 0x15, 0x35, 0x06
SHOT, UNSPEC = 2, 0xFFFFFFFF  # TC_ACT_SHOT drops; TC_ACT_UNSPEC (-1) lets the next filter decide
RANDOM = 0xFFFFF000 + 56  # SKF_AD_OFF + SKF_AD_RANDOM: a random word

ROCE_V2 = 4791  # UDP port (InfiniBand annex A17)
ACKNOWLEDGE, ATOMIC_ACKNOWLEDGE = 0x11, 0x12  # BTH opcodes of RC (InfiniBand 9.2.1)

Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, operand


def text(program: Sequence[Instruction]) -> str:
    """The form that tc reads after `bytecode`."""
    return f"{len(program)},{','.join(' '.join(map(str, i)) for i in program)},"


def everything() -> list[Instruction]:
    """Drops all."""
    return [(RET, 0, 0, SHOT)]


def some(percent: float) -> list[Instruction]:
    """Drops this share at random."""
    share = min(int(percent / 100 * 2**32), 2**32 - 1)
    if share == 2**32 - 1:
        return everything()
    return [(LDW_ABS, 0, 0, RANDOM), (JGE, 1, 0, share), (RET, 0, 0, SHOT), (RET, 0, 0, UNSPEC)]


def acknowledgements() -> list[Instruction]:
    """Drops RoCEv2 packets, over IPv4 or IPv6, that are acknowledgements: requests are executed, nobody is told."""
    drop, keep, v6, opcode = 17, 18, 9, 15

    def only_if(at: int, value: int, otherwise: int = keep) -> Instruction:
        return (JEQ, 0, otherwise - at - 1, value)

    return [
        (LDH_ABS, 0, 0, 12),  # EtherType
        only_if(1, 0x0800, v6),
        (LDB_ABS, 0, 0, 23),  # IPv4 protocol
        only_if(3, 17),
        (LDX_MSH, 0, 0, 14),  # X = length of the IPv4 header
        (LDH_IND, 0, 0, 16),  # UDP destination port
        only_if(6, ROCE_V2),
        (LDB_IND, 0, 0, 22),  # first byte after UDP's header: the opcode
        (JA, 0, 0, opcode - 8 - 1),
        only_if(v6, 0x86DD),
        (LDB_ABS, 0, 0, 20),  # IPv6 next header
        only_if(11, 17),
        (LDH_ABS, 0, 0, 56),
        only_if(13, ROCE_V2),
        (LDB_ABS, 0, 0, 62),
        (JEQ, drop - opcode - 1, 0, ACKNOWLEDGE),
        (JEQ, 0, keep - 16 - 1, ATOMIC_ACKNOWLEDGE),
        (RET, 0, 0, SHOT),
        (RET, 0, 0, UNSPEC),
    ]
