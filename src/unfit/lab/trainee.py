"""Models in the coordinates in which they are trained: as many as there are samples, instead of inputs.

Gradient steps move the rows of a dense layer only inside the span of what enters it, and gradient descent
commutes with rotations. So a layer that more numbers enter than there are samples is trained in an orthonormal
basis of that span, exactly; what lies outside never sees the data and only decays.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from unfit.base.nets import margin
from unfit.lab.settings import FitSettings, Loss

LEAST_VARIANCE = 1e-7  # of the largest: below it a direction of the maps is rounding


def data_loss(phi: Tensor, y: Tensor, loss: Loss) -> Tensor:
    """The mean loss. The regression losses aim at −1 and +1, with one output a class if there are several."""
    if loss == "logistic":
        return F.softplus(-margin(phi, y)).mean()
    if loss == "ce":
        return F.cross_entropy(phi, y)
    hot = y[:, None] if phi.shape[1] == 1 else F.one_hot(y, phi.shape[1])
    residual = phi - (2 * hot - 1)
    if loss == "huber":
        return F.huber_loss(residual, torch.zeros_like(residual))
    return residual.abs().pow(2.0 if loss == "l2" else 2.5).mean()


class InSpan(nn.Module):
    """A model whose dense first layer lives in the span of x; `rest` is the norm of what lies outside it."""

    def __init__(self, net: nn.Sequential, x: Tensor) -> None:
        super().__init__()
        self.net, self.x = copy.deepcopy(net), x
        self.rest = nn.Parameter(x.new_zeros(()))
        first = self.net.get_submodule("layer1")
        self.inside = isinstance(first, nn.Linear) and len(x) < first.in_features
        if isinstance(first, nn.Linear) and self.inside:
            flat, weight = x.flatten(1), first.weight.detach()
            self.basis = torch.linalg.qr(flat.T.double())[0].to(x.dtype)  # (d, n)
            outside = weight - weight @ self.basis @ self.basis.T
            self.rest.data = outside.norm()
            self.direction = outside / outside.norm().clamp_min(1e-30)
            self.x = flat @ self.basis
            first.weight = nn.Parameter(weight @ self.basis)

    def loss(self, y: Tensor, settings: FitSettings, rows: Tensor | None = None) -> Tensor:
        """The mean, over all samples or some rows."""
        phi = self.net(self.x if rows is None else self.x[rows])
        return data_loss(phi, y if rows is None else y[rows], settings.loss)

    def objective(self, y: Tensor, settings: FitSettings, rows: Tensor | None = None) -> Tensor:
        """Mean loss + (weight_decay / 2) ‖θ‖², over all samples or some rows."""
        loss = self.loss(y, settings, rows)
        if settings.weight_decay:
            loss = loss + settings.weight_decay / 2 * squares(self.parameters())
        return loss

    def whole(self) -> dict[str, Tensor]:
        """The weights in the space of the inputs again."""
        state = self.net.state_dict()
        if self.inside:
            state["layer1.weight"] = state["layer1.weight"] @ self.basis.T + self.rest * self.direction
        return copy_of(state)


class InMaps(nn.Module):
    """A model with a convolution in front, whose first dense layer lives in the span of the maps.

    The maps move with the kernels, and their span with them: `follow` takes the dense layer along. A basis of the
    span is `mix`ᵀ `maps`, and is never multiplied out: products with the maps are all that training needs. Where
    the maps have no more numbers than there are samples, the dense layer stays as it is.
    """

    def __init__(self, net: nn.Sequential, x: Tensor) -> None:
        super().__init__()
        self.net, self.x = copy.deepcopy(net), x
        cut = [name for name, _ in net.named_children()].index("flatten") + 1
        self.parts = self.net[:cut], self.net[cut:]  # a tuple: the parameters are the model's, once
        first = self.net.get_submodule("layer2")
        assert isinstance(first, nn.Linear)
        self.inside = first.in_features > len(x)
        self.look()
        if self.inside:
            first.weight = nn.Parameter(first.weight.detach() @ self.maps.T @ self.mix)

    @staticmethod
    def fits(net: nn.Sequential) -> bool:
        """Whether a convolution lies before a dense layer."""
        return isinstance(net.get_submodule("layer1"), nn.Conv2d)

    @property
    def kernels(self) -> list[nn.Parameter]:
        return list(self.parts[0].parameters())

    @property
    def dense(self) -> list[nn.Parameter]:
        """The first is that of the layer in the span."""
        return list(self.parts[1].parameters())

    def look(self) -> None:
        """Take the maps as they are now, and their span.

        It comes from their products with each other, since a QR decomposition takes four times as long. A
        direction that is only rounding keeps its place, so that shapes stay, and is nearly zero.
        """
        with torch.no_grad():
            self.maps = self.inputs = self.parts[0](self.x)  # (n, d)
            if self.inside:
                variances, directions = torch.linalg.eigh((self.maps @ self.maps.T).double())
                scales = variances.clamp_min(LEAST_VARIANCE * variances[-1]).sqrt()
                self.mix = (directions / scales).to(self.maps.dtype)
                self.inputs = (directions * (variances / scales)).to(self.maps.dtype)  # the maps in that basis

    def back_to(self, state: dict[str, Tensor]) -> None:
        """Go back to weights that were kept, and to the span that they were kept in."""
        self.load_state_dict(state)
        self.look()

    def follow(self) -> None:
        """Go over to the maps as they are now, and with them to another basis.

        Outputs for x stay as they are, and weights can only shrink: nothing but their decay meets what is left
        behind.
        """
        before = self.maps
        if self.inside:
            coordinates = self.dense[0].data @ self.mix.T
        self.look()
        if self.inside:
            self.dense[0].data = coordinates @ (before @ self.maps.T) @ self.mix

    def balance(self) -> None:
        """Scale what enters each neuron against what leaves it until both have one norm; the kernels all alike.

        Outputs stay as they are, and no such scaling has a smaller ‖θ‖². Descent alone takes thousands of steps to
        get there.
        """
        with torch.no_grad():
            dense = [layer for layer in self.parts[1].children() if isinstance(layer, nn.Linear)]
            scale = _even(squares(self.kernels), squares([dense[0].weight]))
            for p in self.kernels:
                p.mul_(scale)
            dense[0].weight.div_(scale)
            for one, two in pairwise(dense):
                into = torch.stack([p.reshape(len(p), -1).square().sum(1) for p in one.parameters()]).sum(0)
                scale = _even(into, two.weight.square().sum(0))
                for p in one.parameters():
                    p.mul_(scale[:, None] if p.dim() > 1 else scale)
                two.weight.div_(scale)

    def loss_of_dense(self, y: Tensor, settings: FitSettings) -> Tensor:
        """The mean, with the maps as they were when they were looked at."""
        return data_loss(self.parts[1](self.inputs), y, settings.loss)

    def loss(self, y: Tensor, settings: FitSettings) -> Tensor:
        """The mean, with the maps as they are."""
        maps = self.parts[0](self.x)
        return data_loss(self.parts[1](maps @ self.maps.T @ self.mix if self.inside else maps), y, settings.loss)

    def whole(self) -> dict[str, Tensor]:
        """The weights in the space of the maps again."""
        state = self.net.state_dict()
        if self.inside:
            state["layer2.weight"] = state["layer2.weight"] @ self.mix.T @ self.maps
        return copy_of(state)


def _even(into: Tensor, out: Tensor) -> Tensor:
    """What to multiply by what enters and to divide what leaves by, given the squares of their norms."""
    return torch.where((into > 0) & (out > 0), (out / into) ** 0.25, 1.0)


def copy_of(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().cpu().clone() for name, value in state.items()}


def squares(tensors: Iterable[Tensor]) -> Tensor:
    return torch.stack([t.square().sum() for t in tensors]).sum()


def move(parameters: Sequence[Tensor], direction: Sequence[Tensor], step: float) -> None:
    with torch.no_grad():
        torch._foreach_add_(list(parameters), list(direction), alpha=step)
