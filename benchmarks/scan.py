"""What `unfit scan` finds, misses and finds falsely, over pipelines on bundled tables and texts, and how fast.

    python benchmarks/scan.py [--only table|strangers|speed|registry] [--seed 0] [--tables wine]

Each part is a section of the results. Each pipeline is fitted on a third of a table. Saved by joblib, pickle and skops, the file is scanned twice: with the
third that it was fitted on (and another as the control), which must find every stored row, and with two thirds that it
never saw, which must find none. `strangers` repeats the last with samples that repeat by chance, and without a control.
"""

from __future__ import annotations

import argparse
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import skops.io
from sklearn import datasets
from sklearn.cluster import DBSCAN, AffinityPropagation
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA, KernelPCA
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer, TfidfVectorizer
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.impute import KNNImputer, SimpleImputer
from sklearn.kernel_approximation import Nystroem
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Lasso, LinearRegression, LogisticRegression, Ridge, SGDClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import (
    KernelDensity,
    KNeighborsClassifier,
    KNeighborsRegressor,
    LocalOutlierFactor,
    NearestNeighbors,
    RadiusNeighborsClassifier,
)
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    MaxAbsScaler,
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    QuantileTransformer,
    RobustScaler,
    StandardScaler,
)
from sklearn.semi_supervised import LabelPropagation, LabelSpreading
from sklearn.svm import SVC, SVR, NuSVC, OneClassSVM
from sklearn.tree import DecisionTreeClassifier

from page import write_section
from unfit import scan
from unfit.auditor.scan.findings import ScanRecord

Make = Callable[[], Any]
FORMATS = ("joblib", "pickle", "skops")
CODE = ("auditor/scan", "auditor/stored.py", "base/formats", "base/held.py", "base/contents.py")
ROWS: dict[str, Make] = {  # what stores rows of the samples
    "SVC": SVC,
    "NuSVC": lambda: NuSVC(nu=0.1),
    "SVR": SVR,
    "OneClassSVM": OneClassSVM,
    "KNeighborsClassifier": KNeighborsClassifier,
    "KNeighborsClassifier, kd_tree": lambda: KNeighborsClassifier(algorithm="kd_tree"),
    "KNeighborsRegressor": KNeighborsRegressor,
    "RadiusNeighborsClassifier": lambda: RadiusNeighborsClassifier(1e4),
    "NearestNeighbors": NearestNeighbors,
    "LocalOutlierFactor": lambda: LocalOutlierFactor(novelty=True),
    "KNNImputer": KNNImputer,
    "KernelDensity": KernelDensity,
    "GaussianProcessClassifier": GaussianProcessClassifier,
    "GaussianProcessRegressor": GaussianProcessRegressor,
    "KernelRidge": KernelRidge,
    "KernelPCA": lambda: KernelPCA(2, kernel="rbf"),
    "LabelPropagation": lambda: LabelPropagation(kernel="knn"),
    "LabelSpreading": lambda: LabelSpreading(kernel="knn"),
    "DBSCAN": lambda: DBSCAN(eps=1e5, min_samples=2),
    "Nystroem": lambda: Nystroem(n_components=40),
    "AffinityPropagation": AffinityPropagation,
    "StandardScaler, SVC": lambda: make_pipeline(StandardScaler(), SVC()),
    "MinMaxScaler, KNeighbors": lambda: make_pipeline(MinMaxScaler(), KNeighborsClassifier()),
    "RobustScaler, SVC": lambda: make_pipeline(RobustScaler(), SVC()),
    "MaxAbsScaler, KernelRidge": lambda: make_pipeline(MaxAbsScaler(), KernelRidge()),
    "SimpleImputer, StandardScaler, KNeighbors": lambda: make_pipeline(
        SimpleImputer(), StandardScaler(), KNeighborsClassifier()
    ),
    "StandardScaler, PCA, KNeighbors": lambda: make_pipeline(StandardScaler(), PCA(3), KNeighborsClassifier()),
    "PCA whitened, SVC": lambda: make_pipeline(PCA(3, whiten=True), SVC()),
    "columns in another order, SVC": lambda: make_pipeline(
        ColumnTransformer([("a", StandardScaler(), [3, 1]), ("b", "passthrough", [0, 2])]), SVC()
    ),
    "bagged KNeighbors": lambda: BaggingClassifier(KNeighborsClassifier(), n_estimators=3),
}
NONE: dict[str, Make] = {  # what stores none
    "LinearRegression": LinearRegression,
    "LogisticRegression": lambda: LogisticRegression(max_iter=50),
    "Ridge": Ridge,
    "Lasso": Lasso,
    "SGDClassifier": SGDClassifier,
    "GaussianNB": GaussianNB,
    "DecisionTreeClassifier": DecisionTreeClassifier,
    "RandomForestClassifier": lambda: RandomForestClassifier(20),
    "GradientBoostingClassifier": lambda: GradientBoostingClassifier(n_estimators=20),
    "HistGradientBoostingClassifier": lambda: HistGradientBoostingClassifier(max_iter=20),
    "AdaBoostClassifier": lambda: AdaBoostClassifier(n_estimators=10),
    "MLPClassifier": lambda: MLPClassifier((20,), max_iter=30),
    "StandardScaler, LogisticRegression": lambda: make_pipeline(StandardScaler(), LogisticRegression()),
    "StandardScaler, PCA, MLPClassifier": lambda: make_pipeline(
        StandardScaler(), PCA(3), MLPClassifier((10,), max_iter=30)
    ),
}
TABLES = {"breast cancer": "load_breast_cancer", "wine": "load_wine", "diabetes": "load_diabetes"}
TEXTS: dict[str, Make] = {
    "CountVectorizer": CountVectorizer,
    "TfidfVectorizer": TfidfVectorizer,
    "TfidfVectorizer, pairs": lambda: TfidfVectorizer(ngram_range=(1, 2)),
    "TfidfVectorizer, LogisticRegression": lambda: make_pipeline(TfidfVectorizer(), LogisticRegression()),
    "TfidfVectorizer, KNeighbors": lambda: make_pipeline(TfidfVectorizer(), KNeighborsClassifier()),
}
TEXTS_NONE: dict[str, Make] = {
    "HashingVectorizer, LogisticRegression": lambda: make_pipeline(HashingVectorizer(), LogisticRegression()),
}
VALUES: dict[str, Make] = {"QuantileTransformer": lambda: QuantileTransformer(n_quantiles=50)}


