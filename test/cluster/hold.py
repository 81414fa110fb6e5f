"""Holds the thread that runs a worker's step, by ptrace, until the process ends: for hang.sh.

    hold.py PID FILE

FILE is where a stream that the worker computes is written to: a thread is the right one if the stream stands still while
the thread is held. The rest of the process runs on. Needs Linux, and to be root or of an ancestor of the process.
"""
import ctypes
import os
import sys
import time

SEIZE, INTERRUPT, DETACH, EVERY_THREAD = 0x4206, 0x4207, 17, 0x40000000

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long


def ptrace(request, thread):
    if libc.ptrace(request, thread, None, None) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def used(pid):
    """Nanoseconds of processor time by thread."""
    out = {}
    for t in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{t}/schedstat") as f:
                out[int(t)] = int(f.read().split()[0])
        except OSError:
            pass  # it has ended
    return out


def hold(pid, path):
    for _ in range(60):
        before = used(pid)
        time.sleep(0.02)
        now = used(pid)
        busiest = max(now, key=lambda t: now[t] - before.get(t, 0))
        try:
            ptrace(SEIZE, busiest)
            ptrace(INTERRUPT, busiest)
        except OSError:
            continue  # it has ended
        os.waitpid(busiest, EVERY_THREAD)
        time.sleep(0.3)
        size = os.stat(path).st_size
        time.sleep(0.7)
        if os.stat(path).st_size == size:
            return busiest
        ptrace(DETACH, busiest)
    sys.exit("no thread of the process holds the stream up")


thread = hold(int(sys.argv[1]), sys.argv[2])
print("held", flush=True)
os.waitpid(thread, EVERY_THREAD)
