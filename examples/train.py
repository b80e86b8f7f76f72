#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small neural network on the 1,797 handwritten digits that scikit-learn carries, and saves it beside itself.

    vrun -P local -- python3 examples/train.py [--epochs 30]

Nothing in it knows of vrun: it is an ordinary script with ordinary files.
"""
import argparse
import pathlib
import time

import numpy as np
from sklearn.datasets import load_digits


def softmax(z):
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


class MLP:
    """Two layers, ReLU, cross-entropy, SGD with momentum."""

    def __init__(self, inputs, hidden, classes, rng):
        self.p = {
            "w1": rng.normal(0, np.sqrt(2 / inputs), (inputs, hidden)), "b1": np.zeros(hidden),
            "w2": rng.normal(0, np.sqrt(2 / hidden), (hidden, classes)), "b2": np.zeros(classes),
        }
        self.v = {k: np.zeros_like(x) for k, x in self.p.items()}

    def forward(self, x):
        h = np.maximum(x @ self.p["w1"] + self.p["b1"], 0)
        return h, softmax(h @ self.p["w2"] + self.p["b2"])

    def step(self, x, y, rate, momentum=0.9):
        h, out = self.forward(x)
        loss = -np.log(out[np.arange(len(y)), y] + 1e-12).mean()
        d = out
        d[np.arange(len(y)), y] -= 1
        d /= len(y)
        dh = (d @ self.p["w2"].T) * (h > 0)
        grads = {"w2": h.T @ d, "b2": d.sum(0), "w1": x.T @ dh, "b1": dh.sum(0)}
        for k, g in grads.items():
            self.v[k] = momentum * self.v[k] - rate * g
            self.p[k] += self.v[k]
        return loss

    def accuracy(self, x, y):
        return (self.forward(x)[1].argmax(axis=1) == y).mean()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--hidden", type=int, default=128)
    options = parser.parse_args()

    rng = np.random.default_rng(0)
    digits = load_digits()
    order = rng.permutation(len(digits.target))
    x, y = digits.data[order] / 16.0, digits.target[order]
    split = len(y) * 4 // 5
    model = MLP(x.shape[1], options.hidden, 10, rng)

    began = time.time()
    for epoch in range(1, options.epochs + 1):
        batches = rng.permutation(split)
        losses = [model.step(x[b], y[b], 0.05) for b in np.array_split(batches, max(1, split // 32))]
        if epoch == 1 or epoch % 5 == 0 or epoch == options.epochs:
            print(f"epoch {epoch:3d}  loss {np.mean(losses):.4f}  test accuracy {model.accuracy(x[split:], y[split:]):.4f}",
                  flush=True)

    path = pathlib.Path(__file__).resolve().parent / "model.npz"
    np.savez(path, **model.p)
    print(f"accuracy {model.accuracy(x[split:], y[split:]):.4f} after {time.time() - began:.1f} s; saved {path}")


if __name__ == "__main__":
    main()
