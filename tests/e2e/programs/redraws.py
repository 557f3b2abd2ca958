"""A bar on stderr that is drawn anew 1,500 times, while stdout says where it is five times."""
import sys
import time

for turn in range(1500):
    print(f"\r[{'=' * (turn // 40):<40}] {turn}", end="", file=sys.stderr, flush=True)
    if turn % 300 == 0:
        print("step", turn // 300, flush=True)
    time.sleep(0.001)
print("\ndone", file=sys.stderr)
