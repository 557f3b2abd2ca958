"""A line of a mebibyte, then bytes that are no text, and an end without a line end."""
import sys

out = sys.stdout.buffer
out.write(b"a" * (1 << 20) + b"\n")
out.write(b"no utf-8: \xff\xfe \xc3(\n")
out.write(b"a nul: \x00.\n")
out.write(b"colour: \x1b[31mred\x1b[0m, title: \x1b]0;owned\x07.\n")
out.write("é 🚀 \u2028 separator\n".encode())
out.write(b"no line end")
