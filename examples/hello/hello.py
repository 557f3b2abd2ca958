"""A function that runs here, elsewhere, and elsewhere many times; what it raises comes back as itself."""

import os

import gpulayer as gl


@gl.remote(memory="256MiB")
def root(number):
    """Square root by Newton's method, in a process of its own."""
    if number < 0:
        raise ValueError(f"{number} has no real root")
    guess = max(number, 1.0)
    while abs(guess * guess - number) > 1e-12 * max(number, 1.0):
        guess = (guess + number / guess) / 2
    return guess


@gl.remote
def process():
    return os.getpid()


def main():
    print("here:       ", root(2))
    print("elsewhere:  ", root.run(2))
    print("another process:", process.run() != os.getpid())
    print("many:       ", [f"{value:.3f}" for value in root.map(range(5))])

    print("one is wrong:", root.map([4, -1, 9], return_exceptions=True).result())
    try:
        root.run(-2)
    except ValueError as error:
        print("raised here:", error)
        # Where it was raised there: the traceback's last lines.
        print(*str(error.__cause__).strip().splitlines()[-4:-2], sep="\n")


if __name__ == "__main__":
    main()
