"""Sweeps: the papers' distributions, kill and resume, several processes, a Ray cluster that loses a node."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import optuna
import pytest
import torch
from safetensors.torch import save_file

from unfit import load_target, sweep
from unfit.attacker.attacks.solvers import PaperSettings, run_paper
from unfit.attacker.candidates import load_candidates
from unfit.attacker.mixtures import read_mixtures
from unfit.attacker.sweep.run import make_plan
from unfit.attacker.sweep.study import open_books, read_lines, read_status
from unfit.attacker.sweep.trials import B23, H22, H22_INVERSION, Choice, Job, Range, draw
from unfit.base.errors import UnfitError, UsageError
from unfit.base.target import Target

SHORT = {"num_candidates": 10, "iterations": 300}  # of the papers' solver: a trial takes half a second
ARGUMENTS = ["--num-candidates", "10", "--iterations", "300"]
NUM = 6


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-c", "from unfit.cli import main; main()", *map(str, arguments)]


def run(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    everything = os.environ | environment
    return subprocess.run(command(*arguments), capture_output=True, text=True, env=everything, timeout=120)


def wait_for(condition, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def tensors(folder: Path) -> dict[str, bytes]:
    """The candidates of each trial, to the last bit."""
    return {
        path.name: load_candidates(path).x.numpy().tobytes() for path in (folder / "trials").glob("*.safetensors")
    }


def settings(folder: Path) -> dict[int, dict]:
    return {trial.number: trial.settings for trial in read_lines(folder)}


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
def whole(tiny: Target, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "sweep"
    status = sweep(tiny, NUM, folder, workers=1, **SHORT)
    assert len(status.ended) == NUM
    return folder


def plan_of(target: Target, sampler="random", method="inversion", solver=None, **more):
    fixed = {"score": None, "num_candidates": None, "iterations": None} | more
    return make_plan(target, None, method, solver, sampler, 0, fixed, {})


# settings


def test_the_papers_distributions():
    assert H22["lr"] == B23["lr"] == Range(low=1e-5, high=1, log=True)
    assert H22["sigma"] == Range(low=1e-6, high=1, log=True)
    assert B23["sigma"] == Range(low=1e-6, high=0.1, log=True)
    assert H22["alpha"] == B23["alpha"] == Range(low=10, high=500)
    assert H22["lambda_min"] == Range(low=1e-4, high=1, log=True)
    assert B23["lambda_min"] == Range(low=0.01, high=0.5)
    assert {
        "lr": Range(low=1e-6, high=1, log=True),
        "sigma": Range(low=1e-7, high=1, log=True),
    } == H22_INVERSION


def test_each_target_gets_the_distributions_of_its_paper(tiny):
    assert plan_of(tiny, method="kkt").parameters == H22
    assert set(plan_of(tiny, method="kkt", score="any").parameters) == {"lr", "sigma", "alpha"}
    weights = tiny.weights | {"layer2.weight": torch.ones(3, 30)}
    several = Target(type(tiny.architecture)((1, 8, 8), (30,), 3, (True, False)), weights)
    assert plan_of(several, method="kkt").parameters == B23


@pytest.mark.parametrize("sampler", ["random", "quasi"])
def test_settings_fill_their_ranges_and_follow_from_seed_and_number(tiny, sampler):
    plan = plan_of(tiny, sampler, "kkt")
    drawn = [draw(plan, number) for number in range(256)]
    for name, parameter in plan.parameters.items():
        values = np.array([values[name] for values in drawn])
        spread = np.log(values) if parameter.log else values
        low, high = (
            (np.log(parameter.low), np.log(parameter.high)) if parameter.log else (parameter.low, parameter.high)
        )
        share = (spread - low) / (high - low)
        assert 0 <= share.min() < 0.03
        assert 0.97 < share.max() <= 1
        distance = np.abs(np.sort(share) - (np.arange(256) + 0.5) / 256).max()  # Kolmogorov–Smirnov
        assert distance < (0.01 if sampler == "quasi" else 0.12)
    assert draw(plan, 200) == drawn[200]
    assert draw(plan.model_copy(update={"seed": 1}), 200) != drawn[200]


def test_choices_are_all_taken(tiny):
    plan = plan_of(tiny, method="unmix")
    drawn = [draw(plan, number) for number in range(40)]
    for name in ("contrast", "orthogonal"):
        parameter = plan.parameters[name]
        assert isinstance(parameter, Choice)
        assert {values[name] for values in drawn} == set(parameter.choices)


# one sweep


def test_a_sweep_and_its_folder(whole, tiny):
    status = read_status(whole)
    assert (status.num_trials, len(status.ended), status.running, status.at_work) == (NUM, NUM, 0, False)
    assert {trial.state for trial in status.ended} == {"complete"}
    plan = json.loads((whole / "sweep.json").read_text())
    assert plan["target"] == {"sha256": tiny.sha256, "architecture": "64-30-1"}
    assert (plan["method"], plan["solver"], plan["sampler"], plan["seed"]) == ("kkt", "paper", "random", 0)
    for trial in status.ended:
        candidates = load_candidates(whole / "trials" / f"{trial.number:05}.safetensors")
        assert len(candidates) == trial.num_candidates == 10
        assert candidates.facts["loss"] == trial.objective
        assert trial.settings.items() <= candidates.attack["settings"].items()
        assert candidates.attack["settings"]["seed"] == candidates.attack["seed"] == trial.number
    assert status.best.objective == min(trial.objective for trial in status.ended)


def test_optuna_opens_the_study_as_it_is(whole):
    study = optuna.load_study(storage=f"sqlite:///{whole / 'study.db'}", study_name="unfit")
    assert [trial.number for trial in study.trials] == list(range(NUM))
    for ended in read_lines(whole):
        trial = study.trials[ended.number]
        assert trial.state == optuna.trial.TrialState.COMPLETE
        assert trial.params == ended.settings
        assert trial.value == ended.objective
        assert min(trial.intermediate_values.values()) >= trial.value  # the curve of the losses


def test_nothing_is_left_to_do_the_second_time(whole, tiny):
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*.safetensors")}
    sweep(tiny, NUM, whole, workers=1, **SHORT)
    sweep(tiny, 2, whole, workers=1, **SHORT)
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*.safetensors")} == before
    assert len(read_lines(whole)) == NUM


def test_a_lost_file_is_made_again(whole, tiny, tmp_path):
    folder = shutil.copytree(whole, tmp_path / "sweep")
    (folder / "trials" / "00002.safetensors").unlink()
    sweep(tiny, NUM, folder, workers=1, **SHORT)
    assert tensors(folder) == tensors(whole)
    assert read_lines(folder) == read_lines(whole)


def test_kill_and_go_on_gives_the_same_as_an_uninterrupted_sweep(whole, tiny, path, tmp_path):
    """`kill -9` of a sweep with two workers, status from outside meanwhile; the rest in one process."""
    folder = tmp_path / "sweep"
    arguments = command("sweep", path, "--out", folder, "--trials", NUM, "--workers", 2, *ARGUMENTS)
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL)
    wait_for(lambda: (folder / "trials.jsonl").exists() and read_lines(folder))
    status = read_status(folder)
    process.send_signal(signal.SIGSTOP)  # no more lines, however slow this test is; workers finish what they have
    assert status.at_work
    assert status.running >= 1
    with pytest.raises(UnfitError, match="another process"):
        sweep(tiny, NUM, folder, workers=1, **SHORT)
    workers = children(process.pid)
    assert len(workers) >= 2
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_for(lambda: not any(is_alive(worker) for worker in workers), 10)  # no orphans
    status = read_status(folder)
    assert not status.at_work
    assert 0 < status.num_left < NUM
    done = {path: path.stat().st_mtime_ns for path in (folder / "trials").glob("*.safetensors")}
    sweep(tiny, NUM, folder, workers=1, **SHORT)
    assert {path: path.stat().st_mtime_ns for path in done} == done
    assert sorted(trial.number for trial in read_lines(folder)) == list(range(NUM))
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


def test_two_workers_and_an_extension_equal_one(whole, tiny, tmp_path):
    folder = tmp_path / "sweep"
    sweep(tiny, 2, folder, workers=1, **SHORT)
    sweep(tiny, NUM, folder, workers=2, **SHORT)
    assert tensors(folder) == tensors(whole)


@pytest.mark.parametrize("lost", ["line and study", "study", "end of the line"])
def test_killed_between_the_writing_of_file_line_and_study(tiny, tmp_path, lost):
    """What each kill would leave, made by the very steps of a sweep."""
    folder = tmp_path / "sweep"
    plan = plan_of(tiny, iterations=3, num_candidates=4)
    with open_books(folder, plan, 2) as books:
        trial = next(books.todo())
        ended = Job(tiny, None, plan, 1, folder).run(trial.number, trial.params).ended
        line = ended.model_dump_json() + "\n"
        if lost != "line and study":
            (folder / "trials.jsonl").write_text(line if lost == "study" else line[:-20])
    (folder / "trials" / ".00001.safetensors-x").mkdir()
    written = (folder / "trials" / "00000.safetensors").stat().st_mtime_ns
    status = sweep(tiny, 2, folder, "inversion", workers=1, iterations=3, num_candidates=4)
    assert (folder / "trials" / "00000.safetensors").stat().st_mtime_ns == written  # not run again
    assert [trial.number for trial in read_lines(folder)] == [0, 1]
    assert status.ended[0] == ended
    assert sorted(path.name for path in (folder / "trials").iterdir()) == [
        "00000.safetensors",
        "00001.safetensors",
    ]


def test_killed_before_the_settings_were_stored(tiny, tmp_path):
    folder = tmp_path / "sweep"
    plan = plan_of(tiny, iterations=3, num_candidates=4)
    with open_books(folder, plan, 2) as books:
        books.study.enqueue_trial(draw(plan, 0))
        books.study.ask()  # begun, no parameter stored yet
        books.study.enqueue_trial(draw(plan, 1))  # not even begun
    sweep(tiny, 3, folder, "inversion", workers=1, iterations=3, num_candidates=4)
    assert settings(folder) == {number: draw(plan, number) for number in range(3)}


def test_tpe_goes_on_as_if_it_had_not_been_stopped(tiny, tmp_path):
    short = {"sampler": "tpe", "workers": 1, "iterations": 5, "num_candidates": 4}
    sweep(tiny, 16, tmp_path / "a", "inversion", **short)
    for num in (3, 12, 16):
        sweep(tiny, num, tmp_path / "b", "inversion", **short)
    assert settings(tmp_path / "a") == settings(tmp_path / "b")
    assert tensors(tmp_path / "a") == tensors(tmp_path / "b")
    objectives = [trial.objective for trial in read_lines(tmp_path / "a")]
    assert np.mean(objectives[10:]) < np.mean(objectives[:10])  # after ten at random it learns


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("kkt", {"solver": "fast", "iterations": 20}),
        ("unmix", {"iterations": 5}),
        ("inversion", {"iterations": 5}),
    ],
)
def test_every_method_can_be_swept(face_run, tmp_path, method, more):
    status = sweep(load_target(face_run), 2, tmp_path / "sweep", method, sampler="quasi", workers=1, **more)
    assert [trial.state for trial in status.ended] == ["complete"] * 2
    assert all(trial.num_candidates > 0 for trial in status.ended)
    if method != "inversion":
        assert all(0 < trial.objective < 1 for trial in status.ended)
    files = sorted((tmp_path / "sweep" / "trials").iterdir())
    assert load_candidates(files[0]).attack["settings"] != load_candidates(files[1]).attack["settings"]


def test_diverged_trials_are_counted(tiny, tmp_path):
    ranges = {"lr": (1e8, 1e9)}
    status = sweep(tiny, 3, tmp_path / "sweep", workers=1, ranges=ranges, iterations=50, num_candidates=4)
    assert [trial.state for trial in status.ended] == ["diverged"] * 3
    assert all("diverged after" in trial.message for trial in status.ended)
    assert not list((tmp_path / "sweep" / "trials").iterdir())
    assert status.best is None
    assert "3 diverged" in status.words


def test_hopeless_trials_are_pruned_and_others_are_not(tiny):
    mixtures = read_mixtures(tiny)
    hopeless = PaperSettings(num_candidates=4, iterations=1001, lr=1e-12, lr_multiplier=1e-12, sigma=1e-6)
    ended = run_paper(tiny, mixtures, hopeless, give_up=True)
    assert ended.facts["status"] == "pruned after 1000 iterations"
    good = PaperSettings(num_candidates=20, iterations=1001, lr=0.05, sigma=0.1, lambda_min=0.01)
    ended = run_paper(tiny, mixtures, good, give_up=True)
    assert ended.facts["status"] == "finished"
    assert ended.facts["loss"] < 0.99


# other places


def test_mlflow_gets_every_trial_once(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    store, folder = tmp_path / "store", tmp_path / "sweep"
    sweep(tiny, 2, folder, "inversion", workers=1, iterations=3)
    for _ in range(2):
        sweep(tiny, 3, folder, "inversion", workers=1, iterations=3, mlflow=store.as_uri())
    logged = {path.parent.parent.name: path for path in store.glob("*/*/tags/number")}
    by_number = {path.read_text(): path.parents[1] for path in logged.values()}
    assert len(logged) == len(by_number) == 3
    for trial in read_lines(folder):
        of_run = by_number[str(trial.number)]
        assert float((of_run / "params" / "lr").read_text()) == trial.settings["lr"]
        assert float((of_run / "metrics" / "objective").read_text().split()[1]) == trial.objective


def test_a_ray_cluster_loses_a_node_and_no_trial(path, tiny, tmp_path):
    """Both nodes have one slot and both are at work, so that one of them is lost with a trial half done."""
    from ray.cluster_utils import Cluster

    long = {"num_candidates": 10, "iterations": 900}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        doomed = cluster.add_node(num_cpus=1)
        folder = tmp_path / "sweep"
        arguments = ["--num-candidates", "10", "--iterations", "900", "--ray", cluster.address]
        process = subprocess.Popen(
            command("sweep", path, "--out", folder, "--trials", 7, *arguments), stdout=subprocess.PIPE, text=True
        )
        wait_for(lambda: (folder / "trials.jsonl").exists() and len({t.node for t in read_lines(folder)}) == 2)
        own = doomed.node_id[:8]
        ended = sum(trial.node.endswith(own) for trial in read_lines(folder))
        # when its next trial has ended, the one after that has just begun
        wait_for(lambda: sum(trial.node.endswith(own) for trial in read_lines(folder)) > ended)
        wait_for(lambda: read_status(folder).running == 2)
        time.sleep(0.2)
        cluster.remove_node(doomed, allow_graceful=False)
        before = len(read_lines(folder))
        out, _ = process.communicate(timeout=90)
        assert process.returncode == 0
        assert "7 of 7 trials done" in out
        after = read_lines(folder)
        assert sorted(trial.number for trial in after) == list(range(7))
        assert before < 7
        assert not any(trial.node.endswith(own) for trial in after[before:])
        assert len({trial.node for trial in after[before:]}) == 1
    finally:
        cluster.shutdown()
    sweep(tiny, 7, tmp_path / "here", workers=1, **long)
    assert tensors(folder) == tensors(tmp_path / "here")


# what cannot be


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("127.0.0.1:9", "no Ray cluster answers at 127.0.0.1:9: Connection refused"),
        ("ray://127.0.0.1:9", "no Ray cluster answers at ray://127.0.0.1:9: Connection refused"),
        ("nobody.invalid:6379", "no Ray cluster answers at nobody.invalid:6379: "),
        ("somewhere", "'somewhere' is no address of a Ray cluster; give HOST:PORT"),
    ],
)
def test_an_unreachable_cluster_is_an_error_at_once(tiny, tmp_path, address, words):
    began = time.monotonic()
    with pytest.raises(UnfitError) as raised:
        sweep(tiny, 2, tmp_path / "sweep", ray=address)
    assert words in str(raised.value)
    assert time.monotonic() - began < 20
    assert not (tmp_path / "sweep").exists()


@pytest.mark.parametrize(("package", "extra"), [("ray", "cluster"), ("mlflow", "mlflow")])
def test_a_missing_extra_is_named(tiny, tmp_path, monkeypatch, package, extra):
    monkeypatch.setitem(sys.modules, package, None)  # as where it is not installed
    with pytest.raises(UnfitError, match=rf"pip install 'unfit\[{extra}\]'"):
        sweep(tiny, 1, tmp_path / "sweep", **{package: "127.0.0.1:9"})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 1}, r"seed \(0 there, 1 here\)"),
        ({"sampler": "quasi"}, r"sampler \(random there, quasi here\)"),
        ({"method": "inversion"}, r"method \(kkt there, inversion here\); solver \(paper there, null here\)"),
        ({"iterations": 301}, "fixed"),
        ({"ranges": {"alpha": (10.0, 20.0)}}, "parameters"),
    ],
)
def test_the_folder_of_another_sweep_is_refused(whole, tiny, change, words):
    with pytest.raises(UnfitError, match=f"another sweep, it differs in {words}"):
        sweep(tiny, NUM, whole, **({"workers": 1} | SHORT | change))


def test_the_folder_of_another_target_or_version_is_refused(whole, tiny, tmp_path):
    other = Target(tiny.architecture, tiny.weights | {"layer1.bias": torch.zeros(30)})
    with pytest.raises(UnfitError, match="differs in target"):
        sweep(other, NUM, whole, workers=1, **SHORT)
    folder = shutil.copytree(whole, tmp_path / "sweep")
    plan = json.loads((folder / "sweep.json").read_text())
    plan["versions"]["unfit"] = "0.0.1"
    (folder / "sweep.json").write_text(json.dumps(plan))
    with pytest.raises(UnfitError, match=r"differs in versions .*0\.0\.1"):
        sweep(tiny, NUM, folder, workers=1, **SHORT)


def test_what_is_no_sweep_is_refused(tiny, whole, tmp_path):
    (tmp_path / "other").mkdir()
    with pytest.raises(UnfitError, match="no sweep's folder"):
        sweep(tiny, 1, tmp_path / "other")
    (tmp_path / "file").touch()
    with pytest.raises(UnfitError, match="no sweep's folder"):
        sweep(tiny, 1, tmp_path / "file")
    broken = shutil.copytree(whole, tmp_path / "broken")
    (broken / "study.db").write_bytes(b"no database" * 1000)
    with pytest.raises(UnfitError, match=r"study\.db is not the study of a sweep"):
        sweep(tiny, NUM, broken, workers=1, **SHORT)
    (broken / "study.db").unlink()
    with pytest.raises(UnfitError, match=r"study\.db is missing"):
        read_status(broken)
    (broken / "trials.jsonl").write_text('{"number": 1}\n')
    with pytest.raises(UnfitError, match="no trial"):
        read_lines(broken)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"trials": 0}, "trials must be between 1 and 100,000, not 0"),
        ({"trials": -3}, "not -3"),
        ({"workers": 0}, "workers must be at least 1"),
        ({"cpus_per_trial": 0}, "at least one CPU"),
        ({"gpus_per_trial": 1}, "GPUs are shared out by Ray"),
        ({"iterations": 0}, "iterations must be at least 1"),
        ({"num_candidates": 3}, "3 candidates cannot be shared out to 2 classes"),
        ({"method": "auto"}, "unknown method of a sweep 'auto'; choose one of: kkt, unmix, inversion"),
        ({"sampler": "grid"}, "unknown sampler 'grid'; choose one of: random, quasi, tpe"),
        ({"ranges": {"beta": (1, 2)}}, "with a range 'beta'; choose one of: lr, sigma, alpha, lambda_min"),
        ({"ranges": {"lr": (0, 1)}}, "range of lr, 0:1, must be positive and rising"),
        ({"ranges": {"alpha": (5, 5)}}, "range of alpha, 5:5, must be rising"),
        ({"method": "unmix", "ranges": {"contrast": (0, 1)}}, "choose one of: rank"),
        ({"method": "unmix", "solver": "fast"}, "a sweep of unmix does not use --solver"),
        ({"method": "inversion", "score": "any"}, "does not use --score"),
    ],
)  # fmt: skip
def test_wrong_usage(tiny, tmp_path, arguments, words):
    with pytest.raises(UsageError) as raised:
        sweep(tiny, **({"trials": 1, "folder": tmp_path / "sweep"} | arguments))
    assert words in str(raised.value)
    assert not (tmp_path / "sweep").exists()


def test_a_base_is_for_attacks_that_use_it(tiny, tmp_path):
    with pytest.raises(UsageError, match="kkt with the solver paper does not use --base"):
        sweep(tiny, 1, tmp_path / "sweep", base=tiny)


def test_the_command_line(whole, path, tmp_path):
    done = run("sweep", whole, "--status")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0] == "kkt (paper) on 64-30-1, random settings, seed 0"
    assert lines[1].startswith(f"{NUM} of {NUM} trials done, 0 running, 0 pruned, 0 diverged, 0 failed; best")
    assert lines[-1] == "all done"
    done = run("sweep", path, "--out", tmp_path / "sweep", "--range", "lr=1")
    assert (done.returncode, done.stdout) == (64, "")
    assert done.stderr == "unfit: --range lr=1: write NAME=LOW:HIGH, such as lr=1e-3:1\n"


def test_a_full_disk_keeps_what_is_done(tiny, tmp_path):
    disk, folder = tmp_path / "disk", tmp_path / "disk" / "sweep"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("only root may mount a small disk")
    try:
        short = {"method": "inversion", "iterations": 2, "num_candidates": 40, "workers": 1}
        with pytest.raises(UnfitError, match=r"full|No space") as raised:
            sweep(tiny, 50, folder, **short)
        num = len(read_lines(folder))
        assert 0 < num < 50
        words = f"; the {num} trials that are done are kept, run the same command again to go on"
        assert str(raised.value).endswith(words)
        before = tensors(folder)
        subprocess.run(["mount", "-o", "remount,size=50m", disk], check=True)
        sweep(tiny, num + 2, folder, **short)
        assert len(read_lines(folder)) == num + 2
        assert before.items() <= tensors(folder).items()
    finally:
        subprocess.run(["umount", disk], check=True)
