"""Ends in the way that its argument names."""
import os
import signal
import sys

way = sys.argv[1]
print("about to end by", way, flush=True)
if way.isdigit():
    os._exit(int(way))
if way.startswith("SIG"):
    os.kill(os.getpid(), signal.Signals[way])
if way == "import":
    __import__("no_such_module_anywhere")
if way == "traceback":
    [][7]
if way == "cuda":
    raise RuntimeError("CUDA out of memory. Tried to allocate 4.00 GiB. GPU 0 has a total capacity of 15.77 GiB")
if way == "nccl":
    raise RuntimeError("NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, unhandled system error")
if way == "missing":
    os.execvp("no-such-program-anywhere", ["no-such-program-anywhere"])
