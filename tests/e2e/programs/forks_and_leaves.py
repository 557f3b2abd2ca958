"""Makes 500 children that live for a moment, and leaves without waiting for any."""
import os
import time

for _ in range(500):
    if os.fork() == 0:
        time.sleep(0.05)
        os._exit(0)
print("the storm is over", flush=True)
