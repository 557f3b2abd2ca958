# What an interpreter is: one line of JSON, for Python 3.6 and newer.
import json
import os
import sys
import sysconfig

packages = []
if sys.prefix != sys.base_prefix:
    for kind in ("purelib", "platlib"):
        folder = sysconfig.get_path(kind)
        if folder not in packages:
            packages.append(folder)
print(json.dumps({
    "executable": os.path.abspath(sys.executable),
    "version": sys.version,
    "abi": sysconfig.get_config_var("SOABI") or sys.implementation.cache_tag,
    "platform": sysconfig.get_platform(),
    "packages_of_environment": packages,
}))
