"""What a real kernel tells of RDMA devices, links and its log.

Replayed instead, in tests/unit/agent: RDMA netlink's own notifications, which need Linux 6.12, and a device that goes
to another namespace, which rxe can't (test_kernel_words.py); FEC and modules: virtio_net has none (test_ethtool.py).
"""

LISTENER = """
import asyncio, subprocess
from linkpass_agent.see.ethtool import Ethtool
from linkpass_agent.see.kernel_log import KernelLog
from linkpass_agent.see.rdma_events import DeviceEvents

said = asyncio.Queue()

def do(*words):
    subprocess.run(words, check=True)

async def until(word):
    while (line := await asyncio.wait_for(said.get(), 30.0)) != word:
        pass
    print(line, flush=True)

async def main():
    devices = DeviceEvents(lambda e: said.put_nowait(f"{e.source}: {e.device} {e.what}"), lambda: None)
    devices.open()
    log = KernelLog(lambda: {"seen0": "port"}, lambda h: said.put_nowait(f"log: {h.port} {h.meaning}"))
    assert log.open() == ""
    do("ip", "link", "add", "seen0", "type", "dummy")
    do("ip", "link", "set", "seen0", "up")
    do("rdma", "link", "add", "seen_a", "type", "rxe", "netdev", "seen0")
    await until("uevent: seen_a registered")
    do("rdma", "dev", "set", "seen_a", "name", "seen_b")
    await until("uevent: seen_b renamed")
    do("rdma", "link", "del", "seen_b")
    await until("uevent: seen_b unregistered")
    with open("/dev/kmsg", "w") as kmsg:
        kmsg.write("mlx5_core 0000:3b:00.0 seen0: Link down\\n")
    await until("log: port link down")
    ethtool = Ethtool()
    print("link", ethtool.link("a-rail1").link)
    for ask in (ethtool.fec, ethtool.module):
        try:
            print(ask("a-rail1"))
        except OSError as e:
            print(e.strerror)
    ethtool.close(); log.close(); devices.close()
    do("ip", "link", "del", "seen0")

asyncio.run(main())
"""


def test_kernel_tells_of_devices_links_and_its_log(lab) -> None:
    program = lab.folder / "listener.py"
    program.write_text(LISTENER)
    done = lab.run("a", ["python3", str(program)], timeout=120, check=False)
    assert done.stdout.splitlines() == [
        "uevent: seen_a registered",
        "uevent: seen_b renamed",
        "uevent: seen_b unregistered",
        "log: port link down",
        "link True",
        "Operation not supported",
        "Operation not supported",
    ], (done.stdout, done.stderr)
