"""What the weights hold of each sample: nothing of strangers, and what was planted of the others."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from unfit import AuditRequest, Auto, UnfitError, audit
from unfit.attacker.attacked_layer import check_base, read_layer
from unfit.auditor.case import case_of, read_case
from unfit.auditor.evidence import NO_GRADIENTS
from unfit.auditor.grading import best_grades, graded, recognisable_line
from unfit.auditor.signal_check import Reactions, ask_function, check_signal, maps_of, reactions
from unfit.base.errors import NotApplicableError
from unfit.base.nets import initialise
from unfit.base.target import Target

N, D, WIDTH = 30, 200, 100


def sets(seed: int) -> tuple[Tensor, Tensor]:
    """Private and unseen samples of one kind: a few strong common directions, like those of pictures."""
    random = torch.Generator().manual_seed(seed)
    common = torch.randn(10, D, generator=random)
    x = torch.randn(2 * N, 10, generator=random) @ common + torch.randn(2 * N, D, generator=random)
    return x[:N], x[N:]


def asked(weight: Tensor, private: Tensor, unseen: Tensor) -> Reactions:
    private, unseen = (x - private.mean(0) for x in (private, unseen))  # as audits centre them
    found = reactions(torch.cat([private, unseen]), weight)
    return Reactions(found[:N], found[N:])


def test_strangers_are_told_from_unseen_samples_as_often_as_chance_does() -> None:
    """Private samples are centred by their own mean and unseen ones are not: that must not show."""
    p_values = []
    for seed in range(200):
        private, unseen = sets(seed)
        weight = torch.randn(WIDTH, D, generator=torch.Generator().manual_seed(1000 + seed))
        p_values.append(asked(weight, private, unseen).p_value(0.01))
    assert sum(p < 0.05 for p in p_values) <= 20
    assert sum(p < 0.5 for p in p_values) >= 40  # and it does not keep silent always


def test_samples_in_the_weights_are_held_however_much_noise_hides_them_from_attacks() -> None:
    private, unseen = sets(0)
    random = torch.Generator().manual_seed(1)
    columns = torch.randn(WIDTH, N, generator=random)
    columns[:, 10:] = 0  # ten were trained on
    noise = torch.randn(WIDTH, D, generator=random)
    found = asked(0.3 * columns @ private + noise, private, unseen)
    assert found.num_held(0.01) == 10
    assert (found.own[:10].min() > found.unseen.max()).item()
    assert found.p_value(0.01) < 0.01
    assert asked(noise, private, unseen).p_value(0.01) > 0.05


def test_a_function_tells_strangers_from_unseen_samples_as_often_as_chance_does() -> None:
    p_values = []
    for seed in range(100):
        private, unseen = sets(seed)
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(D, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1 + 2 * (seed % 2))).eval()
        y = torch.arange(N) % 2
        case = case_of(net, (private - private.mean(0), y), (unseen - private.mean(0), y))
        (found,) = ask_function(maps_of(case, case.layer), case.layer, case.target)
        p_values.append(found.p_value(0.01))
    assert sum(p < 0.05 for p in p_values) <= 10
    assert sum(p < 0.5 for p in p_values) >= 20


class Rounded(nn.Module):
    """Its outputs are constant almost everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(D, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.round(100 * self.layers(x)) / 100


def test_a_model_of_steps_is_asked_by_its_weights_alone_and_cannot_pass() -> None:
    torch.manual_seed(0)
    model = Rounded().eval()
    private, unseen = ((x, (model(x)[:, 0] > 0).long()) for x in sets(0))
    case = case_of(model, private, unseen)
    assert not check_signal(case, case.layer, 11).asked_function
    assert NO_GRADIENTS.reason in audit(model, private, unseen, attack=Auto(seeds=0)).record.reasons


def test_a_model_that_stops_gradients_is_refused() -> None:
    class Stopped(Rounded):
        @torch.no_grad()
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)

    private, unseen = ((x, (x[:, 0] > 0).long()) for x in sets(0))
    with pytest.raises(NotApplicableError, match="without gradients"):
        case_of(Stopped().eval(), private, unseen)


