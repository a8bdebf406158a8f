"""Everything that applies as one list, what runs agree on first; and that agreement means truth."""

import math
import time
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from trained import on_images
from unfit.attacker.attacked_layer import AttackedLayer, read_layer
from unfit.attacker.attacks import attack, named_attack
from unfit.attacker.attacks.auto import Auto
from unfit.attacker.candidates import Part
from unfit.attacker.consensus import (
    CONFIDENT,
    CROWDED,
    consensus,
    edges_of,
    find_clusters,
    not_too_smooth,
    orient,
    reliability,
    representative,
)
from unfit.attacker.costs import check_budget
from unfit.attacker.edges import tellable
from unfit.auditor.samples import draw
from unfit.auditor.sources import read_source
from unfit.base.budget import is_over, limited, seconds_left
from unfit.base.errors import UsageError
from unfit.base.nets import initialise, parse_architecture
from unfit.base.target import Target
from unfit.lab.fit import fit
from unfit.lab.settings import FitSettings


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def faces():
    """A face detector and what it was trained on, centred."""
    members = draw(read_source("faces"), 40, 0)
    members = members.centred(members.mean)
    architecture = parse_architecture("1000-1000", members.shape, 1)
    done = fit(architecture, (members.x, members.y), (members.x, members.y), FitSettings())
    return Target(architecture, done.weights, (-1.0, 1.0)), members


def test_confident_candidates_are_true_and_first(faces):
    target, members = faces
    found = attack(target)
    assert torch.equal(found.confidence, found.confidence.sort(descending=True).values)
    sure = found.confidence > CONFIDENT
    correlation = F.normalize(found.x[sure].flatten(1), dim=1) @ F.normalize(members.x.flatten(1), dim=1).T
    best = correlation.abs().max(1)
    true = best.values > 0.7
    assert sure.sum() >= 4
    assert true.double().mean() > 0.8


def test_the_sign_does_not_depend_on_the_sign_that_was_given(faces):
    target, members = faces
    x = members.x.flatten(1)
    flipped = torch.where(random(len(x), 1) > 0, x, -x)
    (one, label), (other, again) = (orient(given, read_layer(target)) for given in (x, flipped))
    assert ((one * other).sum(1) > 0).double().mean() > 0.95
    assert (label == again).double().mean() > 0.95
    assert ((one * x).sum(1) > 0).double().mean() > 0.55  # on faces little better than chance


def test_an_untrained_net_gives_nothing_to_be_confident_of(faces):
    target, _ = faces
    untrained = Target(
        target.architecture, dict(initialise(target.architecture, None, 3).state_dict()), (-1.0, 1.0)
    )
    found = attack(untrained)
    assert not (found.confidence > CONFIDENT).any()
    assert not found.proven.any()


def test_noise_does_not_agree_with_itself(faces):
    """Runs that found nothing in common give no candidate."""
    target, _ = faces
    layer = read_layer(target)
    assert consensus([random(30, layer.weight.shape[1], seed=seed) for seed in range(6)], layer) is None


def test_clusters_are_what_runs_have_in_common_up_to_sign():
    things = random(3, 200)
    runs = [things + 0.3 * random(3, 200, seed=1), -things[:2] + 0.3 * random(2, 200, seed=2), things[:1]]
    unit = F.normalize(torch.cat(runs), dim=1)
    origin = torch.tensor([0, 0, 0, 1, 1, 2])
    clusters = find_clusters(unit, origin)
    assert [cluster.num_runs for cluster in clusters] == [3, 2, 1]
    assert sorted(clusters[0].members.tolist()) == [0, 3, 5]
    assert torch.equal(representative(unit, clusters[0]), unit[5])  # the one without noise


def test_all_evidence_moves_the_confidence_and_a_crowd_takes_it_away():
    usual, up = {"share": 0.7, "cohesion": 0.95, "flatness": 0.4, "roughness": -2.0}, torch.linspace(0, 0.3, 5)
    for name, sign in (("share", 1), ("cohesion", 1), ("flatness", -1), ("roughness", -1)):
        moved = {each: torch.full((5,), value) for each, value in usual.items()} | {name: usual[name] + up}
        roomy = reliability(**moved, crowding=0.0)
        assert (sign * roomy.diff() > 0).all()
        assert torch.equal(reliability(**moved, crowding=CROWDED), roomy)  # up to here there is room enough
        crowds = [reliability(**moved, crowding=CROWDED + more) for more in (0.0, 0.1, 0.3, 1.0)]
        assert all((less < more).all() for more, less in pairwise(crowds))


def test_mixtures_look_less_like_images_whatever_sign_and_scale():
    faces = draw(read_source("faces"), 50, 0).x.flatten(1)
    faces = faces - faces.mean(0)
    mixed = torch.stack([faces[i : i + 5].sum(0) for i in range(0, 50, 5)])
    (flat, rough), (flatter, rougher) = (edges_of(each, (1, 25, 25)) for each in (faces, mixed))
    assert flat.mean() < flatter.mean() - 0.05
    assert edges_of(random(9, 625), (1, 25, 25))[1].min() > max(rough.max(), rougher.max())  # noise
    torch.testing.assert_close(torch.stack(edges_of(-3 * faces, (1, 25, 25))), torch.stack((flat, rough)))


