"""One runner for all benchmarks: it knows every section, runs one job at a time, and resumes."""

from pathlib import Path

import pytest

import bench
import page

SCRIPT = "import sys; from pathlib import Path; Path(sys.argv[1]).open('a').write('{0}'); sys.exit({1})"


def job(folder: Path, name: str, minutes: float, code: int = 0) -> bench.Job:
    script = folder / f"{name}.py"
    script.write_text(SCRIPT.format(name, code), "utf-8")
    return bench.Job(minutes, f"{script} {folder}/log", ())


def test_every_section_is_measured_by_a_job_or_named_as_written_by_hand():
    titles = [title for job in bench.JOBS for title in job.titles]
    assert len(set(titles)) == len(titles)
    assert {section.title for section in page.stored()} <= {*titles, *bench.BY_HAND}


def test_every_script_is_there():
    for job in bench.JOBS:
        assert (Path(bench.__file__).parent / job.command.split()[0]).is_file()


def test_the_longest_is_last_and_a_failed_job_stops_nothing_and_runs_again(tmp_path, monkeypatch, capfd):
    jobs = (job(tmp_path, "c", 3), job(tmp_path, "a", 1), job(tmp_path, "b", 2, code=1))
    monkeypatch.setattr(bench, "JOBS", jobs)
    runs = tmp_path / "runs"
    assert bench.main(tmp_path, runs, stale=False, dry=True) == 0
    assert not runs.exists()
    assert bench.main(tmp_path, runs, stale=False, dry=False) == 1
    assert (tmp_path / "log").read_text() == "abc"
    assert "failed:" in capfd.readouterr().err
    monkeypatch.setattr(bench, "JOBS", (*jobs[:2], job(tmp_path, "b", 2)))
    assert bench.main(tmp_path, runs, stale=False, dry=False) == 0
    assert (tmp_path / "log").read_text() == "abcb"
    assert not (runs / "bench.json").exists()


def test_what_was_measured_with_this_code_is_not_stale(monkeypatch):
    section = page.stored()[0]
    known = bench.Job(1, "any.py", (section.title,))
    for code, stale in (({}, True), ({"base": "other"}, True), (page.hashes(["base"]), False)):
        now = section.model_copy(update={"code": code})
        monkeypatch.setattr(page, "stored", lambda now=now: [now])
        assert bench.is_stale(known) is stale
    assert bench.is_stale(known._replace(titles=("measured never",)))


@pytest.mark.parametrize("stale", [True, False])
def test_it_says_how_long_it_takes(stale, tmp_path, capsys):
    assert bench.main(tmp_path, tmp_path, stale, dry=True) == 0
    assert "on an idle core" in capsys.readouterr().out
