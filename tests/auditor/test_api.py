"""Modules and arrays of a user's own: taken as they are, or refused with everything that is wrong."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import unfit
from unfit import (
    Audit,
    AuditRequest,
    Auto,
    Cone,
    FitSettings,
    Peel,
    Policy,
    Samples,
    Target,
    UnfitError,
    Unmix,
    as_target,
    attack,
    audit,
    draw_unseen,
    find_initial_weights,
    fit,
    load_audit,
    load_candidates,
    load_target,
    preflight,
)
from unfit.attacker.candidates import Part, pool
from unfit.auditor.arrays import as_samples, opened, shape_of
from unfit.auditor.case import private_set
from unfit.base.errors import DataCheckError, UsageError
from unfit.base.images import stretch
from unfit.base.nets import Architecture, outputs


class Named(nn.Module):
    """Written with functions, and its layers declared in another order than they are called in."""

    def __init__(self, activation: Callable[[Tensor], Tensor] = F.relu, skip: bool = False) -> None:
        super().__init__()
        self.head = nn.Linear(20, 3)
        self.body = nn.Linear(30, 20, bias=False)
        self.stem = nn.Linear(64, 30)
        self.drop = nn.Dropout(0.5)
        self.activation, self.skip = activation, skip

    def forward(self, x: Tensor) -> Tensor:
        first = F.relu(self.stem(x.flatten(1)))
        second = self.activation(self.body(self.drop(first)))
        return self.head(second + first[:, :20] if self.skip else second)


class Normalised(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x - 0.5) / 0.5


def sequential(*middle: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 30), *middle, nn.Linear(30, 2))


MODULES: dict[str, tuple[nn.Module, Architecture]] = {
    "functions": (Named(), Architecture((1, 8, 8), (30, 20), 3, (True, False, True))),
    "vector": (
        nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 1)),
        Architecture((5,), (7,), 1, (True, True)),
    ),
    "flat pictures": (
        nn.Sequential(nn.Linear(192, 7), nn.ReLU(), nn.Linear(7, 1)),
        Architecture((3, 8, 8), (7,), 1, (True, True)),
    ),
    "convolution": (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 6), nn.ReLU(), nn.Linear(6, 2)),
        Architecture((3, 8, 8), (6,), 2, (True, True, True), (3, 4)),
    ),
    "one output squeezed": (
        nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 1), nn.Flatten(0)),
        Architecture((5,), (7,), 1, (True, True)),
    ),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_rebuilt_and_behaves_the_same(name: str) -> None:
    module, architecture = MODULES[name]
    target = as_target(module.train())
    assert target.architecture == architecture
    assert module.training  # the user's own is left as it was
    x = torch.randn(9, *architecture.input_shape)
    seen = x.flatten(1) if name == "flat pictures" else x
    expected = module.eval()(seen).detach().view(9, -1)
    assert torch.allclose(outputs(target.net(), x), expected, atol=1e-6)


def test_the_projects_own_nets_and_double_precision_are_taken(face_run: Path) -> None:
    target = load_target(face_run)
    again = as_target(target.net().double())
    assert again.sha256 == target.sha256
    assert again.architecture == target.architecture
    assert as_target(target) is target


def test_the_weights_are_a_copy() -> None:
    module = sequential(nn.ReLU())
    target = as_target(module)
    before = target.sha256
    nn.init.zeros_(module[1].weight)
    assert target.sha256 == before


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (nn.Sequential(nn.Flatten(), nn.LazyLinear(3)), ["1.weight, 1.bias: no values yet", "run the model once"]),
        (nn.Sequential(nn.Flatten()), ["no dense layer"]),
        (
            nn.Sequential(nn.Embedding(9, 64), nn.Linear(64, 2)),
            ["looks its inputs up in an embedding (0)", "tokens"],
        ),
        (nn.LSTM(64, 5), ["no dense layer"]),
        (
            nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)),
            ["the last one, 4: its 2 × 4 weights", "this is no pass", "`layer` attacks the last one all the same"],
        ),
        (nn.Sequential(nn.Unflatten(1, (4, 16)), nn.Linear(16, 8)), ["used several times for a sample"]),
        ("model.pt", ["expected a torch.nn.Module", "str"]),
    ],
)
def test_what_does_not_fit_is_named(module: nn.Module, says: list[str]) -> None:
    shape = (64,) if isinstance(module, nn.Sequential) and isinstance(module[0], nn.Unflatten) else None
    with pytest.raises(UnfitError) as error:
        as_target(module, shape)
    assert all(part in str(error.value) for part in says), str(error.value)


def test_a_module_used_twice_is_refused() -> None:
    shared = nn.Linear(64, 64)
    with pytest.raises(UnfitError, match="the last one, 5"):
        as_target(nn.Sequential(nn.Flatten(), shared, nn.ReLU(), shared, nn.ReLU(), nn.Linear(64, 1)))


def test_a_module_with_nan_is_refused() -> None:
    module = sequential(nn.ReLU())
    nn.init.constant_(module[1].bias, torch.nan)
    with pytest.raises(UnfitError, match=r"1\.bias has values that are NaN"):
        as_target(module)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_torchscript_is_refused_by_name() -> None:
    with pytest.raises(UnfitError, match="it is TorchScript, whose layers cannot be watched"):
        as_target(torch.jit.script(sequential(nn.ReLU())))


def test_an_input_shape_that_the_layers_do_not_tell_is_asked_for() -> None:
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(2 * 4 * 6, 1))
    with pytest.raises(UnfitError, match="pass one sample’s shape as `input_shape`"):
        as_target(module)
    assert as_target(module, (1, 6, 8)).architecture.input_shape == (1, 6, 8)
    with pytest.raises(UnfitError, match="called with 16 samples of shape 1×9×9"):
        as_target(module, (1, 9, 9))


X = torch.rand(6, 1, 8, 8)
Y = torch.tensor([0, 1, 0, 1, 0, 1])


def one(x: Any = X, y: Any = Y, shape: tuple[int, ...] = (1, 8, 8), outputs: int = 1) -> Samples:
    return as_samples((x, y), (X, Y) if shape == (1, 8, 8) else (x, y), shape, outputs)[0]


@pytest.mark.parametrize(
    "x", [X, X.numpy(), X.double(), X.flatten(1), X[:, 0], X.tolist(), X.clone().requires_grad_()]
)
def test_arrays_of_many_kinds_are_the_same_samples(x: Any) -> None:
    samples = one(x)
    assert torch.allclose(samples.x, X)
    assert torch.equal(samples.centred(samples.mean).x, samples.x)  # nothing is subtracted
    assert samples.indices.tolist() == [0, 1, 2, 3, 4, 5]


def test_eight_bits_become_unit_range() -> None:
    assert torch.allclose(one((X * 255).round().to(torch.uint8)).x, X, atol=1 / 255)


def test_normalised_pictures_are_shown_in_unit_range_and_seen_as_given() -> None:
    given = (X - 0.3) / 0.2
    private, unseen = as_samples((given, Y), (given[:3] - 1, Y[:3]), (1, 8, 8), 1)
    assert float(unseen.x.min()) == pytest.approx(0, abs=1e-6)
    assert float(private.x.max()) == pytest.approx(1, abs=1e-6)
    assert torch.allclose(private.centred(private.mean).x, given, atol=1e-5)
    assert torch.allclose(unseen.centred(private.mean).x, given[:3] - 1, atol=1e-5)
    assert torch.allclose(stretch(private.x), stretch(given), atol=1e-5)


@pytest.mark.parametrize(
    ("y", "names"),
    [
        ([0, 1, 0, 1, 0, 1], ("0", "1")),
        (np.array([0.0, 1, 0, 1, 0, 1])[:, None], ("0", "1")),
        ([False, True] * 3, ("0", "1")),
        ([-1, 1, -1, 1, -1, 1], ("-1", "1")),
        ([3, 7, 3, 7, 3, 7], ("3", "7")),
    ],
)
def test_labels_of_one_output(y: Any, names: tuple[str, ...]) -> None:
    samples = as_samples((X, y), (X, y), (1, 8, 8), 1)[0]
    assert samples.y.tolist() == [0, 1, 0, 1, 0, 1]
    assert samples.class_names == names


def test_labels_of_several_outputs_are_positions() -> None:
    samples = one(y=[2, 2, 0, 0, 2, 0], outputs=3)
    assert samples.y.tolist() == [2, 2, 0, 0, 2, 0]
    assert samples.class_names == ("0", "1", "2")


BAD = X.clone()
BAD[0, 0, 0, :2] = torch.nan


@pytest.mark.parametrize(
    ("private", "says"),
    [
        ((BAD, Y[:4]), ["private: x has 2 values that are NaN"]),
        ((X, Y[:4]), ["private: 6 samples but 4 labels"]),
        ((X[:, :, :, :7], Y), ["private: x has shape (6, 1, 8, 7), the model expects (n, 1, 8, 8)"]),
        (
            (X, F.one_hot(Y, 3)),
            ["private: y has shape (6, 3): pass one class per sample, or a number for each of the 1"],
        ),
        ((X, [7] * 6), ["private: found labels 7, expected 0, 1"]),
        ((["a", "b"], [[1], [1, 2]]), ["x is not an array of numbers", "y is not an array of numbers or strings"]),
        ((X[:0], Y[:0]), ["x is empty", "y is empty"]),
        (X, ["one set has labels (y), the other has none: give both, or neither"]),
        ((X * 1j, Y), ["x is not an array of numbers"]),
        (([[1], [1, 2]], Y), ["x is not an array of numbers"]),
    ],
)
def test_everything_wrong_with_the_samples_is_in_one_error(private: Any, says: list[str]) -> None:
    with pytest.raises(UnfitError) as error:
        as_samples(private, (X[:, :1, :2], Y), (1, 8, 8), 1)
    message = str(error.value)
    assert all(part in message for part in says), message
    assert "unseen: x has shape (6, 1, 2, 8)" in message


def test_the_shape_of_a_sample_where_the_arrays_tell_it() -> None:
    shapes = [shape_of(opened((x, Y))) for x in (X, X[:, 0], X.flatten(1), 3, [[1], [1, 2]])]
    assert shapes == [(1, 8, 8), (8, 8), (64,), None, None]


def test_arrays_as_the_net_sees_them_and_samples_as_stored_give_the_same_evidence(
    face_run: Path, face_audit: Audit
) -> None:
    """The papers' protocol adds the mean, which arrays do not tell, so similarities differ; the finding hardly."""
    source, private = private_set(AuditRequest(target=face_run))
    unseen = draw_unseen(source, private, len(private), 0)
    mean, net = private.mean, load_target(face_run).net()
    again = audit(net, (private.x - mean, private.y), (unseen.x - mean, unseen.y))
    assert again.verdict == "leak"
    assert abs(again.record.num_recovered - face_audit.record.num_recovered) <= 6
    assert torch.allclose(again.arrays["output"], face_audit.arrays["output"], rtol=1e-3)
    assert len(again.recovered) == again.record.num_recovered


