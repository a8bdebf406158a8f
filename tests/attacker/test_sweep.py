"""Sweeps: the papers' distributions, kill and resume, several processes, a Ray cluster that loses a node."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from unfit.attacker.attacked_layer import read_layer
from unfit.attacker.attacks import Attack, FastKKT, Inversion, PaperKKT, Unmix, Weights, paper
from unfit.attacker.attacks.paper import B23, H22
from unfit.attacker.candidates import load_candidates
from unfit.attacker.method import Parameter
from unfit.attacker.names import Sampler
from unfit.attacker.sweep.cluster import in_this_process
from unfit.attacker.sweep.run import make_plan, sweep
from unfit.attacker.sweep.store import Status, open_sweep, read_ended, read_status
from unfit.attacker.sweep.tpe import propose
from unfit.attacker.sweep.trials import Job, Plan, draw, outcome_of
from unfit.base.errors import UnfitError, UsageError
from unfit.base.load import load_target
from unfit.base.nets import initialise, parse_architecture
from unfit.base.reservation import OWNER, PARTIAL
from unfit.base.target import Target

Run = Callable[..., tuple[int, str, str]]
SHORT = PaperKKT(num_candidates=10, iterations=300)  # a trial takes half a second
QUICK = Inversion(num_candidates=4, iterations=3)  # milliseconds
NUM = 5


def unfit(*arguments: str | Path | int) -> list[str]:
    return [sys.executable, "-m", "unfit", *map(str, arguments)]


def wait_for(condition, seconds: float = 180) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def files(folder: Path) -> dict[str, int]:
    """When each trial's file was written."""
    return {path.name: path.stat().st_mtime_ns for path in (folder / "trials").glob("*")}


def tensors(folder: Path) -> dict[str, bytes]:
    """The candidates of each trial, to the last bit."""
    return {name: load_candidates(folder / "trials" / name).x.numpy().tobytes() for name in files(folder)}


def settings(folder: Path) -> dict[int, dict[str, Any]]:
    return {trial.number: trial.settings for trial in read_ended(folder)}


