"""Four processes that no polite signal ends: a child, one in a session of its own, and one whose parent has left."""
import os
import signal
import time

for polite in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT):
    signal.signal(polite, signal.SIG_IGN)


def sign():
    with open(os.environ["PIDS"], "a") as book:
        book.write(f"{os.getpid()}\n")


def stay():
    sign()
    while True:
        time.sleep(60)


if os.fork() == 0:
    stay()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        stay()
    if os.fork() == 0:
        # Whoever comes after this one is nobody's child but the subreaper's.
        if os.fork() == 0:
            stay()
        os._exit(0)
    os.wait()
    os._exit(0)
sign()
while sum(1 for _ in open(os.environ["PIDS"])) < 4:
    time.sleep(0.01)
print("READY", flush=True)
while True:
    time.sleep(60)
