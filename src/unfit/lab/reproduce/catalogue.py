"""The table of all that can be reproduced: each figure and table of both papers is a row."""

from __future__ import annotations

from functools import partial

from unfit.base.errors import unknown
from unfit.lab.reproduce import buzaglo2023 as b23
from unfit.lab.reproduce import haim2022 as h22
from unfit.lab.reproduce.claims import come_back, few
from unfit.lab.reproduce.item import Item, best, claimed, row

COME_BACK = claimed(come_back, "training images come back", "those shown are recognisable")
COME_BACK_LEGIBLE = claimed(
    partial(come_back, kind="legible"), "training images come back", "those shown are recognisable"
)
FEW_INVERTED = claimed(
    partial(few, most=h22.HANDFUL),
    "inversion gives at most a handful, {data}",
    "class representatives",
    "inversion",
)
FEW_WEIGHTS = claimed(
    partial(few, most=h22.HANDFUL), "weights give at most a handful, {data}", "3 or 4", "weights"
)

ITEMS: tuple[Item, ...] = (
    row(
        "haim2022/fig1",
        "Fig 1: training images from a classifier of 50 CIFAR-10 images",
        15,
        h22.N50,
        best(),
        claimed(come_back, "training images come back", "most of those shown are recognisable"),
        paper=(
            "Vehicles against animals, d-1000-1000-1: recognisable copies of the training images come out of the "
            "weights."
        ),
    ),
    Item(
        "haim2022/fig2",
        "Fig 2: the scheme in two dimensions",
        75,
        (h22.CIRCLE,),
        h22.fig2,
        paper=(
            "20 points on a circle with alternating labels: all come back, after weak and double candidates are "
            "dropped."
        ),
    ),
    Item(
        "haim2022/fig3",
        "Fig 3: the best 45 of 500, CIFAR-10 and MNIST",
        70,
        (h22.N500, h22.MNIST),
        h22.fig3,
        paper="Test accuracies 77.6% and 88.0%; dozens of training images come back from each.",
    ),
    Item(
        "haim2022/fig4",
        "Fig 4: similarity against the model's output, for training sets and nets of many sizes",
        225,
        tuple(h22.FIG4.values()),
        h22.fig4,
        paper="Good reconstructions lie on the margin; more samples are harder; biases in all layers do no harm.",
    ),
    Item(
        "haim2022/fig5",
        "Fig 5: model inversion, and the weights as images",
        150,
        (h22.CIRCLE, h22.N500, h22.MNIST),
        h22.fig5,
        paper=(
            "In 2-D inversion finds 7 points of 20; of images it gives class representatives. Of the first "
            "layer's weights at most 3 or 4 resemble a training image."
        ),
        attacked=False,
        inverted=True,
    ),
    row("haim2022/fig6", "Fig 6: the best 45, d-1000-1000-1, n=100", 25, h22.N100, best(), COME_BACK),
    row("haim2022/fig7", "Fig 7: the best 45, d-1000-1000-1, n=1000", 50, h22.N1000, best(), COME_BACK),
    row("haim2022/fig8", "Fig 8: the best 45, d-100-100-1, n=500", 20, h22.NARROW, best(), COME_BACK),
    row("haim2022/fig9", "Fig 9: the best 45, d-1000-500-100-1, n=500", 35, h22.DEEP, best(), COME_BACK),
    row("haim2022/fig10", "Fig 10: the best 45, d-1000-500-100-50-1, n=500", 35, h22.DEEPER, best(), COME_BACK),
    row("haim2022/fig11", "Fig 11: the best 45, non-homogeneous, n=500", 30, h22.BIASED, best(), COME_BACK),
    row(
        "haim2022/fig12",
        "Fig 12: model inversion on CIFAR-10, ordered by the output",
        45,
        h22.N500,
        h22.inversions,
        FEW_INVERTED,
        h22.inversions_are_alike,
        paper="From many starts and settings it ends in similar, blurry images: averages of a class.",
        attacked=False,
        inverted=True,
    ),
    row(
        "haim2022/fig13",
        "Fig 13: model inversion on MNIST, ordered by the output",
        30,
        h22.MNIST,
        h22.inversions,
        FEW_INVERTED,
        h22.inversions_are_alike,
        attacked=False,
        inverted=True,
    ),
    row(
        "haim2022/fig14",
        "Fig 14: all weights of the first layer as images, CIFAR-10",
        10,
        h22.N500,
        h22.neurons,
        FEW_WEIGHTS,
        attacked=False,
    ),
    row(
        "haim2022/fig15",
        "Fig 15: all weights of the first layer as images, MNIST",
        10,
        h22.MNIST,
        h22.neurons,
        FEW_WEIGHTS,
        attacked=False,
    ),
    Item(
        "haim2022/fig16",
        "Fig 16: similarity against output beyond the theory: standard init, mini-batches, few epochs",
        195,
        (*h22.FIG16.values(), h22.N50, h22.N500),
        h22.fig16,
        paper=(
            "Standard init gives less than the small one; mini-batches work; 10⁴ epochs are nearly as good as 10⁶."
        ),
    ),
    row(
        "haim2022/fig17", "Fig 17: all 10 of a model with standard init", 5, h22.STANDARD10, best(10, 1), COME_BACK
    ),
    row("haim2022/fig18", "Fig 18: the best 10 of 50, standard init", 5, h22.STANDARD50, best(10, 1), COME_BACK),
    row(
        "haim2022/fig19",
        "Fig 19: the best 45 after 10⁴ epochs, CIFAR-10",
        60,
        h22.SHORT_CIFAR,
        best(),
        COME_BACK,
        h22.nearly_as_good,
        also=(h22.N500,),
    ),
    row(
        "haim2022/fig20",
        "Fig 20: the best 45 after 10⁴ epochs, MNIST",
        15,
        h22.SHORT_MNIST,
        best(),
        COME_BACK_LEGIBLE,
    ),
    row(
        "haim2022/fig21",
        "Fig 21: the best 45 of a model trained in mini-batches of 50",
        105,
        h22.SGD,
        best(),
        COME_BACK,
    ),
    Item(
        "haim2022/table1",
        "Table 1: training loss, test accuracy and test loss of the models of Fig 4",
        240,
        tuple(h22.TABLE1),
        h22.table1,
        paper=(
            "All reach a training accuracy of 100%; more samples give a better test accuracy, more layers "
            "the same."
        ),
        attacked=False,
    ),
    Item(
        "haim2022/table2",
        "Table 2: the same for the models beyond the theory, of Fig 16",
        160,
        tuple(h22.TABLE2),
        partial(h22.accuracies, rows=h22.TABLE2),
        attacked=False,
    ),
    Item(
        "buzaglo2023/fig3",
        "Fig 3: 50 samples of each class, from 2 to 10 classes",
        85,
        tuple(b23.BY_CLASS.values()),
        partial(b23.by_classes, setups=b23.BY_CLASS),
        paper="More classes leave more good reconstructions, though there are more samples too.",
    ),
    Item(
        "buzaglo2023/fig4",
        "Fig 4: regression losses with weight decay: L2, L2.5 and Huber, n=300",
        240,
        tuple(b23.REGRESSION.values()),
        b23.fig4,
        paper="Samples come back from models of all three, though no label and no margin is left in them.",
    ),
    Item(
        "buzaglo2023/fig5",
        "Fig 5: good reconstructions against weight decay, two classes and ten; baselines of init 1e-3",
        140,
        (*b23.DECAYED.values(), *b23.DECAYED10.values(), *b23.SUBMITTED.values()),
        partial(b23.by_decay, baselines=b23.SUBMITTED),
        paper="Certain weight decays make many more samples leak than small initial weights without any.",
    ),
    row(
        "buzaglo2023/fig6",
        "Fig 6: the best reconstructions from CONV(3, 32)-1000, n=500",
        20,
        b23.SHOWN,
        best(),
        claimed(come_back, "a convolutional net leaks", "yes"),
        paper="Whole images come back although no kernel is larger than 3×3.",
    ),
    Item(
        "buzaglo2023/fig8",
        "Fig 8: is SSIM 0.4 a fair threshold?",
        70,
        (h22.N500, h22.MNIST),
        b23.fig8,
        paper=(
            "Nearly all pairs above 0.4 look alike, and some below it. Beside it our calibration: what unseen "
            "samples reach."
        ),
    ),
    Item(
        "buzaglo2023/fig9",
        "Fig 9: Fig 5 with baselines of init 1e-4",
        145,
        (*b23.DECAYED.values(), *b23.DECAYED10.values(), *b23.BASELINE.values()),
        partial(b23.by_decay, baselines=b23.BASELINE),
        paper="The corrected baseline does not change the claim.",
    ),
    Item(
        "buzaglo2023/fig10",
        "Fig 10: 500 samples in all, from 2 to 10 classes",
        250,
        tuple(b23.FIXED.values()),
        b23.fig10,
        paper="More classes, more good reconstructions: with 10 classes over 6 times as many as with 2.",
    ),
    row(
        "buzaglo2023/fig11",
        "Fig 11: the best of the model trained with the L2 loss",
        75,
        b23.REGRESSION["l2"],
        best(20, 4),
        claimed(come_back, "l2 leaks", "yes"),
    ),
    row(
        "buzaglo2023/fig12",
        "Fig 12: the best of the model trained with |r|^2.5",
        75,
        b23.REGRESSION["l2.5"],
        best(20, 4),
        claimed(come_back, "l2.5 leaks", "yes"),
    ),
    row(
        "buzaglo2023/fig13",
        "Fig 13: the best of the model trained with the Huber loss",
        95,
        b23.REGRESSION["huber"],
        best(20, 4),
        claimed(come_back, "huber leaks", "yes"),
    ),
    Item(
        "buzaglo2023/fig14",
        "Fig 14: similarity against output for each weight decay, two classes of 50",
        75,
        tuple(b23.DECAYED.values()),
        b23.fig14,
        paper="Some decays put more samples on the margin; models that do not fit all their samples leak as well.",
    ),
    Item(
        "buzaglo2023/fig15",
        "Fig 15: kernel size against the number of channels",
        140,
        tuple(b23.CONV.values()),
        b23.fig15,
        paper="Fewer channels leak less; between small kernels and those of the whole image there is a dip.",
    ),
    row(
        "buzaglo2023/fig16",
        "Fig 16: the kernels of that model as images",
        20,
        b23.SHOWN,
        b23.kernels,
        b23.not_in_kernels,
        paper="No image can be seen in 3×3 pixels: what comes back is nowhere in the kernels.",
    ),
    Item(
        "buzaglo2023/fig17",
        "Fig 17: 5,000 samples of CIFAR-100, 10000-10000",
        180,
        (b23.LARGE,),
        b23.fig17,
        paper="Most samples are near the margin; a few dozen come back.",
    ),
)


def chosen(name: str) -> list[Item]:
    """One item, those of a paper, or all."""
    items = [item for item in ITEMS if name in (item.name, item.name.partition("/")[0], "all")]
    if not items:
        raise unknown("figure or table", name, ["all", "haim2022", "buzaglo2023", *(item.name for item in ITEMS)])
    return items
