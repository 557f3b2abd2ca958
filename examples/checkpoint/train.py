"""Training that is killed in the middle and goes on where it was.

A softmax classifier learns Fisher's iris measurements in plain Python. After every epoch it keeps its weights in
`gl.checkpoint_dir`; when its process is lost the job is tried again, on whatever worker, and the next attempt finds
them there. `--kill-at` makes the first attempt kill itself, as a machine that goes down would.
"""

import argparse
import csv
import json
import math
import os
import signal
from pathlib import Path

import gpulayer as gl

TABLE = Path(__file__).parent.parent / "iris" / "iris.csv"
LEARNING_RATE = 0.5


# The table lies in the job's workspace, wherever that is. `retry_on`: also when the program itself is at fault.
@gl.remote(inputs={"iris.csv": TABLE}, retries=3, retry_on=["any"])
def train(epochs, kill_at=None):
    """Returns the loss after the last epoch, the attempt, and the epoch it began after."""
    examples, classes = read_flowers("iris.csv")
    saved = gl.checkpoint_dir / "weights.json"
    if saved.exists():
        first, weights = json.loads(saved.read_text())
    else:
        first, weights = 0, [[0.0] * len(examples[0][0]) for _ in classes]

    loss = math.inf
    for epoch in range(first + 1, epochs + 1):
        loss = descend(weights, examples)
        save(saved, [epoch, weights])
        gl.metrics(epoch, loss=loss)
        gl.progress(epoch, epochs)
        if epoch == kill_at and gl.job.attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if gl.should_stop():  # somebody needs the machine: what was learnt is kept
            break
    return loss, gl.job.attempt, first


def save(path, state):
    """Writes it beside and renames it: whenever the process ends, the file is whole. Then says so."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(state))
    os.replace(part, path)
    gl.checkpoint_saved()


def read_flowers(path):
    """A list of (features with a constant 1, class), features scaled to mean 0 and deviation 1; and the classes."""
    with open(path, newline="") as table:
        rows = list(csv.reader(table))[1:]
    columns = []
    for column in list(zip(*rows))[:-1]:
        numbers = [float(cell) for cell in column]
        mean = sum(numbers) / len(numbers)
        deviation = math.sqrt(sum((number - mean) ** 2 for number in numbers) / len(numbers))
        columns.append([(number - mean) / deviation for number in numbers])
    classes = sorted({row[-1] for row in rows})
    features = [[*values, 1.0] for values in zip(*columns)]
    return [(x, classes.index(row[-1])) for x, row in zip(features, rows)], classes


def descend(weights, examples):
    """One step down the gradient of all examples; returns the mean cross-entropy before it."""
    loss = 0.0
    gradient = [[0.0] * len(row) for row in weights]
    for x, label in examples:
        scores = [sum(w * value for w, value in zip(row, x)) for row in weights]
        highest = max(scores)  # keeps exp() in range
        powers = [math.exp(score - highest) for score in scores]
        total = sum(powers)
        chances = [power / total for power in powers]
        loss -= math.log(chances[label])
        for k, chance in enumerate(chances):
            for j, value in enumerate(x):
                gradient[k][j] += (chance - (k == label)) * value
    for row, slope in zip(weights, gradient):
        for j, value in enumerate(slope):
            row[j] -= LEARNING_RATE * value / len(examples)
    return loss / len(examples)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--kill-at", type=int, metavar="EPOCH", help="the first attempt kills itself after it")
    args = parser.parse_args()

    job = train.submit(args.epochs, args.kill_at)
    for line in job.logs(follow=True):
        print(line)
    loss, attempt, first = job.result()
    print(f"attempt {attempt} began after epoch {first} and came to loss {loss:.6f}")


if __name__ == "__main__":
    main()
