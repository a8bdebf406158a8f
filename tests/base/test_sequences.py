"""Steps of values: recurrent nets, 1-D convolutions and encoders take them as their scripts give them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from unfit import UnfitError, as_target, audit
from unfit.attacker.attacks.unmix import Unmix
from unfit.base.errors import NotApplicableError
from unfit.base.shapes import ways
from unfit.base.whole import Whole


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], values: int) -> None:
        super().__init__()
        self.rnn = kind(values, 16, batch_first=True)
        self.head = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 2))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.rnn(x)[0][:, -1])
        return out


class Convolution(nn.Module):
    def __init__(self, channels: int, steps: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(channels, 4, 5, padding=2), nn.ReLU(), nn.Flatten())
        self.head = nn.Sequential(nn.Linear(4 * steps, 24), nn.ReLU(), nn.Linear(24, 2))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x))
        return out


class Encoder(nn.Module):
    """With learnt positions, which are added and not multiplied."""

    def __init__(self, values: int, steps: int) -> None:
        super().__init__()
        self.embed, self.pos = nn.Linear(values, 8), nn.Parameter(torch.zeros(1, steps, 8))
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.Linear(8 * steps, 24), nn.ReLU(), nn.Linear(24, 2))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.encoder(self.embed(x) + self.pos).flatten(1))
        return out


def whole_of(model: nn.Module, data: tuple[int, ...]) -> Whole:
    found = as_target(model, data_shape=data).whole
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("model", "axes"),
    [
        (Recurrent(nn.GRU, 1), (50, 1)),
        (Recurrent(nn.LSTM, 4), (50, 4)),
        (Convolution(1, 50), (1, 50)),
        (Convolution(3, 50), (3, 50)),
        (Encoder(1, 20), (20, 1)),
        (Encoder(4, 20), (20, 4)),
    ],
)
def test_steps_of_values_reach_the_model_as_its_script_gives_them(model: nn.Module, axes: tuple[int, ...]) -> None:
    whole = whole_of(model, axes)
    assert (whole.axes, whole.input_shape) == (axes, (math.prod(axes),))
    x = torch.randn(5, *axes)
    assert torch.allclose(whole.call(x.flatten(1)), model.eval()(x), atol=1e-6)
    told = as_target(model, input_shape=axes)  # the same where the user says it
    assert told.split.axes == axes


def test_square_steps_stay_images_and_grey_images_are_given_as_they_are() -> None:
    rows = whole_of(Recurrent(nn.LSTM, 28), (28, 28))
    assert (rows.axes, rows.input_shape) == ((28, 28), (1, 28, 28))
    flat = as_target(
        nn.Sequential(nn.Flatten(), nn.Linear(600, 40), nn.ReLU(), nn.Linear(40, 2)), data_shape=(20, 30)
    )
    assert flat.sample_shape == (1, 20, 30)
    assert ways((3, 32, 32), has_steps=True) == [((3, 32, 32), (3, 32, 32)), ((3, 32, 32), (3072,))]


def test_a_recurrent_model_is_audited_from_arrays() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(60, 12, 3), torch.arange(60) % 2
    model = Recurrent(nn.GRU, 3)
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(60):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x[:30]), y[:30]).backward()
        optimiser.step()
    record = audit(model, (x[:30], y[:30]), (np.asarray(x[30:]), y[30:]), attack=Unmix()).record
    assert [surface.layer for surface in record.surfaces] == ["head.0"]
    assert record.data_check.private_accuracy == 1


def test_added_positions_are_no_product_and_a_product_is_one() -> None:
    class Positions(nn.Module):
        def __init__(self, times: bool) -> None:
            super().__init__()
            self.weight, self.times = nn.Parameter(torch.randn(16, 20)), times
            self.pos = nn.Parameter(torch.randn(1, 10, 2))
            self.first, self.last = nn.Linear(20, 16), nn.Linear(16, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = (x.view(len(x), 10, 2) + self.pos).flatten(1)
            hidden = x @ self.weight.T if self.times else self.first(x)
            out: Tensor = self.last(hidden.relu())
            return out

    assert as_target(Positions(False), (20,)).architecture.hidden == (16,)
    with pytest.raises(UnfitError, match="multiplies samples with weight"):
        as_target(Positions(True), (20,))


def test_tokens_are_refused_as_tokens() -> None:
    model = nn.Sequential(nn.Embedding(50, 4), nn.Flatten(), nn.Linear(80, 20), nn.ReLU(), nn.Linear(20, 2))
    with pytest.raises(
        NotApplicableError, match=r"in an embedding \(0\), so they are whole numbers such as tokens"
    ):
        as_target(model, data_shape=(20,))


def test_what_a_model_raises_is_told_as_its_own_with_the_call() -> None:
    class Strange(nn.Module):
        def __init__(self, most: int) -> None:
            super().__init__()
            self.first, self.last, self.most = nn.Linear(10, 20), nn.Linear(20, 2), most

        def forward(self, x: Tensor) -> Tensor:
            if len(x) > self.most:
                raise KeyError("mine")
            out: Tensor = self.last(self.first(x).tanh())
            return out

    with pytest.raises(
        UnfitError, match=r"own code raised KeyError: 'mine' \(test_sequences.py, line \d+, in forw"
    ):
        as_target(Strange(0))
    x, y = torch.randn(40, 10), torch.arange(40) % 2
    with pytest.raises(UnfitError, match=r"raised KeyError.*called with 20 samples of shape 10"):
        audit(Strange(16), (x[:20], y[:20]), (x[20:], y[20:]), attack=Unmix())


def test_a_model_must_give_a_row_for_each_sample() -> None:
    with pytest.raises(UnfitError, match="no row for each of 16 samples"):
        as_target(nn.Sequential(nn.Linear(10, 4), nn.Flatten(0)), (10,))


def test_a_model_of_tokens_is_referred_to_the_audit_of_ids() -> None:
    model = nn.Sequential(nn.Embedding(50, 8), nn.Flatten(), nn.Linear(40, 2))
    x, y = torch.randint(50, (20, 5)), torch.arange(20) % 2
    with pytest.raises(NotApplicableError, match=r"`unfit\.audit_ids` audits the embedding"):
        audit(model, (x[:10], y[:10]), (x[10:], y[10:]))
