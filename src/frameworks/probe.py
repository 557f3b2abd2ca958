# Run by a worker in each Python interpreter that it offers: `list` tells what is there without importing it, a name
# imports that framework and tells what it can really compute on. The answer is the last line that begins with the mark.
import sys

NAMES = ("torch", "jax", "tensorflow", "mlx")


def listed():
    import importlib.util
    import os
    import platform

    found = {}
    for name in NAMES:
        spec = importlib.util.find_spec(name)
        places = list(getattr(spec, "submodule_search_locations", None) or []) if spec else None
        if places is not None:
            found[name] = [[place, os.stat(place).st_mtime] for place in places if os.path.isdir(place)]
    return {"version": platform.python_version(), "found": found}


def torch():
    import torch

    backends = []
    if torch.cuda.is_available():
        backends.append("rocm" if getattr(torch.version, "hip", None) else "cuda")
    mps = getattr(torch.backends, "mps", None)
    if mps is not None and mps.is_available():
        backends.append("mps")
    return torch.__version__, backends


def jax():
    import jax

    backends = set()
    for device in jax.devices():
        if device.platform in ("gpu", "cuda", "rocm"):
            backends.add("rocm" if "rocm" in device.client.platform_version.lower() else "cuda")
        elif device.platform.lower() in ("metal", "mps"):
            backends.add("mps")
    return jax.__version__, sorted(backends)


def tensorflow():
    import tensorflow

    gpus = tensorflow.config.list_physical_devices("GPU")
    rocm = tensorflow.test.is_built_with_rocm()
    kind = "mps" if sys.platform == "darwin" else "rocm" if rocm else "cuda"
    return tensorflow.__version__, [kind] if gpus else []


def mlx():
    import importlib.metadata

    import mlx.core

    backends = []
    for name, backend in (("metal", "mps"), ("cuda", "cuda")):
        module = getattr(mlx.core, name, None)
        if module is not None and module.is_available():
            backends.append(backend)
    return importlib.metadata.version("mlx"), backends


def told(answer):
    import json

    sys.stdout.write("\ngpulayer " + json.dumps(answer) + "\n")
    sys.stdout.flush()


if sys.argv[1] == "list":
    told(listed())
else:
    try:
        version, backends = {"torch": torch, "jax": jax, "tensorflow": tensorflow, "mlx": mlx}[sys.argv[1]]()
        told({"version": str(version), "backends": backends + ["cpu"]})
    except BaseException as error:
        told({"fault": "%s: %s" % (type(error).__name__, str(error).strip().split("\n")[0][:300])})