def test_the_upper_bound_is_above_the_attack_and_whole_where_the_span_is(face_run: str) -> None:
    case = read_case(AuditRequest(target=str(face_run), base=str(face_run)))
    known = check_signal(case, case.layer, 11)
    blind = check_signal(case, read_layer(case.target), 11)
    assert float(known.similarity.median()) > 0.9  # the change since the base holds most of every training image
    assert float(known.unseen_similarity.median()) < 0.6
    assert blind.similarity.mean() < known.similarity.mean()


def test_a_base_that_training_did_not_start_from_is_refused(face_run: str) -> None:
    case = read_case(AuditRequest(target=str(face_run), base=str(face_run)))
    check_base(case.layer)
    check_base(read_layer(case.target))
    other = Target(case.target.architecture, dict(initialise(case.target.architecture, None, 5).state_dict()))
    with pytest.raises(UnfitError, match=r"`base` does not fit.*more noise"):
        check_base(read_layer(case.target, other))


def test_the_line_of_recognisable_pictures() -> None:
    low = torch.full((40,), 0.2)
    assert recognisable_line(low, 0.3, "edge correlation") == 0.6
    assert recognisable_line(low, 0.3, "relative error") == 0.75
    assert recognisable_line(low, 0.9, "edge correlation") == pytest.approx(0.9)
    assert recognisable_line(torch.ones(40), 0.9, "edge correlation") == pytest.approx(0.9)


def test_the_line_is_what_one_in_a_thousand_unseen_samples_reach() -> None:
    """Of similarities as those of digits are: a normal tail would let 1 in 100 pass."""
    random = np.random.default_rng(0)
    for a, b in ((4.0, 10.0), (8.0, 12.0), (1.5, 12.0)):
        many = torch.from_numpy(random.beta(a, b, 200_000))
        lines = [recognisable_line(many[i : i + 60], 0.0, "edge correlation") for i in range(0, 12_000, 60)]
        above = [float((many > line).double().mean()) for line in lines if line > 0.6]
        assert all(line < 1 for line in lines)
        assert np.mean(above or [0.0]) < 0.003


def test_vectors_that_have_nothing_in_common_set_no_line() -> None:
    nothing = torch.zeros(40)
    assert recognisable_line(nothing, 0.0, "relative error") == 0.75
    nothing[:4] = torch.tensor([0.1, 0.2, 0.3, 0.4])
    assert 0.75 <= recognisable_line(nothing, 0.4, "relative error") < 0.95


def test_grades_go_from_proof_to_trace() -> None:
    exact, recovered = torch.tensor([True, False, False, False]), torch.tensor([False, True, True, False])
    grades = graded(torch.tensor([0.1, 0.9, 0.5, 0.5]), recovered, exact, line=0.6)
    assert best_grades(grades) == ["exact", "recognisable", "trace", None]
    assert {grade: int(which.sum()) for grade, which in grades.items()} == {
        "trace": 3,
        "recognisable": 2,
        "exact": 1,
    }


def test_a_copy_among_the_unseen_samples_is_left_out_of_the_control() -> None:
    """It would raise the threshold above every reconstruction, and hide the leak."""
    random = torch.Generator().manual_seed(0)
    x, y = torch.rand(40, 1, 8, 8, generator=random), torch.arange(40) % 2
    private, unseen = (x[:20], y[:20]), (x[20:].clone(), y[20:])
    unseen[0][3] = private[0][7] + 1e-6
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 10), torch.nn.ReLU(), torch.nn.Linear(10, 1)
    )
    case = case_of(model, private, unseen)
    assert (case.num_copies, len(case.unseen)) == (1, 19)
    assert torch.equal(case.unseen.x[3], unseen[0][4])
    unseen[0][:3] = private[0][:3]
    with pytest.raises(UnfitError, match="4 of 20 unseen samples are private ones"):
        case_of(model, private, unseen)
