"""Says what it has inherited, as JSON."""
import json
import os

status = dict(line.split(":\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\t" in line)
print(json.dumps({
    "names": sorted(os.environ),
    "descriptors": sorted(int(name) for name in os.listdir("/proc/self/fd")),
    "ignored": status["SigIgn"],
    "blocked": status["SigBlk"],
    "leads_its_session": os.getsid(0) == os.getpid(),
    "umask": os.umask(0o22),
}))
