"""The client's side of `scripts/bench python`: one measurement per run, printed as JSON. Takes the package from
PYTHONPATH and speaks with the daemon of GPULAYER_HOME and GPULAYER_STATE."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import gpulayer as gl

WARM_UP = 10


def same(x):
    return x


def length(data, _):
    return len(data)


def start(_=None):
    """Starts the interpreter and waits for its end; seconds."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], env=env, check=True)
    return time.perf_counter() - began


def latency(count):
    """`f.run(1)`, in a process of its own and in one that waited, and the interpreter's own start in turns, so that all
    meet the same machine."""
    f = gl.remote(same)
    began = time.perf_counter()
    f.run(1)
    first_s = time.perf_counter() - began
    for _ in range(WARM_UP):
        f.run(1)
        start()
    reused = gl.remote(reuse=True)(same)
    reused.run(1)
    runs, again, starts = [], [], []
    for _ in range(count):
        starts.append(start())
        for call, taken in ((f, runs), (reused, again)):
            began = time.perf_counter()
            call.run(1)
            taken.append(time.perf_counter() - began)
    measured = {**quantiles("run", runs), **quantiles("reuse", again), **quantiles("start", starts)}
    return {"first_ms": first_s * 1e3, **measured}


def quantiles(name, taken):
    taken.sort()
    return {f"{name}_p{share}_ms": taken[min(len(taken) * share // 100, len(taken) - 1)] * 1e3 for share in (50, 95)}


def rates(count, chunksize):
    """Calls a second: as maps, by the standard library's pool, and with a process for each. The first map of each kind is
    not counted, nor is the start of the pool's processes."""
    f = gl.remote(same)
    cores = os.cpu_count() or 1
    expected = list(range(count))

    def rate(calls):
        began = time.perf_counter()
        if calls() != expected:
            raise SystemExit("bench: a map gave other values than its function")
        return count / (time.perf_counter() - began)

    reused = gl.remote(reuse=True)(same)
    for warm in (f, reused):
        warm.map(range(WARM_UP)).result()
    found = {
        "reuse_per_s": rate(lambda: reused.map(expected).result()),
        "reuse_singly_per_s": rate(lambda: reused.map(expected, chunksize=1).result()),
        "map_per_s": rate(lambda: f.map(expected, chunksize=1).result()),
        "map_chunks_per_s": rate(lambda: f.map(expected, chunksize=chunksize).result()),
    }
    with ProcessPoolExecutor(cores) as pool:
        list(pool.map(start, range(cores)))
        found["pool_per_s"] = rate(lambda: list(pool.map(same, expected)))
        found["pool_chunks_per_s"] = rate(lambda: list(pool.map(same, expected, chunksize=chunksize)))
    with ThreadPoolExecutor(cores) as starters:
        began = time.perf_counter()
        list(starters.map(start, range(count)))
        found["starts_per_s"] = count / (time.perf_counter() - began)
    return found


class Counter:
    """Stands before the daemon's socket and counts the bytes that pass, by direction."""

    def __init__(self, folder, far):
        self.near, self.far = os.path.join(folder, "near.sock"), far
        self.up = self.down = 0
        self.loop = asyncio.new_event_loop()
        self.is_there = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()
        self.is_there.wait()

    def run(self):
        asyncio.set_event_loop(self.loop)
        self.loop.run_until_complete(asyncio.start_unix_server(self.serve, self.near))
        self.is_there.set()
        self.loop.run_forever()

    async def serve(self, reader, writer):
        far_reader, far_writer = await asyncio.open_unix_connection(self.far)
        await asyncio.gather(self.forward(reader, far_writer, "up"), self.forward(far_reader, writer, "down"))

    async def forward(self, reader, writer, way):
        try:
            while True:
                piece = await reader.read(256 << 10)
                if not piece:
                    break
                setattr(self, way, getattr(self, way) + len(piece))
                writer.write(piece)
                await writer.drain()
        except ConnectionError:
            pass
        writer.close()


def argument(size, count, socket):
    """Calls with one large argument, as one map: what went over the socket. A small call before has sent all else."""
    with tempfile.TemporaryDirectory() as folder:
        counter = Counter(folder, socket)
        with gl.connect(f"unix:{counter.near}") as client:
            gl.remote(client=client)(same).run(1)
            before = counter.up
            data = os.urandom(size)
            f = gl.remote(client=client)(length)
            if f.map([data] * count, range(count), chunksize=1).result() != [size] * count:
                raise SystemExit("bench: the argument did not arrive whole")
            return {"sent_bytes": counter.up - before}


def result(size):
    """One call with a large result: what it takes until it is here."""
    f = gl.remote(os.urandom)
    began = time.perf_counter()
    if len(f.run(size)) != size:
        raise SystemExit("bench: the result did not arrive whole")
    return {"took_s": time.perf_counter() - began}


def main():
    what, given = sys.argv[1], [json.loads(word) for word in sys.argv[2:]]
    if what == "latency":
        found = latency(*given)
    elif what == "rates":
        found = rates(*given)
    elif what == "argument":
        found = argument(*given, str(Path(os.environ["GPULAYER_STATE"]) / "gpulayer.sock"))
    else:
        found = result(*given)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
