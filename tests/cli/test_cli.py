"""The command line as a user meets it: what it writes, prints and returns, and every refusal."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from unfit import AuditRequest, draw_unseen
from unfit.attacker.candidates import load_candidates
from unfit.auditor.case import private_set

Run = Callable[..., tuple[int, str, str]]


def test_the_demo_recovers_all_digits_exactly_and_prints_the_path_of_its_page(run: Run, tmp_path: Path) -> None:
    code, printed, _ = run("demo", "--out", tmp_path / "demo")
    assert code == 0
    page = Path(printed.rsplit("page: ", 1)[1].strip())
    assert page.read_text().startswith("<!doctype html>")
    record = json.loads((page.parent / "audit.json").read_text())
    assert record["attacker"] == "computes the initial weights"
    assert (record["num_samples"], record["num_exact"], record["num_exact_unseen"]) == (80, 80, 0)


def test_the_demo_of_faces_is_the_training_of_the_papers(run: Run, tmp_path: Path) -> None:
    assert run("demo", "--data", "faces", "--n", 40, "--out", tmp_path / "demo")[0] == 0
    record = json.loads((tmp_path / "demo" / "audit" / "audit.json").read_text())
    assert record["num_good"] >= 24
    assert record["num_good_unseen"] <= 1


def test_fit_attack_audit(run: Run, tmp_path: Path) -> None:
    code, printed, _ = run("fit", "--data", "faces", "--n", 20, "--arch", "200-100", "--out", tmp_path / "run")
    assert (code, "train accuracy 100.0%" in printed) == (0, True)
    files = {"target.safetensors", "target.json", "members.json", "initial.safetensors", "fit.json"}
    assert {path.name for path in (tmp_path / "run").iterdir()} == files
    record = json.loads((tmp_path / "run" / "fit.json").read_text())
    promised = (
        "steps loss flow_time train_accuracy test_accuracy test_loss seconds curve layer_norms kkt_residuals"
    )
    assert set(promised.split()) <= record.keys()

    assert run("attack", tmp_path / "run", "--method", "unmix", "--out", tmp_path / "c.safetensors")[0] == 0
    candidates = load_candidates(tmp_path / "c.safetensors")
    assert candidates.x.shape[1:] == (1, 25, 25)
    assert len(candidates) == len(candidates.origin) > 0

    code, printed, _ = run("audit", tmp_path / "run", "--out", tmp_path / "audit")
    assert code == 1  # 20 faces, whose images are recovered
    assert json.loads((tmp_path / "audit" / "audit.json").read_text())["verdict"] in printed


@pytest.mark.parametrize(
    "words", [("kkt",), ("kkt", "--num-candidates", 20), ("inversion", "--num-candidates", 20), ("weights",)]
)
def test_every_attack_writes_candidates(
    run: Run, face_run: Path, tmp_path: Path, words: tuple[object, ...]
) -> None:
    code, printed, _ = run("attack", face_run, "--method", *words, "--out", tmp_path / "c.safetensors")
    assert (code, "(finished)" in printed) == (0, True)
    found = load_candidates(tmp_path / "c.safetensors")
    assert found.attack["method"] == words[0]
    assert found.x.isfinite().all()


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("--num-candidates", 7), "7 candidates cannot be divided equally among 2 classes"),
        (("--score", "multiclass"), "does not fit a net with 1 output"),
        (("--solver", "quick"), "quick"),
        (("--solver", "paper", "--base", "."), "does not use --base"),
    ],
)
def test_settings_of_an_attack_that_cannot_be_meant(
    run: Run, face_run: Path, tmp_path: Path, words: tuple[object, ...], part: str
) -> None:
    words = tuple(face_run if word == "." else word for word in words)
    code, _, error = run("attack", face_run, "--method", "kkt", *words, "--out", tmp_path / "c.safetensors")
    assert (code, part in error) == (64, True)
    assert not (tmp_path / "c.safetensors").exists()


def test_audit_of_a_bare_checkpoint_with_its_data_named(run: Run, face_run: Path, tmp_path: Path) -> None:
    weights = load_file(face_run / "target.safetensors")
    torch.save({name.replace("layer", "fc"): value for name, value in weights.items()}, tmp_path / "model.pt")
    words = ("--data", "faces", "--members", face_run / "members.json")
    code, _, _ = run("audit", tmp_path / "model.pt", *words, "--out", tmp_path / "audit")
    assert code == 1
    assert json.loads((tmp_path / "audit" / "audit.json").read_text())["num_good"] >= 24


def test_audit_of_own_arrays_with_own_unseen_samples(run: Run, face_run: Path, tmp_path: Path) -> None:
    source, private = private_set(AuditRequest(target=face_run))
    unseen = draw_unseen(source, private, len(private), 0)
    for name, samples in (("private", private), ("unseen", unseen)):
        np.savez(tmp_path / f"{name}.npz", x=samples.x.numpy(), y=samples.y.numpy())
    words = ("--data", f"npz:{tmp_path}/private.npz", "--unseen", f"npz:{tmp_path}/unseen.npz")
    code, _, _ = run("audit", face_run / "target.safetensors", *words, "--out", tmp_path / "audit")
    assert code == 1


def test_window_3_is_recorded(run: Run, face_run: Path, tmp_path: Path) -> None:
    run("audit", face_run, "--window", 3, "--out", tmp_path / "audit")
    record = json.loads((tmp_path / "audit" / "audit.json").read_text())
    assert record["similarity"] == {"name": "edge correlation", "window": 3, "vote": 1.1}


def test_an_existing_output_is_refused_or_replaced(run: Run, tmp_path: Path) -> None:
    words = ("fit", "--data", "faces", "--n", 4, "--arch", "20", "--out", tmp_path / "run")
    assert run(*words)[0] == 0
    before = (tmp_path / "run" / "fit.json").read_text()
    code, _, error = run(*words)
    assert code == 2
    assert "--force" in error
    assert (tmp_path / "run" / "fit.json").read_text() == before
    assert run(*words, "--force")[0] == 0
    (tmp_path / "run" / "thesis.txt").write_text("mine")
    code, _, error = run(*words, "--force")
    assert code == 2
    assert "thesis.txt" in error
    assert (tmp_path / "run" / "thesis.txt").read_text() == "mine"


FIT = ("fit", "--data", "faces", "--arch", "20")


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("fit", "--data", "imagenet", "--n", 10), 64, "cifar10:DIR"),
        (("fit", "--data", "cifar10", "--n", 10), 64, "needs a path"),
        (("fit", "--data", "cifar10:/no/such/place", "--n", 10), 2, "/no/such/place"),
        ((*FIT, "--n", 1000), 64, "largest balanced n is 200"),
        ((*FIT, "--n", 200), 2, "nothing is left"),
        ((*FIT, "--n", 7), 64, "take 6 or 8"),
        ((*FIT, "--n", 10, "--classes", "5"), 64, "a number from 2 to 2"),
        ((*FIT, "--n", 10, "--loss", "hinge"), 64, "'logistic', 'ce', 'l2', 'l2.5', 'huber'"),
        ((*FIT, "--n", 10, "--method", "adam"), 64, "'flow', 'gd', 'sgd'"),
        ((*FIT, "--n", 10, "--colour", "red"), 64, "--colour"),
        ((*FIT, "--n", 10, "--init", "tiny"), 64, "standard"),
        ((*FIT, "--n", 10, "--weight-decay", "-1"), 64, "weight_decay"),
        ((*FIT, "--n", 10, "--arch", "big"), 64, "1000-1000"),
        ((*FIT, "--n", "ten"), 64, "integer"),
        ((*FIT, "--n", 10, "--arch", "conv(99,2)-10"), 64, "kernel"),
        (("fly",), 64, "fly"),
    ],
)
def test_a_wrong_fit_says_why_and_leaves_nothing(
    run: Run, tmp_path: Path, words: tuple[object, ...], code: int, says: str
) -> None:
    returned, _, error = run(*words, *(("--out", tmp_path / "out") if words[0] == "fit" else ()))
    assert returned == code
    assert says in error
    assert error.startswith("unfit: ")
    assert list(tmp_path.iterdir()) == []


def damage_nothing(path: Path) -> None:
    path.unlink()


def damage_cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def damage_nan(path: Path) -> None:
    weights = load_file(path)
    weights["layer2.weight"][3, 4] = torch.nan
    save_file(weights, path)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (damage_nothing, "no weights in this folder"),
        (damage_cut, "cut short"),
        (damage_nan, "layer2.weight has 1 values"),
    ],
)
def test_a_damaged_target_is_refused(
    run: Run, face_run: Path, tmp_path: Path, damage: Callable[[Path], None], says: str
) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in face_run.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    damage(copy / "target.safetensors")
    for words in (("audit", copy, "--out", tmp_path / "out"), ("attack", copy, "--out", tmp_path / "out")):
        code, _, error = run(*words)
        assert code == 2
        assert says in error
    assert {path.name for path in tmp_path.iterdir()} == {"copy"}


class Malice:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, (str(self.mark),)


def test_a_malicious_pickle_does_not_run(run: Run, tmp_path: Path) -> None:
    with (tmp_path / "model.pt").open("wb") as file:
        pickle.dump(Malice(tmp_path / "owned"), file)
    torch.save(Malice(tmp_path / "owned"), tmp_path / "zipped.pt")
    # a pickle is read as data, and found to be no model; PyTorch's archive is refused
    for name, least, said in (("model.pt", 3, "mkdir is not a fitted"), ("zipped.pt", 2, "not loaded")):
        code, _, error = run("attack", tmp_path / name, "--out", tmp_path / "out")
        assert code == least
        assert said in error
    assert not (tmp_path / "owned").exists()
    pickle.loads(pickle.dumps(Malice(tmp_path / "owned")))
    assert (tmp_path / "owned").exists(), "the pickle would have worked"


def test_damaged_data_are_refused(run: Run, tmp_path: Path) -> None:
    mnist = tmp_path / "mnist"
    mnist.mkdir()
    (mnist / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(b"\x00\x00\x08\x01" + bytes(12)))
    (mnist / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(b"\x00\x00\x08\x01" + bytes(4)))
    np.savez(tmp_path / "nan.npz", x=np.full((4, 8), np.nan), y=[0, 1, 0, 1])
    for data, says in ((f"mnist:{mnist}", "magic number"), (f"npz:{tmp_path}/nan.npz", "not finite")):
        code, _, error = run("fit", "--data", data, "--n", 2, "--out", tmp_path / "out")
        assert code == 2
        assert says in error
    assert not (tmp_path / "out").exists()


def test_a_bare_checkpoint_needs_its_data_named(run: Run, face_run: Path, tmp_path: Path) -> None:
    code, _, error = run("audit", face_run / "target.safetensors", "--out", tmp_path / "out")
    assert code == 2
    assert "--data" in error


def test_an_unknown_window_is_refused(run: Run, face_run: Path, tmp_path: Path) -> None:
    code, _, error = run("audit", face_run, "--window", 5, "--out", tmp_path / "out")
    assert code == 64
    assert "3, 7, 11" in error
    assert list(tmp_path.iterdir()) == []


def test_a_diverged_training_is_reported_not_crashed_on(run: Run, tmp_path: Path) -> None:
    words = ("--method", "gd", "--lr", 1e9, "--epochs", 50, "--out", tmp_path / "run")
    code, printed, _ = run(*FIT, "--n", 10, *words)
    assert code == 0
    assert "diverged" in printed


def test_the_installed_command_is_quiet_and_killed_it_leaves_no_output(tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("unfit"))]
    shown = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout.strip().count(".") == 2
    long = [*command, "fit", "--data", "faces", "--n", "100", "--method", "gd", "--epochs", "1000000"]
    process = subprocess.Popen([*long, "--out", str(tmp_path / "run")], stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not any(tmp_path.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    _, error = process.communicate()
    assert error == b""  # no progress bar where there is no terminal
    assert not (tmp_path / "run").exists()


def test_a_path_with_brackets_is_printed_as_it_is(run: Run, tmp_path: Path) -> None:
    code, printed, _ = run(*FIT, "--n", 4, "--out", tmp_path / "[bold]")
    assert code == 0
    assert f"{tmp_path}/[bold]: " in printed


def test_images_too_small_for_the_window_are_refused_before_the_attack(run: Run, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "tiny.npz", x=rng.random((20, 5, 6)), y=np.arange(20) % 2)
    data = ("--data", f"npz:{tmp_path}/tiny.npz")
    assert run("fit", *data, "--n", 10, "--arch", "20", "--out", tmp_path / "run")[0] == 0
    code, _, error = run("audit", tmp_path / "run", *data, "--out", tmp_path / "audit")
    assert code == 64
    assert "images of 6×5 are too small for an SSIM --window of 11" in error
    # too few samples to tell a leak from chance
    assert run("audit", tmp_path / "run", *data, "--window", 3, "--out", tmp_path / "audit")[0] == 3


def test_report_makes_the_same_page_from_the_two_files_alone(run: Run, face_page: Path, tmp_path: Path) -> None:
    for name in ("audit.json", "arrays.safetensors"):
        shutil.copy(face_page / name, tmp_path)
    code, printed, _ = run("report", tmp_path)
    assert (code, printed.strip()) == (0, f"page: {tmp_path / 'index.html'}")
    assert (tmp_path / "index.html").read_bytes() == (face_page / "index.html").read_bytes()
    assert run("report", tmp_path)[0] == 0  # over the one that is there
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "arrays.safetensors",
        "audit.json",
        "index.html",
        "pairs.png",
    ]


def test_report_refuses_what_is_no_audit_and_leaves_the_old_page(
    run: Run, face_page: Path, tmp_path: Path
) -> None:
    code, _, error = run("report", tmp_path)
    assert code == 2
    assert "audit.json" in error
    shutil.copy(face_page / "audit.json", tmp_path)
    (tmp_path / "index.html").write_text("old")
    arrays = load_file(face_page / "arrays.safetensors")
    for wrong, words in (
        ({}, "'original' is missing"),
        (arrays | {"similarity": arrays["similarity"][1:]}, "'similarity' holds 39 of 40"),
        (arrays | {"nearest_unseen": arrays["nearest_unseen"] + 40}, "'nearest_unseen' names samples"),
    ):
        save_file(wrong, tmp_path / "arrays.safetensors")
        code, _, error = run("report", tmp_path)
        assert code == 2
        assert words in error
    (tmp_path / "arrays.safetensors").write_bytes(b"cut short")
    assert run("report", tmp_path)[0] == 2
    assert (tmp_path / "index.html").read_text() == "old"
