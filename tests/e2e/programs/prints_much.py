"""Writes so many numbered lines in large blocks, and LAST."""
import os
import sys

lines = int(sys.argv[1])
text = "".join(f"{n} {'.' * 40}\n" for n in range(1, lines + 1)).encode()
sent = 0
while sent < len(text):
    sent += os.write(1, text[sent : sent + (1 << 20)])
os.write(1, b"LAST\n")