def begun(folder: Path) -> set[int]:
    return {json.loads(line)["number"] for line in (folder / "begun.jsonl").read_text().splitlines()}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The weights of a small net, in which an iteration takes a millisecond."""
    random = torch.Generator().manual_seed(0)
    shapes = {"layer1.weight": (30, 64), "layer1.bias": (30,), "layer2.weight": (1, 30)}
    path = tmp_path_factory.mktemp("tiny") / "tiny.safetensors"
    save_file({name: 0.1 * torch.randn(*shape, generator=random) for name, shape in shapes.items()}, path)
    return path


@pytest.fixture(scope="module")
def tiny(path: Path) -> Target:
    return load_target(path)


@pytest.fixture(scope="module")
def pictured() -> Target:
    """Three classes; the first layer mixes eight pictures, which every attack can look for."""
    random = torch.Generator().manual_seed(1)
    architecture = parse_architecture("50-40", (1, 12, 12), 3)
    weights = {name: value.detach() for name, value in initialise(architecture, 0.1, seed=0).state_dict().items()}
    images = torch.rand(8, 1, 4, 4, generator=random).repeat_interleave(3, 2).repeat_interleave(3, 3) - 0.5
    noise = 1e-4 * torch.randn(50, 144, generator=random)
    mixed = torch.randn(50, 8, generator=random) @ images.flatten(1) + noise
    return Target(architecture, weights | {"layer1.weight": mixed})


@pytest.fixture(scope="module")
def whole(tiny: Target, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "sweep"
    assert len(sweep(tiny, NUM, folder, SHORT, workers=1).ended) == NUM
    return folder


def plan_of(target: Target, attack: Attack = QUICK, sampler: Sampler = "random") -> Plan:
    return make_plan(target, None, attack, sampler, {}, 0)


# settings


def test_the_papers_distributions(tiny: Target, pictured: Target) -> None:
    h22 = {
        "lr": Parameter(low=1e-5, high=1, log=True),
        "sigma": Parameter(low=1e-6, high=1, log=True),
        "alpha": Parameter(low=10, high=500),
        "lambda_min": Parameter(low=1e-4, high=1, log=True),
    }
    b23 = h22 | {
        "sigma": Parameter(low=1e-6, high=0.1, log=True),
        "lambda_min": Parameter(low=0.01, high=0.5),
    }
    assert plan_of(tiny, PaperKKT()).parameters == H22 == h22
    assert plan_of(pictured, PaperKKT()).parameters == B23 == b23
    assert set(plan_of(tiny, PaperKKT(score="any")).parameters) == {"lr", "sigma", "alpha"}
    assert plan_of(tiny, Inversion()).parameters == {
        "lr": Parameter(low=1e-6, high=1, log=True),
        "sigma": Parameter(low=1e-7, high=1, log=True),
    }


@pytest.mark.parametrize("sampler", ["random", "quasi"])
def test_settings_fill_their_ranges_and_follow_from_seed_and_number(tiny: Target, sampler: Sampler) -> None:
    plan = plan_of(tiny, PaperKKT(), sampler)
    drawn = [draw(plan, number) for number in range(256)]
    for name, parameter in plan.parameters.items():
        scale = np.log if parameter.log else np.asarray
        low, high = scale(parameter.bounds)
        share = (scale([values[name] for values in drawn]) - low) / (high - low)
        assert 0 <= share.min() < 0.03
        assert 0.97 < share.max() <= 1
        distance = np.abs(np.sort(share) - (np.arange(256) + 0.5) / 256).max()  # Kolmogorov–Smirnov
        assert distance < (0.01 if sampler == "quasi" else 0.12)
    assert draw(plan, 200) == drawn[200]
    assert draw(plan.model_copy(update={"seed": 1}), 200) != drawn[200]


def test_choices_are_all_taken(tiny: Target) -> None:
    plan = plan_of(tiny, Unmix())
    drawn = [draw(plan, number) for number in range(40)]
    for name in ("contrast", "orthogonal"):
        assert {values[name] for values in drawn} == set(plan.parameters[name].choices or ())


# one sweep


def test_a_sweep_and_its_folder(whole: Path, tiny: Target) -> None:
    status = read_status(whole)
    assert (status.num_trials, len(status.ended), status.running, status.at_work) == (NUM, NUM, 0, False)
    assert {trial.state for trial in status.ended} == {"complete"}
    plan = json.loads((whole / "sweep.json").read_text())
    assert plan["target"] == {"sha256": tiny.sha256, "architecture": "64-30-1"}
    assert (plan["schema_version"], plan["sampler"], plan["seed"]) == (2, "random", 0)
    assert plan["attack"] == SHORT.model_dump(mode="json")
    for trial in status.ended:
        candidates = load_candidates(whole / "trials" / f"{trial.number:05}.safetensors")
        assert len(candidates) == trial.num_candidates == 10
        assert candidates.facts["loss"] == trial.objective
        assert trial.settings.items() <= candidates.attack["settings"].items()
        assert candidates.attack["seed"] == trial.number
    assert status.best is not None
    assert status.best.objective == min(trial.objective for trial in status.ended)


def test_nothing_is_left_to_do_the_second_time(whole: Path, tiny: Target) -> None:
    before = files(whole), (whole / "trials.jsonl").read_bytes()
    for num in (NUM, 2):
        status = sweep(tiny, num, whole, SHORT, workers=1)
        assert len(status.ended) == status.num_trials == NUM
    assert (files(whole), (whole / "trials.jsonl").read_bytes()) == before


def test_a_lost_file_is_made_again(whole: Path, tiny: Target, tmp_path: Path) -> None:
    folder = shutil.copytree(whole, tmp_path / "sweep")
    (folder / "trials" / "00002.safetensors").unlink()
    sweep(tiny, NUM, folder, SHORT, workers=1)
    assert tensors(folder) == tensors(whole)
    assert read_ended(folder) == read_ended(whole)


def test_a_larger_number_extends_a_sweep(tiny: Target, tmp_path: Path) -> None:
    for num in (2, 4):
        assert sweep(tiny, num, tmp_path / "a", QUICK, workers=1).num_trials == num
    sweep(tiny, 4, tmp_path / "b", QUICK, workers=1)
    assert tensors(tmp_path / "a") == tensors(tmp_path / "b")
    assert read_status(tmp_path / "a").num_trials == 4


def test_kill_and_go_on_gives_the_same_as_an_uninterrupted_sweep(
    whole: Path, tiny: Target, path: Path, tmp_path: Path
) -> None:
    """`kill -9` of a sweep with two workers, status from outside meanwhile; the rest in one process."""
    folder = tmp_path / "sweep"
    options = ["--num-candidates", 10, "--iterations", 300, "--workers", 2]
    command = unfit("sweep", path, "--out", folder, "--trials", NUM, *options)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    wait_for(lambda: read_ended(folder))
    process.send_signal(signal.SIGSTOP)  # no more lines, however slow this test is; workers finish what they have
    status = read_status(folder)
    assert status.at_work
    assert status.running >= 1
    assert status.num_trials == NUM
    with pytest.raises(UnfitError, match=rf"process {process.pid} on {platform.node()} is writing .*sweep too"):
        sweep(tiny, NUM, folder, SHORT, workers=1)
    workers = children(process.pid)
    assert len(workers) >= 2
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_for(lambda: not any(is_alive(worker) for worker in workers))  # no orphans
    status = read_status(folder)
    assert not status.at_work
    assert 0 < status.num_left < NUM
    done = {name: when for name, when in files(folder).items() if not name.startswith(".")}
    sweep(tiny, NUM, folder, SHORT, workers=1)
    assert done.items() <= files(folder).items()
    assert sorted(settings(folder)) == list(range(NUM))
    assert tensors(folder) == tensors(whole)
    assert settings(folder) == settings(whole)


def children(pid: int) -> list[int]:
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(stat.parent.name)] = int(fields[1])
    return [child for child, parent in parents.items() if parent == pid]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("lost", ["nothing", "line", "end of the line", "candidates", "begun"])
def test_killed_between_the_writing_of_file_and_lines(tiny: Target, tmp_path: Path, lost: str) -> None:
    """What each kill would leave, made by the very steps of a sweep."""
    folder, plan = tmp_path / "sweep", plan_of(tiny)
    first = folder / "trials" / "00000.safetensors"
    with open_sweep(folder, plan, 2) as store:
        number, values = next(store.todo())
        ended = Job(tiny, None, plan, 1, folder).run(number, values).ended
    if lost in ("nothing", "end of the line"):
        line = ended.model_dump_json() + "\n"
        (folder / "trials.jsonl").write_text(line if lost == "nothing" else line[:-20])
    elif lost in ("candidates", "begun"):
        first.unlink()
    if lost == "begun":
        os.truncate(folder / "begun.jsonl", 20)
    (folder / "trials" / f".00001.safetensors.x{PARTIAL}").write_bytes(b"cut sh")
    (folder / OWNER).write_text("process 1 on a machine that is gone")
    written = first.stat().st_mtime_ns if first.exists() else None
    status = sweep(tiny, 2, folder, QUICK, workers=1)
    assert written in (None, first.stat().st_mtime_ns)  # what is done is not run again
    assert settings(folder) == {number: draw(plan, number) for number in range(2)}
    assert written is None or status.ended[0] == ended
    assert sorted(files(folder)) == ["00000.safetensors", "00001.safetensors"]


def test_tpe_goes_on_as_if_it_had_not_been_stopped(tiny: Target, tmp_path: Path) -> None:
    sweep(tiny, 16, tmp_path / "a", QUICK, sampler="tpe", workers=1)
    for num in (3, 12, 16):
        sweep(tiny, num, tmp_path / "b", QUICK, sampler="tpe", workers=1)
    assert settings(tmp_path / "a") == settings(tmp_path / "b")
    assert tensors(tmp_path / "a") == tensors(tmp_path / "b")
    objectives = [trial.objective for trial in read_ended(tmp_path / "a")]
    assert np.mean(objectives[10:]) < np.mean(objectives[:10])  # after ten at random it learns


def test_a_trial_of_tpe_that_was_killed_keeps_its_settings(tiny: Target, tmp_path: Path) -> None:
    """Another trial ends before the next start, after which TPE would propose something else."""
    folder, plan = tmp_path / "sweep", plan_of(tiny, sampler="tpe")
    sweep(tiny, 11, folder, QUICK, sampler="tpe", workers=1)
    with open_sweep(folder, plan, 13) as store:
        (killed, values), other = list(store.todo())
        store.enter(Job(tiny, None, plan, 1, folder).run(*other).ended)
        assert propose(plan, killed, store.ended.values()) != values
    sweep(tiny, 13, folder, QUICK, sampler="tpe", workers=1)
    assert settings(folder)[killed] == values


@pytest.mark.parametrize("attack", [FastKKT(iterations=20), Unmix(iterations=5), Inversion(iterations=5)])
def test_other_attacks_can_be_swept(pictured: Target, tmp_path: Path, attack: Attack) -> None:
    status = sweep(pictured, 2, tmp_path / "sweep", attack, sampler="quasi", workers=1)
    assert [trial.state for trial in status.ended] == ["complete"] * 2
    assert all(trial.num_candidates > 0 for trial in status.ended)
    if not isinstance(attack, Inversion):
        assert all(0 < trial.objective < 1 for trial in status.ended)
    first, second = (load_candidates(path) for path in sorted((tmp_path / "sweep" / "trials").iterdir()))
    assert first.attack["settings"] != second.attack["settings"]
    assert not torch.equal(first.x, second.x)


def test_diverged_trials_are_counted(tiny: Target, tmp_path: Path) -> None:
    attack = PaperKKT(num_candidates=4, iterations=50)
    status = sweep(tiny, 3, tmp_path / "sweep", attack, ranges={"lr": (1e8, 1e9)}, workers=1)
    assert [trial.state for trial in status.ended] == ["diverged"] * 3
    assert all("diverged after" in trial.message for trial in status.ended)
    assert not files(tmp_path / "sweep")
    assert status.best is None
    assert "3 diverged" in status.words


def test_a_trial_that_cannot_be_computed_has_failed(tiny: Target, tmp_path: Path) -> None:
    attack = Inversion(num_candidates=10**14)
    (trial,) = sweep(tiny, 1, tmp_path / "sweep", attack, workers=1).ended
    assert trial.state == "failed"
    assert trial.message.startswith("RuntimeError: ")
    assert not files(tmp_path / "sweep")


def test_an_attack_may_have_no_loss(tiny: Target) -> None:
    ended = outcome_of(0, {}, "here", Weights().run(read_layer(tiny))).ended
    assert (ended.state, ended.objective) == ("complete", None)
    assert Status(1, (ended,), 0).best is None
    plan = plan_of(tiny, sampler="tpe")
    assert propose(plan, 1, [ended]) == propose(plan, 1, [])


def test_hopeless_trials_are_pruned_and_others_are_not(tiny: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paper, "LEAST_ITERATIONS", 100)
    layer = read_layer(tiny)
    hopeless = PaperKKT(num_candidates=4, iterations=150, lr_multiplier=1e-12).vary(
        {"lr": 1e-12, "sigma": 1e-6}, 0
    )
    assert hopeless.run(layer).facts["status"] == "pruned after 100 iterations"
    good = PaperKKT(num_candidates=20, iterations=150).vary({"lr": 0.05, "sigma": 0.1, "lambda_min": 0.01}, 0)
    assert good.run(layer).facts["status"] == "finished"


# other places


def test_mlflow_gets_every_trial_once(tiny: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    store, folder = tmp_path / "store", tmp_path / "sweep"
    sweep(tiny, 2, folder, QUICK, workers=1)
    for _ in range(2):
        sweep(tiny, 3, folder, QUICK, workers=1, mlflow=store.as_uri())
    logged = list(store.glob("*/*/tags/number"))
    by_number = {path.read_text(): path.parents[1] for path in logged}
    assert len(logged) == len(by_number) == 3
    for trial in read_ended(folder):
        run = by_number[str(trial.number)]
        assert float((run / "params" / "lr").read_text()) == trial.settings["lr"]
        assert float((run / "metrics" / "objective").read_text().split()[1]) == trial.objective


def test_a_ray_cluster_loses_a_node_and_no_trial(tiny: Target, tmp_path: Path) -> None:
    """Both nodes have one slot and both are at work, so that one of them is lost with a trial half done."""
    from ray.cluster_utils import Cluster

    num, folder, attack = 6, tmp_path / "sweep", PaperKKT(num_candidates=10, iterations=900)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        doomed = cluster.add_node(num_cpus=1)
        with ThreadPoolExecutor() as thread:
            swept = thread.submit(sweep, tiny, num, folder, attack, ray=cluster.address)
            wait_for(lambda: swept.done() or len({trial.node for trial in read_ended(folder)}) == 2)
            wait_for(lambda: swept.done() or read_status(folder).running == 2)
            cluster.remove_node(doomed, allow_graceful=False)
            before = len(read_ended(folder))
            unfinished = begun(folder) - settings(folder).keys()  # the trial of the lost node is one of them
            assert len(swept.result().ended) == num
    finally:
        cluster.shutdown()
    assert sorted(settings(folder)) == list(range(num))
    (node,) = {trial.node for trial in read_ended(folder)[before:]}
    assert not node.endswith(doomed.node_id[:8])
    plan = plan_of(tiny, attack)
    (tmp_path / "here" / "trials").mkdir(parents=True)
    with in_this_process(Job(tiny, None, plan, 1, tmp_path / "here")) as (submit, _):
        for number in unfinished:
            submit(number, draw(plan, number))
    assert tensors(tmp_path / "here").items() <= tensors(folder).items()


# what cannot be


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("127.0.0.1:9", "no Ray cluster answers at 127.0.0.1:9: Connection refused"),
        ("ray://127.0.0.1:9", "no Ray cluster answers at ray://127.0.0.1:9: Connection refused"),
        ("nobody.invalid:6379", "no Ray cluster answers at nobody.invalid:6379: "),
        ("somewhere", "'somewhere' is not the address of a Ray cluster; give HOST:PORT"),
    ],
)
def test_an_unreachable_cluster_is_an_error(tiny: Target, tmp_path: Path, address: str, words: str) -> None:
    with pytest.raises(UnfitError) as raised:
        sweep(tiny, 2, tmp_path / "sweep", ray=address)
    assert words in str(raised.value)
    assert not (tmp_path / "sweep").exists()


@pytest.mark.parametrize(
    ("package", "extra", "asking"),
    [
        ("ray", "cluster", {"ray": "127.0.0.1:9"}),
        ("mlflow", "mlflow", {"mlflow": "127.0.0.1:9"}),
        ("optuna", "tpe", {"sampler": "tpe"}),
    ],
)
def test_a_missing_extra_is_named_and_nothing_else_needs_it(
    tiny: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, extra: str, asking: dict[str, Any]
) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # as where it is not installed
    sweep(tiny, 1, tmp_path / "without", QUICK, workers=1)
    with pytest.raises(UnfitError, match=rf"pip install 'unfit\[{extra}\]'"):
        sweep(tiny, 1, tmp_path / "with", QUICK, workers=1, **asking)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 1}, r"attack\.seed \(0 there, 1 here\), seed \(0 there, 1 here\)"),
        ({"sampler": "quasi"}, r"sampler \(random there, quasi here\)"),
        ({"attack": QUICK}, r"attack\.method \(kkt there, inversion here\), attack\.solver \(paper there, None"),
        ({"attack": SHORT.model_copy(update={"iterations": 301})}, r"attack\.iterations \(300 there, 301 here\)"),
        ({"ranges": {"alpha": (10.0, 20.0)}}, r"parameters\.alpha\.high \(500\.0 there, 20\.0 here\)"),
    ],
)
def test_the_folder_of_another_sweep_is_refused(
    whole: Path, tiny: Target, change: dict[str, Any], words: str
) -> None:
    with pytest.raises(UnfitError, match=f"holds another sweep, which differs in {words}"):
        sweep(tiny, NUM, whole, **({"attack": SHORT, "workers": 1} | change))


def test_the_folder_of_another_target_or_version_is_refused(whole: Path, tiny: Target, tmp_path: Path) -> None:
    other = Target(tiny.architecture, tiny.weights | {"layer1.bias": torch.zeros(30)})
    with pytest.raises(UnfitError, match=r"differs in target\.sha256"):
        sweep(other, NUM, whole, SHORT, workers=1)
    folder = shutil.copytree(whole, tmp_path / "sweep")
    plan = json.loads((folder / "sweep.json").read_text())
    plan["versions"]["unfit"] = "0.0.1"
    (folder / "sweep.json").write_text(json.dumps(plan))
    with pytest.raises(UnfitError, match=r"differs in versions\.unfit \(0\.0\.1 there"):
        sweep(tiny, NUM, folder, SHORT, workers=1)


def test_what_is_not_a_sweep_is_refused(tiny: Target, whole: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("mine")
    (tmp_path / "file").touch()
    for name, words in (("other", "other is in the way, and not unfit's"), ("file", "cannot write in .*file")):
        with pytest.raises(UnfitError, match=words):
            sweep(tiny, 1, tmp_path / name)
        with pytest.raises(UnfitError, match="not the folder of a sweep"):
            read_status(tmp_path / name)
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["thesis.tex"]
    broken = shutil.copytree(whole, tmp_path / "broken")
    (broken / "trials.jsonl").write_text('{"number": 1}\n')
    with pytest.raises(UnfitError, match=r"trials\.jsonl, line 1: Field required"):
        read_status(broken)
    (broken / "trials.jsonl").unlink()
    (broken / "trials" / "00001.safetensors").write_bytes(b"not candidates")
    with pytest.raises(
        UnfitError, match=r"00001\.safetensors: not the candidates of a trial .*; 1 of 5 trials are"
    ):
        sweep(tiny, NUM, broken, SHORT, workers=1)


class Own(Inversion):
    """An attack that `sweep.json` could not name."""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"trials": 0}, "`trials` must be between 1 and 100,000, not 0"),
        ({"trials": 100_001}, "not 100,001"),
        ({"seed": -1}, "`seed`: Input should be greater than or equal to 0"),
        ({"workers": 0}, "`workers` must be at least 1, not 0"),
        ({"cpus_per_trial": 0}, "`cpus_per_trial` must be at least 1, not 0"),
        ({"gpus_per_trial": -1}, "`gpus_per_trial` cannot be negative"),
        ({"gpus_per_trial": 1}, "give `ray` too"),
        ({"attack": PaperKKT(num_candidates=3)}, "3 candidates cannot be divided equally among 2 classes"),
        ({"attack": "auto"}, "to vary; choose one of: unmix, kkt, kkt with the papers' solver, inversion"),
        ({"attack": Own()}, "not Own"),
        ({"attack": PaperKKT(lr=0.1, seed=3)}, "a sweep sets `seed`, `lr` of each trial itself"),
        ({"sampler": "grid"}, "unknown sampler 'grid'; choose one of: random, quasi, tpe"),
        ({"ranges": {"beta": (1, 2)}}, "in `ranges` 'beta'; choose one of: lr, sigma, alpha, lambda_min"),
        ({"ranges": {"lr": (0, 1)}}, "`ranges` of lr must be two positive numbers, the smaller one first"),
        ({"ranges": {"alpha": (5, 5)}}, "of alpha must be two numbers, the smaller one first, not 5 and 5"),
        ({"ranges": {"alpha": (-1, 5)}}, "`ranges`: `alpha`: Input should be greater than 0"),
        ({"attack": Unmix(), "ranges": {"contrast": (0, 1)}}, "choose one of: rank"),
    ],
)  # fmt: skip
def test_wrong_usage(tiny: Target, tmp_path: Path, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as raised:
        sweep(tiny, **({"trials": 1, "folder": tmp_path / "sweep"} | arguments))
    assert words in str(raised.value)
    assert not (tmp_path / "sweep").exists()


def test_a_base_is_for_attacks_that_use_it(tiny: Target, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="kkt with the papers' solver does not use `base`"):
        sweep(tiny, 1, tmp_path / "sweep", base=tiny)


def test_the_command_line(whole: Path, path: Path, tmp_path: Path, run: Run) -> None:
    code, out, _ = run("sweep", whole, "--status")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "kkt with the papers' solver on 64-30-1, random settings, seed 0"
    assert lines[1].startswith(f"{NUM} of {NUM} trials done, 0 running, 0 pruned, 0 diverged, 0 failed; best")
    assert lines[-1] == "all done"
    code, out, err = run("sweep", path, "--out", tmp_path / "sweep", "--range", "lr=1")
    assert (code, out) == (64, "")
    assert err == "unfit: --range lr=1: write NAME=LOW:HIGH, such as lr=1e-3:1\n"


def test_a_full_disk_keeps_what_is_done(tiny: Target, tmp_path: Path) -> None:
    disk, folder = tmp_path / "disk", tmp_path / "disk" / "sweep"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("only root may mount a small disk")
    try:
        attack = Inversion(num_candidates=40, iterations=2)
        with pytest.raises(UnfitError, match=r"full|No space") as raised:
            sweep(tiny, 50, folder, attack, workers=1)
        num = len(read_ended(folder))
        assert 0 < num < 50
        assert str(raised.value).endswith(
            f"; {num} of 50 trials are done and kept, run the same sweep again to go on"
        )
        before = tensors(folder)
        subprocess.run(["mount", "-o", "remount,size=50m", disk], check=True)
        sweep(tiny, num + 2, folder, attack, workers=1)
        assert len(read_ended(folder)) == num + 2
        assert before.items() <= tensors(folder).items()
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize("name", ["trials.jsonl", "begun.jsonl", "sweep.json", "trials"])
@pytest.mark.parametrize("dangling", [False, True])
def test_links_in_the_folder_are_never_followed(
    whole: Path, tiny: Target, tmp_path: Path, name: str, dangling: bool
) -> None:
    folder, mine = tmp_path / "sweep", tmp_path / "mine"
    shutil.copytree(whole, folder)
    (folder / name).rename(mine)
    before = {path: path.read_bytes() for path in mine.rglob("*")} if mine.is_dir() else mine.read_bytes()
    (folder / name).symlink_to(tmp_path / "nothing" if dangling else mine)
    with pytest.raises(UnfitError, match=f"{name} is a link"):
        sweep(tiny, 100, folder, QUICK, workers=1)
    after = {path: path.read_bytes() for path in mine.rglob("*")} if mine.is_dir() else mine.read_bytes()
    assert after == before
    assert not (tmp_path / "nothing").exists()


def test_a_link_that_comes_later_is_not_followed_either(tiny: Target, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    words = "Too many levels of symbolic links"
    with pytest.raises(UnfitError, match=words), open_sweep(tmp_path / "sweep", plan_of(tiny), 1) as store:  # noqa: PT012
        (tmp_path / "sweep" / "begun.jsonl").symlink_to(tmp_path / "mine")
        next(store.todo())
    assert (tmp_path / "mine").read_text() == "mine"


def test_the_folder_is_private(whole: Path) -> None:
    assert {path.stat().st_mode & 0o077 for path in (whole, *whole.rglob("*"))} == {0}
