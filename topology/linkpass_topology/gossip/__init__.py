"""Sharing host records between agents: a protocol core without I/O (`Gossip`), its UDP adapter, the fleet's keys."""

from linkpass_topology.gossip.core import Gossip
from linkpass_topology.gossip.keyring import Keyring
from linkpass_topology.gossip.membership import Member
from linkpass_topology.gossip.options import Options
from linkpass_topology.gossip.outputs import (
    Acked,
    Address,
    Drop,
    Dropped,
    Learned,
    MemberTurned,
    Output,
    Outrun,
    PeerSilent,
    PeerUp,
    Relayed,
    RelayLost,
    RelayReset,
    Send,
)
from linkpass_topology.gossip.peers import PeerInfo
from linkpass_topology.gossip.suspicion import SwimRule
from linkpass_topology.gossip.udp import GossipUdp, RailEnd

__all__ = [
    "Acked",
    "Address",
    "Drop",
    "Dropped",
    "Gossip",
    "GossipUdp",
    "Keyring",
    "Learned",
    "Member",
    "MemberTurned",
    "Options",
    "Output",
    "Outrun",
    "PeerInfo",
    "PeerSilent",
    "PeerUp",
    "RailEnd",
    "RelayLost",
    "RelayReset",
    "Relayed",
    "Send",
    "SwimRule",
]