@dataclass
class Tally:
    """Of one pipeline, over tables and formats."""

    files: int = 0
    found: int = 0
    missed: int = 0
    false: int = 0
    rows: int = 0
    rows_found: int = 0


def thirds(x: Any, y: Any, seed: int) -> list[tuple[Any, Any]]:
    order = np.random.default_rng(seed).permutation(len(y))
    return [
        (x[order[i::3]] if not isinstance(x, list) else [x[j] for j in order[i::3]], y[order[i::3]])
        for i in range(3)
    ]


def fitted(make: Make, x: Any, y: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make().fit(x, y)


def saved(model: Any, kind: str, folder: Path) -> Path:
    path = folder / f"model.{kind}"
    if kind == "skops":
        skops.io.dump(model, path)
    elif kind == "joblib":
        joblib.dump(model, path)
    else:
        path.write_bytes(pickle.dumps(model))
    return path


def stored_rows(model: Any, x: Any) -> int:
    """How many different rows of the table such an estimator stores."""
    last = model.steps[-1][1] if hasattr(model, "steps") else model
    different = len(np.unique(x, axis=0)) if isinstance(x, np.ndarray) else len(set(x))
    if hasattr(last, "support_"):
        return len(np.unique(x[last.support_], axis=0))
    if hasattr(last, "cluster_centers_indices_"):
        return len(last.cluster_centers_indices_)
    if hasattr(last, "component_indices_"):
        return len(last.component_indices_[: last.n_components])
    if hasattr(last, "estimators_samples_"):
        return len(np.unique(np.concatenate(last.estimators_samples_)))
    return different


def rows_in(record: ScanRecord) -> int:
    return max((each.num for each in record.findings if each.is_private and each.holds == "rows"), default=0)


def measure(name: str, make: Make, holds: str, sets: list[tuple[Any, Any]], tally: Tally, folder: Path) -> None:
    (own, labels), (other, _), (third, _) = sets
    model = fitted(make, own, labels)
    for kind in FORMATS:
        try:
            path = saved(model, kind, folder)
        except Exception as error:
            print(f"  {name} cannot be saved by {kind}: {type(error).__name__}")
            continue
        record, strangers = scan(path, own, other), scan(path, third, other)
        hit = any(each.is_private for each in record.findings)
        tally.files += 1
        tally.found += hit and holds != "none"
        tally.missed += not hit and holds != "none"
        tally.false += rows_in(strangers) > 0 or (hit and holds == "none")
        if holds == "rows":
            tally.rows += stored_rows(model, own)
            tally.rows_found += min(rows_in(record), stored_rows(model, own))


def sentences() -> tuple[list[str], Any]:
    """Texts that scikit-learn brings: the descriptions of its data sets."""
    loads = (datasets.load_breast_cancer, datasets.load_wine, datasets.load_diabetes, datasets.load_iris)
    found = [each for load in loads for each in re.split(r"[.\n]{1,}\s", load().DESCR) if len(each.split()) > 3]
    return found, np.arange(len(found)) % 2


def tables(seed: int, names: list[str]) -> Iterator[str]:
    total = Tally()
    data = [getattr(datasets, load)(return_X_y=True) for load in map(TABLES.__getitem__, names)]
    data = [(x, (y > np.median(y)).astype(int) if len(set(y)) > 9 else y) for x, y in data]
    groups = (("rows", ROWS, data), ("none", NONE, data), ("values", VALUES, data))
    texts = [sentences()]
    yield f"Fitted on a third of each of: {', '.join(names)}, seed {seed}; and on sentences of scikit-learn's own data sets."
    yield "Each is saved by joblib, pickle and skops. *False*: private samples, words or values in a model that holds none,"
    yield "or rows in a file that is compared with samples that it was not fitted on."
    yield ""
    yield "| pipeline | holds | files | found | missed | false | rows found |"
    yield "|---|---|---|---|---|---|---|"
    with tempfile.TemporaryDirectory() as name:
        for holds, makes, sources in (*groups, ("words", TEXTS, texts), ("none", TEXTS_NONE, texts)):
            for title, make in makes.items():
                tally = Tally()
                for x, y in sources:
                    measure(title, make, holds, thirds(x, y, seed), tally, Path(name))
                yield row(title, holds, tally)
                for key, value in vars(tally).items():
                    setattr(total, key, getattr(total, key) + value)
    yield row("all", "", total)


def row(title: str, holds: str, tally: Tally) -> str:
    rows = f"{tally.rows_found} of {tally.rows}" if tally.rows else ""
    print(title, vars(tally), flush=True)
    return f"| {title} | {holds} | {tally.files} | {tally.found} | {tally.missed} | {tally.false} | {rows} |"


# Files that saw neither set ---------------------------------------------------------------------------------------


def zipf(random: np.random.Generator, num: int, size: Any) -> Any:
    """Numbers below `num`, the first of them often."""
    often = 1 / np.arange(1, num + 1)
    return random.choice(num, size, p=often / often.sum())


def book(random: np.random.Generator, n: int) -> Any:
    """Rows that repeat as a whole, of columns that depend on each other."""
    return np.random.default_rng(5).normal(size=(400, 20))[zipf(random, 400, n)]


def real(load: Any) -> Callable[[np.random.Generator, int], Any]:
    x = load().data
    return lambda random, n: x[random.permutation(len(x))[:n]]


POOLS: dict[str, Callable[[np.random.Generator, int], Any]] = {
    "4 whole numbers below 10": lambda random, n: random.integers(0, 10, (n, 4)).astype(float),
    "8 bits": lambda random, n: random.integers(0, 2, (n, 8)).astype(float),
    "answers from 1 to 5": lambda random, n: np.clip(np.round(random.normal(3, 1, (n, 12))), 1, 5),
    "rounded to one digit": lambda random, n: np.round(random.normal(size=(n, 3)), 1),
    "rows of a book": book,
    "wine": real(datasets.load_wine),
    "iris": real(datasets.load_iris),
    "diabetes": real(datasets.load_diabetes),
    "digits": real(datasets.load_digits),
}
KEEPING = ("SVC", "KNeighborsClassifier", "KNeighborsClassifier, kd_tree", "KNNImputer", "StandardScaler, SVC")
CODING: dict[str, Make] = {"OneHotEncoder": OneHotEncoder, "OrdinalEncoder": OrdinalEncoder, **VALUES}
PROSE: dict[str, Callable[[np.random.Generator, int], list[str]]] = {
    "words by Zipf's law": lambda random, n: [" ".join(f"w{i}" for i in zipf(random, 3000, 12)) for _ in range(n)],
    "names and towns": lambda random, n: [
        f"patient {a} of town {b}" for a, b in zip(zipf(random, 300, n), zipf(random, 40, n), strict=True)
    ],
    "sentences": lambda random, n: [sentences()[0][i] for i in random.permutation(len(sentences()[0]))[:n]],
}


def strangers(seeds: int) -> Iterator[str]:
    """Private and unseen samples, of different numbers, from the pool of a file that saw neither."""
    yield "The file was fitted on other samples of the same pool; the unseen set is as large as the private one, a third of"
    yield f"it, or three times as large. {seeds} draws of each. Code 3: it stores samples, but not the given ones, as far as seen."
    yield ""
    yield "| samples | files | scans | leaks | leaks without unseen samples | code 3 | code 0 |"
    yield "|---|---|---|---|---|---|---|"
    tabular = {name: ROWS[name] for name in KEEPING} | CODING
    totals = np.zeros(5, int)
    for pools, makes in ((POOLS, tabular), (PROSE, TEXTS)):
        for name, pool in pools.items():
            codes = [found for make in makes.values() for i in range(seeds) for found in asked(pool, make, i)]
            with_control, without = codes[::2], codes[1::2]
            counts = [len(codes), with_control.count(1), without.count(1), codes.count(3), codes.count(0)]
            totals += counts
            print(name, counts, flush=True)
            yield f"| {name} | {len(makes)} models | {' | '.join(map(str, counts))} |"
    yield f"| all | | {' | '.join(map(str, totals))} |"


def asked(pool: Callable[[np.random.Generator, int], Any], make: Make, seed: int) -> tuple[int, int]:
    """The exit codes with unseen samples and without."""
    random, n = np.random.default_rng(seed), (40, 60, 100)[seed % 3]
    x = pool(random, 5 * n)
    n = min(n, len(x) // 5)
    m = (n, n // 3, 3 * n)[seed // 3 % 3]
    model = fitted(make, x[:n], np.arange(n) % 2)
    own, other = x[n : 2 * n], x[2 * n : 2 * n + m]
    return scan(model, own, other).exit_code, scan(model, own).exit_code


# Speed, and a kill ------------------------------------------------------------------------------------------------


def speed() -> Iterator[str]:
    """In seconds of the processor: other work on the machine does not change these."""
    yield "| scan | processor seconds | found | memory, GB |"
    yield "|---|---|---|---|"
    with tempfile.TemporaryDirectory() as name:
        folder, rng = Path(name), np.random.default_rng(0)
        model = KNeighborsClassifier().fit(rng.random((13_000, 100)), np.arange(13_000) % 2)
        joblib.dump(model, folder / "a.joblib")
        began = time.process_time()
        scan(folder / "a.joblib")
        size = (folder / "a.joblib").stat().st_size / 1e6
        yield f"| a file of {size:.0f} MB, by class | {time.process_time() - began:.2f} | | |"
        x = rng.random((1_250_000, 100))
        np.savez(folder / "b.npz", kept=x)
        own, other = x[rng.permutation(len(x))[:50_000]], rng.random((50_000, 100))
        own[25_000:] = rng.random((25_000, 100))
        del x
        began = time.process_time()
        found = scan(folder / "b.npz", own, other)
        words = f"{rows_in(found)} of 25,000 stored rows"
        took = time.process_time() - began
        with open("/proc/self/status") as status:
            size = next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1e6
        yield f"| 100,000 rows against a file of 1 GB | {took:.0f} | {words} | {size:.1f} |"


def kept(folder: Path) -> int:
    """Files whose rows are on the disk, whole."""
    return sum(each.read_bytes().count(b"\n") for each in folder.rglob("files.jsonl"))


def registry() -> Iterator[str]:
    """1,000 files; the process is killed three times and started again."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "models"
        folder.mkdir()
        x, y = datasets.load_wine(return_X_y=True)
        content = [pickle.dumps(make().fit(x, y)) for make in (SVC, LinearRegression)]
        for i in range(1000):
            (folder / f"{i:04}.pkl").write_bytes(content[i % 2])
        words = [sys.executable, "-m", "unfit", "scan", str(folder), "--out", str(Path(name) / "o.json")]
        for stop in (250, 500, 750):
            process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            while kept(Path(name)) < stop:
                time.sleep(0.05)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            yield f"Killed (SIGKILL) after {kept(Path(name))} of 1,000 files."
        left = 1000 - kept(Path(name))
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        said = done.stdout.splitlines()[-1]
        yield f"The last run scanned the {left} files that were left, and said of all: {said} Exit code {done.returncode}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("table", "strangers", "speed", "registry"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tables", default=",".join(TABLES))
    options = parser.parse_args()
    parts = {
        "table": ("Scan: what pipelines store", lambda: tables(options.seed, options.tables.split(","))),
        "strangers": ("Scan: how many leaks are false", lambda: strangers(9)),
        "speed": ("Scan: how long it takes", speed),
        "registry": ("Scan: a registry, killed and resumed", registry),
    }
    for name, (title, lines) in parts.items():
        if options.only in (None, name):
            write_section(title, lines(), CODE)


if __name__ == "__main__":
    main()
