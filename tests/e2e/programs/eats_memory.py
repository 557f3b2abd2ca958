"""A child takes memory until it is killed, a GiB at most; the parent only notices, and exits with 1."""
import os
import sys

child = os.fork()
if child == 0:
    held = []
    for step in range(64):
        held.append(os.urandom(1 << 20) * 16)
    os._exit(0)
_, status = os.waitpid(child, 0)
print("the child ended with", status, flush=True)
sys.exit(1 if status else 0)