def test_a_fine_tuned_module_and_its_base_prove_samples(face_run: Path) -> None:
    _, private = private_set(AuditRequest(target=face_run))
    x, y = private.x[10:30] - private.mean, private.y[10:30]
    architecture = Architecture((1, 25, 25), (1000,), 1, (True, True))
    fitted = fit(architecture, (x, y), (x, y), FitSettings(init=None))
    model, initial = (Target(architecture, weights).net() for weights in (fitted.weights, fitted.initial))
    candidates = attack(model, base=initial)
    assert candidates.facts["estimated_num_samples"] == 20
    assert candidates.proven.sum() >= 6
    with pytest.raises(UnfitError, match=r"the base is 625-30-1, the model 625-1000-1: `base` must be"):
        attack(model, base=nn.Sequential(nn.Flatten(), nn.Linear(625, 30), nn.ReLU(), nn.Linear(30, 1)))


def test_an_untrained_module_is_never_a_pass() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(625, 300), nn.ReLU(), nn.Linear(300, 2))
    random = torch.Generator().manual_seed(0)
    x, y = torch.rand(40, 1, 25, 25, generator=random), torch.arange(40) % 2
    with pytest.raises(DataCheckError, match="guessing"):
        audit(module, (x[:20], y[:20]), (x[20:], y[20:]))


