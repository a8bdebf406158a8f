"""A model from named tensors alone, where these are dense layers with normalisation in between."""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from unfit.base.formats.limits import Weights

COUNTER = "num_batches_tracked"  # of a BatchNorm; no weight


def guess_net(found: Weights) -> nn.Sequential | None:
    """Dense layers, each with its normalisation and a ReLU behind it, in the order of the file; None if not these.

    The tensors do not name the activation. An attack on the first layer does not depend on it, and an audit looks
    first whether the model gets its samples right.
    """
    groups: dict[str, Weights] = {}
    for name, value in found.items():
        place, _, kind = name.rpartition(".")
        if kind != COUNTER:
            groups.setdefault(place, {})[kind] = value
    layers = [_layer(parts) for parts in groups.values()]
    dense = [layer for layer in layers if isinstance(layer, nn.Linear)]
    if not dense or None in layers or not isinstance(layers[0], nn.Linear):
        return None
    if any(a.out_features != b.in_features for a, b in pairwise(dense)) or not _norms_fit(layers):
        return None
    modules: list[nn.Module] = [nn.Flatten()]
    for layer, following in pairwise([*layers, None]):
        assert layer is not None
        modules.append(layer)
        if isinstance(following, nn.Linear):
            modules.append(nn.ReLU())
    return nn.Sequential(*modules).eval()


def _layer(parts: Weights) -> nn.Module | None:
    """A dense layer, a BatchNorm or a LayerNorm with these tensors."""
    weight = parts.get("weight")
    if weight is None or not all(value.is_floating_point() and value.numel() for value in parts.values()):
        return None
    layer: nn.Module
    if weight.ndim == 2:
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias="bias" in parts)
    elif weight.ndim == 1 and "running_mean" in parts:
        layer = nn.BatchNorm1d(len(weight))
    elif weight.ndim == 1:
        layer = nn.LayerNorm(len(weight), bias="bias" in parts)
    else:
        return None
    wanted = {name: value for name, value in layer.state_dict().items() if not name.endswith(COUNTER)}
    if wanted.keys() != parts.keys() or any(wanted[name].shape != parts[name].shape for name in wanted):
        return None
    layer.load_state_dict(parts, strict=False)
    return layer


def _norms_fit(layers: list[nn.Module | None]) -> bool:
    """Each normalisation stands behind a layer as wide as itself."""
    width = 0
    for layer in layers:
        if isinstance(layer, nn.Linear):
            width = layer.out_features
        elif isinstance(layer, nn.BatchNorm1d | nn.LayerNorm) and layer.weight.numel() != width:
            return False
    return True
