"""What scripts usually draw between the seed and the model: a shuffle, a split, a loader, another model.

Each takes a known amount of the generator's numbers, so a few hundred places are looked at for each usual seed.
The number of samples may be given; nothing else about them is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product

from unfit.base.errors import listed

KNOWN_SIZES = (60_000, 50_000, 70_000, 10_000, 150, 178, 442, 569, 1797)  # MNIST, CIFAR, scikit-learn's tables
LOADERS = (0, 2, 4)  # numbers that an iterator over a DataLoader takes: none yet, its seed, and that of a shuffle
MODELS = (0, 1, 2)  # others of the same size, built before
MOST = 1 << 23  # numbers before the network: those of a seed take a tenth of a second
NEAR = 1 << 17  # the same for seeds that are less usual


def usual_skips(num_parameters: int, sizes: Iterable[int] = ()) -> list[int]:
    """How many numbers are usually drawn before a network of this size, in rising order.

    Args:
        num_parameters: Of the network; each takes a number.
        sizes: Numbers of samples that may have been shuffled or split, besides those of known data sets.
    """
    # `randperm(n)`, and `random_split` of n samples, which calls it, take n - 1
    shuffles = {0, *(n - 1 for n in (*sizes, *KNOWN_SIZES) if n > 1)}
    found = {a + b + c * num_parameters for a, b, c in product(shuffles, LOADERS, MODELS)}
    return sorted(skip for skip in found if 0 < skip <= MOST)


def usual_words(sizes: Sequence[int] = ()) -> str:
    """What was tried, in words."""
    given = f"{listed([f'{n:,}' for n in sizes])} and " if sizes else ""
    return f"usual seeds after a shuffle or split of {given}usual numbers of samples, a loader, and other models"
