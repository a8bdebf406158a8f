"""Why an audit is inconclusive, as codes that a pipeline can accept."""

from __future__ import annotations

from typing import Final, Literal

Code = Literal[
    "holds-samples",
    "too-many-samples",
    "other-samples",
    "budget",
    "unfinished",
    "sees-nothing",
    "not-covered",
    "sets-differ",
    "unseen-trained",
    "too-few-samples",
    "no-labels",
    "no-gradients",
    "no-base",
]
MEANINGS: Final[dict[Code, str]] = {
    "holds-samples": "membership shows, in the weights or in the outputs; no attack here reconstructs a sample",
    "too-many-samples": "the weights hold more samples than an attack here can separate",
    "other-samples": "the weights hold far more samples than were given",
    "budget": "an attack was stopped by its time limit",
    "unfinished": "an attack ended before it had tried everything, or none was made by this audit",
    "sees-nothing": "the attacked layer shows nothing to work on, so the audit could not see a leak",
    "not-covered": "a part of the model or of its file is read by no attack",
    "sets-differ": "private and unseen samples are not comparable: they differ without any model",
    "unseen-trained": "the model may have been trained on the unseen samples",
    "too-few-samples": "there are too few samples to decide",
    "no-labels": "the samples have no labels, so nothing shows whether they are those of this model",
    "no-gradients": "the outputs have no gradients, so only the weights could be checked",
    "no-base": "the policy asks about exact samples, and nothing can be exact without the initial weights",
}
