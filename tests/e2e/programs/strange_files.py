"""Leaves files with awkward names, kinds and sizes in ./out."""
import os

os.makedirs("out/a/b")
for name in ("plain", "two words", "two\nlines", "--help", "ünïcødé", "a/b/deep", "void"):
    with open(f"out/{name}", "w") as file:
        file.write("" if name == "void" else f"I am {name}")
os.symlink("plain", "out/link_inside")
os.symlink("/etc/hostname", "out/link_outside")
os.mkfifo("out/pipe")
with open("out/holes", "wb") as file:
    file.seek(64 << 20)
    file.write(b"end")
