"""Shuts its three streams, works on, and leaves a file."""
import os
import time

for stream in range(3):
    os.close(stream)
time.sleep(1.3)
with open("out.txt", "w") as file:
    file.write("finished\n")