def test_an_audit_writes_itself(face_audit: Audit, face_page: Path, tmp_path: Path) -> None:
    path = tmp_path / "new" / "audit.json"
    assert (
        face_audit.to_json(path)
        == face_audit.to_json()
        == path.read_text()
        == (face_page / "audit.json").read_text()
    )
    html = face_audit.to_html(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == html == (face_page / "index.html").read_text()
    assert json.loads(path.read_text())["num_recovered"] == len(face_audit.recovered)


def test_a_notebook_shows_the_decision_and_the_pairs(face_audit: Audit) -> None:
    shown = face_audit._repr_html_()
    assert ">LEAK</b>" in shown
    assert f"{face_audit.num_recognisable}<span" in shown
    assert "unseen: 0 of 40" in shown
    assert shown.count('src="data:image/png;base64,') == 1
    assert "<script" not in shown
    assert len(shown) < 200_000


def test_what_a_notebook_shows_is_escaped(face_audit: Audit) -> None:
    nasty = "<script>alert(1)</script>"
    target = face_audit.record.target.model_copy(update={"architecture": nasty})
    changes = {"target": target, "reasons": [nasty], "verdict": "inconclusive"}
    record = face_audit.record.model_copy(update=changes)
    found = preflight(as_target(MODULES["vector"][0]))
    shown = [
        Audit(record, face_audit.arrays)._repr_html_(),
        pool([Part("a", torch.zeros(2, 3))], {"method": nasty}, {"seconds": 0.0})._repr_html_(),
        replace(found, notes=[nasty], architecture=nasty)._repr_html_(),
    ]
    assert all("<script" not in each and "&lt;script&gt;" in each.lower() for each in shown)
    assert shown[0].count("&lt;script&gt;") == 2  # of the net and of the reason


def test_a_preflight_shows_itself_in_a_notebook() -> None:
    found = preflight(as_target(MODULES["vector"][0]))
    shown = found._repr_html_()
    assert all(
        f">{applicability.attack.replace(chr(39), '&#x27;')}</td>" in shown for applicability in found.attacks
    )
    assert f"{found.num_parameters} parameters" in shown
    assert "\n" not in repr(found)


def test_a_log_gets_one_line_and_no_value_of_any_sample(face_audit: Audit) -> None:
    record = face_audit.record
    line = repr(face_audit)
    assert line == (
        f"Audit(leak: {record.num_exact} exact, {record.num_recognisable} recognisable, {record.num_recovered} "
        "recovered of 40 samples, by an attacker who has the weights and nothing else)"
    )
    assert "similarity=" in repr(record)  # its threshold and the like …
    assert f"{record.samples[0].similarity}" not in repr(record)  # … but no sample's
    secret = torch.full((2, 3), 0.1234)
    samples = as_samples((secret, [0, 1]), (secret, [0, 1]), (3,), 1)[0]
    assert repr(samples) == "Samples(2 of shape 3, classes 0, 1)"
    assert repr(pool([Part("a", secret)], {"method": "unmix"}, {"seconds": 0.0})) == (
        "Candidates(2 of shape 3, by unmix)"
    )
    assert len(repr(as_target(MODULES["vector"][0]))) < 100


def test_counts_and_summary_are_those_of_the_record(face_audit: Audit, face_page: Path) -> None:
    again = load_audit(str(face_page))
    record = face_audit.record
    assert (again.num_recovered, again.num_exact) == (record.num_recovered, record.num_exact)
    lines = face_audit.summary().splitlines()
    assert lines[0] == f"leak: {record.num_recognisable} of 40 training images can be recovered from this file."
    line = f"(similarity above {record.recognisable_line:.2f})"
    assert f"recognisable   {record.num_recognisable} of 40, unseen 0 of 40 {line}" in lines
    assert len(lines) < len(face_audit.summary(verbose=True).splitlines())
    assert max(map(len, lines)) <= 100


def test_some_candidates_are_candidates_and_come_back_from_a_file(tmp_path: Path) -> None:
    x = torch.arange(12.0).view(4, 3)
    part = Part("a", x, proven=torch.tensor([False, True, False, True]))
    made = {"method": "unmix", "settings": {}, "seed": 0, "base": False}
    read = {"target": 64 * "0", "spectrum": [1.0], "noise_edge": 0.5, "rank": 1, "estimated_num_samples": None}
    candidates = pool([part], made, read | {"status": "finished", "seconds": 0.0})
    chosen = {"slice": candidates[1:3], "mask": candidates[candidates.proven], "list": candidates[[3, 0]]}
    assert {name: each.x[:, 0].tolist() for name, each in chosen.items()} == {
        "slice": [3, 6],
        "mask": [3, 9],
        "list": [9, 0],
    }
    assert len(candidates[-1]) == len(candidates[2].origin) == 1
    assert len(candidates[[]]) == 0
    assert [float(each.x[0, 0]) for each in candidates] == [0, 3, 6, 9]
    candidates[:3].save(str(tmp_path / "c.safetensors"))
    again = load_candidates(str(tmp_path / "c.safetensors"))
    assert torch.equal(again.x, x[:3])
    assert again.proven.tolist() == [False, True, False]
    assert (tmp_path / "c.safetensors").stat().st_mode & 0o777 == 0o600


def test_budgets_are_times_as_on_the_command_line() -> None:
    assert (Auto(budget="60s").budget, Peel(budget="1.5m").budget, Cone(budget=7).budget) == (60, 90, 7)
    assert Policy(min_budget="1h").min_budget == 3600
    for wrong in ("soon", "-1s", "0", "nan"):
        with pytest.raises(ValueError, match="is not a time such as 60s, 10m or 1h"):
            Auto(budget=wrong)
    with pytest.raises(UnfitError, match="`budget`: 'soon' is not a time"):
        find_initial_weights(MODULES["vector"][0], budget="soon")


def test_progress_true_shows_a_bar_and_false_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    model = MODULES["flat pictures"][0]
    attack(model, "weights", progress=True)
    assert "attacking" in capsys.readouterr().err
    attack(model, "weights", progress=False)
    assert not capsys.readouterr().err


FUNCTIONS = sorted(name for name in unfit.__all__ if inspect.isroutine(getattr(unfit, name)))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_parameter_is_described_and_there_is_an_example(name: str) -> None:
    words = inspect.getdoc(getattr(unfit, name)) or ""
    assert "Example:" in words
    for parameter in inspect.signature(getattr(unfit, name)).parameters:
        assert re.search(rf"^    {parameter}: \S", words, re.M), parameter


def test_the_names_are_all_in_the_overview_of_the_module() -> None:
    told = set(re.findall(r"\w+", unfit.__doc__ or ""))
    assert set(unfit.__all__) - told == {
        "Preflight",
        "InitialWeights",
        "IdAudit",
    }  # what preflight, find_initial_weights and audit_ids give


def test_candidates_as_pictures() -> None:
    x = torch.randn(50, 3, 8, 8)
    candidates = pool([Part("a", x)], {"method": "unmix"}, {"seconds": 0.0})
    images = candidates.images()
    assert images.amin((1, 2, 3)).abs().max() == 0
    assert images.amax((1, 2, 3)).sub(1).abs().max() < 1e-6
    assert ">UNMIX</b>" in candidates._repr_html_()
    assert ">50 candidates<" in candidates._repr_html_()
    assert "data:image/png" in candidates._repr_html_()
    assert "<img" not in pool([Part("a", x[:0])], {}, {"seconds": 0.0})._repr_html_()
    vectors = pool([Part("a", x.flatten(1))], {}, {"seconds": 0.0})
    assert "<img" not in vectors._repr_html_()
    with pytest.raises(UnfitError, match="are not images: take them from `x`"):
        vectors.images()


def test_progress_shows_where_somebody_watches_and_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    from unfit.base.progress import is_watched, quiet, reporting

    assert not is_watched()  # pytest keeps what is written
    with reporting(None, "auditing") as report:
        assert report is quiet
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert is_watched()
    with reporting(False, "auditing") as report:
        assert report is quiet
    with reporting(None, "auditing") as report:
        assert report is not quiet


def test_a_budget_is_that_of_the_attack() -> None:
    from unfit.auditor.audit import with_budget

    assert with_budget(Auto(), "60s") == Auto(budget=60)
    assert with_budget(Unmix(), None) == Unmix()
    for value, words in ((Unmix(), "takes no `budget`"), (Auto(budget="10s"), "given twice")):
        with pytest.raises(UsageError, match=words):
            with_budget(value, "60s")
