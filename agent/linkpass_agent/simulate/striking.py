"""How each fault strikes and how it is taken back."""

from linkpass_topology.gossip.keyring import Keyring

from .faults import Fault, Kind
from .fleet import Fleet, key
from .host import SimHost
from .network import Wrongs


def strike(fleet: Fleet, number: int, fault: Fault) -> None:
    """Put the fault in."""
    network, host = fleet.network, fleet.hosts.get(fault.where)
    match fault.kind:
        case Kind.FLAP | Kind.ONE_WAY | Kind.GRAY:
            own = network.cables[fault.where, fault.rail].own
            if fault.kind is Kind.GRAY:
                own.losses[number] = fault.amount
            elif fault.kind is Kind.FLAP:
                own.down.add(number)
            else:
                (own.no_rx if fault.amount else own.no_tx).add(number)
            fleet.settle([(fault.where, fault.rail)])
        case Kind.LEAF | Kind.DARK:
            leaf = network.leaves[fault.where]
            (leaf.down if fault.kind is Kind.LEAF else leaf.dark).add(number)
            fleet.settle(network.under[fault.where])
        case Kind.TRUNK:
            network.trunks[fault.where].dark.add(number)
            fleet.settle(network.on_rail(fault.where))
        case Kind.RATE | Kind.MENDED if host:
            (host.slow if fault.kind is Kind.RATE else host.resets)[host.port_on[fault.rail]].add(number)
            _stir(host)
        case Kind.ISLAND:
            network.islands[number] = frozenset(fault.where.split("+"))
        case Kind.STORM:
            network.storms[number] = fault.amount
        case Kind.CRASH if host and host.powered:
            host.power_off()
        case Kind.KILL if host and host.running:
            host.stop()
        case Kind.FREEZE if host and host.running and not host.frozen:
            host.freeze()
        case Kind.DRAIN if host and host.running and not host.frozen:
            host.drain(host.port_on[fault.rail], "a simulated operator's wish")
        case Kind.STEP if host:
            host.clock.step += fault.amount
        case Kind.KEYS:
            _rotate(fleet, fault.lasts or 1.0)


def heal(fleet: Fleet, number: int, fault: Fault) -> None:
    """Take it out again."""
    network, host = fleet.network, fleet.hosts.get(fault.where)
    match fault.kind:
        case Kind.FLAP | Kind.ONE_WAY | Kind.GRAY:
            network.cables[fault.where, fault.rail].own.clear(number)
            fleet.settle([(fault.where, fault.rail)])
        case Kind.LEAF | Kind.DARK:
            network.leaves[fault.where].clear(number)
            fleet.settle(network.under[fault.where])
        case Kind.TRUNK:
            _clear_trunk(fleet, network.trunks[fault.where], number, fault.where)
        case Kind.RATE | Kind.MENDED if host:
            (host.slow if fault.kind is Kind.RATE else host.resets)[host.port_on[fault.rail]].discard(number)
            _stir(host)
        case Kind.ISLAND:
            del network.islands[number]
        case Kind.STORM:
            del network.storms[number]
        case Kind.CRASH if host and not host.powered:
            host.power_on()
        case Kind.KILL if host and host.powered and not host.running:
            host.start()
        case Kind.FREEZE if host and host.frozen:
            host.thaw()
        case Kind.DRAIN if host and host.running:
            host.run_soon(host.life, host.undrain, host.port_on[fault.rail])


def _stir(host: SimHost) -> None:
    if host.running:
        host.stir()


def _clear_trunk(fleet: Fleet, trunk: Wrongs, number: int, rail: str) -> None:
    trunk.clear(number)
    if not trunk.any:
        fleet.network.trunk_bad_at[rail] = fleet.queue.now
    fleet.settle(fleet.network.on_rail(rail))


def _rotate(fleet: Fleet, stage: float) -> None:
    """As docs/sharing.md says: the new key second everywhere, then first everywhere, then alone. One after the other:
    a rotation that begins before the last one has ended everywhere can leave hosts without a key in common."""
    begin = max(fleet.queue.now, fleet.keys_settled)
    fleet.keys_settled = begin + 3.0 * stage
    old = fleet.keys.sending
    new = key(int(old.id.removeprefix("key")) + 1)
    fleet.keys = Keyring((new,))
    for n, ring in enumerate((Keyring((old, new)), Keyring((new, old)), fleet.keys)):
        for host in fleet.hosts.values():
            at = begin + n * stage + fleet.rng.random() * stage * 0.9
            fleet.queue.at(at, host.use_keyring, ring)