def crowded(num_sources: int) -> AttackedLayer:
    """A layer of that many sources, on images whose edges can tell 36 apart."""
    shape, w = (1, 13, 13), 100
    assert tellable(shape) == 36
    weights = {
        "layer1.weight": random(w, num_sources) @ random(num_sources, 169, seed=1),
        "layer1.bias": random(w, seed=2),
        "layer2.weight": random(1, w, seed=3),
    }
    layer = read_layer(Target(parse_architecture(str(w), shape, 1), weights))
    assert layer.span.rank == num_sources
    return layer


def test_what_all_runs_agree_on_is_not_trusted_in_a_crowd_nor_if_it_is_noise():
    """Pictures with a bright bar each."""
    images = torch.zeros(5, 13, 13)
    for i, image in enumerate(images):
        image[2 * i : 2 * i + 2, 2:11] = 1
    runs = [images.flatten(1)] * 4
    roomy, crowd = (consensus(runs, crowded(num)) for num in (9, 32))
    assert len(roomy.x) == len(crowd.x) == 5
    assert roomy.confidence.min() > CONFIDENT
    assert crowd.confidence.max() < roomy.confidence.min()
    noise = consensus([random(5, 169, seed=4)] * 4, crowded(9))
    assert noise.confidence.max() < CONFIDENT


def test_in_a_crowd_components_smoother_than_kkt_candidates_go():
    noise = torch.rand((200, 1, 16, 16), generator=torch.Generator().manual_seed(0))
    broad = torch.linspace(0, 1, 16).expand(1, 1, 16, 16)
    mixed = torch.cat([broad, noise[:1]])
    runs, unmixed = (
        Part("kkt: run 1, iteration 60", noise, kind="kkt"),
        Part("unmix: rank 2", mixed, label=torch.tensor([0, 1]), kind="unmixed"),
    )
    sure = replace(unmixed, name="peel: exact", kind="other", proven=torch.ones(2, dtype=torch.bool))
    agreed = replace(unmixed, name="consensus", kind="agreed", confidence=torch.tensor([0.9, 0.1]))
    pooled = [sure, agreed, unmixed, runs]
    crowd, room = (
        SimpleNamespace(span=SimpleNamespace(rank=r), shape=(1, 16, 16)) for r in (tellable((1, 16, 16)), 2)
    )
    proven, *components, same = not_too_smooth(pooled, crowd)
    assert proven is sure
    assert same is runs
    for part in components:
        assert torch.equal(part.x, mixed[1:])
        assert part.label.tolist() == [1]
    assert components[0].confidence.item() == pytest.approx(0.1)
    assert not_too_smooth(pooled, room) == pooled
    assert not_too_smooth(pooled[:3], crowd) == pooled[:3]  # nothing to compare with


def test_a_base_leads_to_proofs_and_nothing_else_is_needed():
    target, initial, _, _ = on_images("faces", "400-100", 10)
    found = attack(target, base=initial)
    assert found.attack["method"] == "auto"
    assert found.proven.all()
    assert len(found) == 10


def test_a_budget_is_kept_and_what_was_found_in_time_is_there(faces):
    target, _ = faces
    whole = attack(target)
    assert whole.facts["status"] == "finished"
    short = attack(target, Auto(budget=whole.facts["seconds"] / 3))
    assert short.facts["status"] == "out of budget"
    assert 0 < len(short) < len(whole)


def test_one_end_holds_for_all_that_is_done_inside():
    assert seconds_left() == math.inf
    with limited(5.0):
        assert 0 < seconds_left() <= 5
        with limited(60.0):
            assert seconds_left() <= 5
        with limited(1.0, time.perf_counter() - 2):
            assert is_over()
        assert not is_over()
    assert seconds_left() == math.inf


def test_a_budget_that_not_even_the_spectrum_keeps_is_refused_at_once():
    wide = read_layer(
        Target(
            parse_architecture("1500", (5000,), 1),
            {
                "layer1.weight": torch.zeros(1500, 5000),
                "layer1.bias": torch.zeros(1500),
                "layer2.weight": torch.zeros(1, 1500),
            },
        )
    )
    check_budget(wide)
    with limited(0.01), pytest.raises(UsageError, match="1,500 neurons with 5,000 inputs alone takes about"):
        check_budget(wide)


@pytest.mark.parametrize("budget", [0.0, -1.0, float("nan")])
def test_a_budget_must_be_positive(budget):
    with pytest.raises(UsageError, match="budget"):
        named_attack(budget=budget)


def test_a_budget_is_refused_where_nothing_reads_it():
    with pytest.raises(UsageError, match="unmix does not use `budget`"):
        named_attack("unmix", budget=5.0)


def test_progress_says_how_many_are_confident(faces):
    words = []
    attack(faces[0], progress=lambda fraction, text: words.append(text))
    assert any("confident so far" in text for text in words)
