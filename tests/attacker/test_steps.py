"""When an id was last used, by Adam's running sums."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import unfit
from unfit.attacker.steps import steps_ago

V, D = 200, 16


def trained(folder: Path, decay: float = 0.0) -> tuple[Path, dict[int, list[int]]]:
    """A checkpoint with its optimiser's state, and the steps in which each id was used."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.EmbeddingBag(V, D), nn.Linear(D, 20), nn.ReLU(), nn.Linear(20, 3))
    step, used = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=decay), dict[int, list[int]]()
    for t in range(8):
        ids = torch.randint(V, (4, 5))
        for i in ids.unique().tolist():
            used.setdefault(i, []).append(t)
        step.zero_grad()
        F.cross_entropy(model(ids), torch.randint(3, (4,))).backward()  # type: ignore[no-untyped-call]
        step.step()
    content = {"model_state_dict": {f"emb.{k}": v for k, v in model.state_dict().items()}}
    content["model_state_dict"] = {
        name.replace("emb.0.", "embedding.").replace("emb.", "rest."): value
        for name, value in content["model_state_dict"].items()
    }
    torch.save(content | {"optimizer_state_dict": step.state_dict()}, folder / "model.pt")
    return folder / "model.pt", used


@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_ids_of_one_batch_share_their_step(tmp_path: Path, run, decay: float) -> None:  # type: ignore[no-untyped-def]
    path, used = trained(tmp_path, decay)
    out = tmp_path / "found.safetensors"
    assert run("attack", path, "--method", "diary", "--out", out)[0] == 0  # without a base
    (told,) = unfit.load_candidates(out).facts["diary"]
    assert set(told["ids"]) == set(used)
    found = {i: 7 - int(ago) for ago, ids in told["groups"].items() for i in ids}
    assert found == {i: steps[0] for i, steps in used.items() if len(steps) == 1}


def test_rows_used_more_than_once_and_odd_betas_tell_nothing() -> None:
    torch.manual_seed(0)
    g = torch.randn(2, 1, D)
    m = 0.1 * (0.9**3 * g[0] + g[1])
    v = 0.001 * (0.999**3 * g[0] ** 2 + g[1] ** 2)
    assert steps_ago(m, v, (0.9, 0.999)) == {}
    once = 0.1 * 0.9**5 * g[0], 0.001 * 0.999**5 * g[0] ** 2
    assert steps_ago(*once, (0.9, 0.999)) == {0: 5}
    assert steps_ago(*once, (0.0, 0.999)) == {}
    assert steps_ago(once[0][:, :1], once[1][:, :1], (0.9, 0.999)) == {}
