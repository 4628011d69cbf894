"""Whose a queue pair is, by the kernel's own tracking: real rxe queue pairs of processes and threads in a guest."""

PROBE = """
import os, subprocess, sys, threading
import pyverbs.device, pyverbs.pd, pyverbs.cq, pyverbs.qp
import pyverbs.enums as e
from linkpass_agent.see.rdma_owner import QueuePairOwners

def make(kept):
    context = pyverbs.device.Context(name="rxe0")
    pd = pyverbs.pd.PD(context)
    cq = pyverbs.cq.CQ(context, 8)
    cap = pyverbs.qp.QPCap(1, 1, 1, 1)
    init = pyverbs.qp.QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=cap)
    qp = pyverbs.qp.QP(pd, init)
    attr = pyverbs.qp.QPAttr(port_num=1)
    qp.to_init(attr)
    kept.append((context, pd, cq, qp))

if sys.argv[1:] == ["child"]:
    kept = []
    make(kept)
    print(kept[0][3].qp_num, flush=True)
    sys.stdin.read()
    sys.exit()
owners, kept = QueuePairOwners(), []
make(kept)
done = threading.Event()
def thread():
    make(kept)
    made.set()
    done.wait()
made = threading.Event()
other = threading.Thread(target=thread)
other.start()
made.wait()
child = subprocess.Popen([sys.executable, __file__, "child"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
foreign = int(child.stdout.readline())
own = [owners.owner("rxe0", 1, k[3].qp_num) for k in kept]
done.set(); other.join()
print("own", [o == os.getpid() for o in own])
print("foreign", owners.owner("rxe0", 1, foreign) == child.pid)
print("unknown", owners.owner("rxe0", 1, 0xABCDEF), owners.owner("rxe9", 1, foreign))
child.stdin.close(); child.wait()
print("ended", owners.owner("rxe0", 1, foreign))
owners.close()
"""


def test_owner_is_the_process_that_made_the_queue_pair(lab) -> None:
    program = lab.folder / "owner.py"
    program.write_text(PROBE)
    done = lab.run("a", ["python3", str(program)], timeout=120)
    assert done.stdout.splitlines() == [
        "own [True, True]",
        "foreign True",
        "unknown None None",
        "ended None",
    ], (done.stdout, done.stderr)
