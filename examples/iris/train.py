"""Trains a softmax classifier on Fisher's iris measurements.

Plain Python, standard library only. Prints the loss of every epoch as it goes,
writes `model.json` into the current folder, and ends with the accuracy on
flowers it has not seen. The same seed gives the same model.
"""

import argparse
import csv
import json
import math
import random
import time
from pathlib import Path

TABLE = Path(__file__).with_name("iris.csv")
HELD_OUT = 0.2  # share of each species kept for the final check
BATCH = 8
LEARNING_RATE = 0.3


def read_flowers(path):
    """Returns the feature names and a list of (features, species)."""
    with open(path, newline="") as table:
        rows = csv.reader(table)
        header = next(rows)
        flowers = [([float(cell) for cell in row[:-1]], row[-1]) for row in rows]
    return header[:-1], flowers


def split(flowers, classes, rng):
    """Holds out the same share of every species, so that the check is fair to each."""
    training, held_out = [], []
    for species in classes:
        of_species = [flower for flower in flowers if flower[1] == species]
        rng.shuffle(of_species)
        cut = round(len(of_species) * HELD_OUT)
        held_out += of_species[:cut]
        training += of_species[cut:]
    return training, held_out


def column_scales(training):
    """Mean and standard deviation of every feature, from the training flowers alone."""
    columns = list(zip(*(features for features, _ in training)))
    means = [sum(column) / len(column) for column in columns]
    deviations = [
        math.sqrt(sum((value - mean) ** 2 for value in column) / len(column))
        for column, mean in zip(columns, means)
    ]
    return means, deviations


def scaled(features, means, deviations):
    """Centred and scaled features, with a constant 1 at the end for the bias."""
    return [(x - mean) / deviation for x, mean, deviation in zip(features, means, deviations)] + [1.0]


def probabilities(weights, x):
    """Softmax over one row of weights per class."""
    scores = [sum(w * value for w, value in zip(row, x)) for row in weights]
    highest = max(scores)  # keeps exp() in range
    powers = [math.exp(score - highest) for score in scores]
    total = sum(powers)
    return [power / total for power in powers]


def sgd_epoch(weights, examples, rng):
    """One pass over the examples in small batches; returns the mean cross-entropy loss."""
    rng.shuffle(examples)
    loss = 0.0
    for start in range(0, len(examples), BATCH):
        batch = examples[start : start + BATCH]
        gradient = [[0.0] * len(row) for row in weights]
        for x, label in batch:
            chances = probabilities(weights, x)
            loss -= math.log(max(chances[label], 1e-12))
            for k, chance in enumerate(chances):
                error = chance - (k == label)
                for j, value in enumerate(x):
                    gradient[k][j] += error * value
        for row, slope in zip(weights, gradient):
            for j, value in enumerate(slope):
                row[j] -= LEARNING_RATE * value / len(batch)
    return loss / len(examples)


def accuracy(weights, examples):
    right = 0
    for x, label in examples:
        chances = probabilities(weights, x)
        right += chances.index(max(chances)) == label
    return right / len(examples)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pause", type=float, default=0.05, help="seconds between epochs, to watch it stream")
    args = parser.parse_args()

    rng = random.Random(args.seed)
    feature_names, flowers = read_flowers(TABLE)
    classes = sorted({species for _, species in flowers})
    training, held_out = split(flowers, classes, rng)
    means, deviations = column_scales(training)

    def prepared(rows):
        return [(scaled(features, means, deviations), classes.index(species)) for features, species in rows]

    examples, checks = prepared(training), prepared(held_out)
    print(f"{len(examples)} flowers to learn from, {len(checks)} held out, {len(classes)} species", flush=True)

    weights = [[0.0] * (len(feature_names) + 1) for _ in classes]
    for epoch in range(1, args.epochs + 1):
        loss = sgd_epoch(weights, examples, rng)
        print(f"epoch {epoch:3d}/{args.epochs}  loss {loss:.4f}", flush=True)
        time.sleep(args.pause)

    share = accuracy(weights, checks)
    model = {
        "classes": classes,
        "features": feature_names,
        "means": means,
        "deviations": deviations,
        "weights": weights,  # one row per class; the last column is the bias
        "epochs": args.epochs,
        "seed": args.seed,
        "held_out_accuracy": share,
    }
    Path("model.json").write_text(json.dumps(model, indent=2) + "\n")
    print(f"held-out accuracy {share:.3f}  (wrote model.json)", flush=True)


if __name__ == "__main__":
    main()
