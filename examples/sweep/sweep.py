"""Which model reads handwritten digits best: scikit-learn's own data set, one job per candidate.

The worker builds the environment that the jobs ask for, once, so that scikit-learn need not be installed here; with
`--installed` they run with that of this interpreter.
"""

import argparse

import gpulayer as gl

# A name and the words of each model; `fit` makes it, so that nothing of scikit-learn is needed here.
CANDIDATES = [
    ("linear_model.RidgeClassifier", {"alpha": 1.0}),
    ("naive_bayes.GaussianNB", {}),
    ("neighbors.KNeighborsClassifier", {"n_neighbors": 1}),
    ("neighbors.KNeighborsClassifier", {"n_neighbors": 15}),
    ("svm.SVC", {"C": 1.0}),
    ("svm.SVC", {"C": 10.0}),
    ("tree.DecisionTreeClassifier", {"random_state": 0}),
    ("ensemble.RandomForestClassifier", {"n_estimators": 50, "random_state": 0}),
]


@gl.remote(cpus=1, memory="1GiB", timeout="10m")
def fit(name, words):
    """The share of digits it has not seen that it reads rightly, the mean of three folds."""
    from importlib import import_module

    from sklearn.datasets import load_digits
    from sklearn.model_selection import cross_val_score

    module, _, kind = name.rpartition(".")
    model = getattr(import_module(f"sklearn.{module}"), kind)(**words)
    images, digits = load_digits(return_X_y=True)
    # A number of numpy would need numpy where it is read.
    return float(cross_val_score(model, images, digits, cv=3).mean())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--installed", action="store_true", help="use the scikit-learn of this interpreter")
    args = parser.parse_args()

    sweep = fit if args.installed else fit.options(python={"requirements": ["scikit-learn>=1.5,<2"]})
    runs = sweep.starmap(CANDIDATES)
    scores = {}
    for place, score in runs.as_completed():
        scores[place] = score
        print(f"{len(scores)}/{len(runs)} done")

    for place in sorted(scores, key=lambda place: -scores[place]):
        name, words = CANDIDATES[place]
        told = ", ".join(f"{word}={value}" for word, value in words.items())
        print(f"{scores[place]:.3f}  {name.rpartition('.')[2]}({told})")


if __name__ == "__main__":
    main()
