"""Reads standard input to its end, which must come at once."""
import sys

print("read", len(sys.stdin.buffer.read()), "bytes")
