"""Small values: GIDs, package states, QEMU's command line."""

from pathlib import Path

from linkpass_lab.guests import packages, qemu
from linkpass_lab.guests.accel import Accel
from linkpass_lab.guests.faults import KINDS, gid_of
from linkpass_lab.guests.kernel import Kernel
from linkpass_lab.guests.plan import plan
from linkpass_lab.guests.prepare import Prepared
from linkpass_lab.guests.qemu import Descriptors
from linkpass_topology.fabric import grid


def test_gid_of_an_ipv4_address_is_spelt_as_in_sysfs():
    assert gid_of("10.10.0.2/16") == "0000:0000:0000:0000:0000:ffff:0a0a:0002"
    assert gid_of("198.18.1.255") == "0000:0000:0000:0000:0000:ffff:c612:01ff"


def test_package_that_was_removed_but_configured_is_not_installed():
    status = "qemu-system-x86 installed\nperftest config-files\nkmod installed\n"
    assert packages.installed(status) == {"qemu-system-x86", "kmod"}


def test_guests_can_do_every_verb():
    assert {"acks", "gid", "freeze", "flap"} <= {str(k) for k in KINDS}


def test_qemu_gets_a_card_for_each_port_and_commas_doubled():
    guest = plan(grid(1, 2, mtu=9000)).guest("a")
    made = Prepared(Kernel("6.1", Path("/k"), Path("/k/vmlinux")), Path("/i"), Accel(False, "none"))
    line = qemu.command(guest, made, Descriptors((5, 6, 7), 8, 9), Path("/run/x,y"), Path("/l"), 256)
    assert "tap,id=a-rail1,fd=6" in line
    assert "virtio-net-pci,netdev=a-mgmt,mac=52:54:00:ff:00:01,romfile=,host_mtu=1500" in line
    assert "local,id=run,path=/run/x,,y,security_model=none" in line
    assert "tcg,thread=multi" in line
