"""What stands in a file in plain sight: found in estimators of every kind, and never in models that hold none."""

from __future__ import annotations

import json
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import joblib
import numpy as np
import pytest
import skops.io
import torch
from jsonschema import Draft202012Validator
from sklearn.cluster import DBSCAN, AffinityPropagation
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_breast_cancer
from sklearn.decomposition import PCA, KernelPCA
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.impute import KNNImputer
from sklearn.kernel_approximation import Nystroem
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KernelDensity, KNeighborsClassifier, LocalOutlierFactor
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, QuantileTransformer, StandardScaler
from sklearn.semi_supervised import LabelPropagation
from sklearn.svm import SVC, SVR, OneClassSVM
from sklearn.tree import DecisionTreeClassifier

import unfit
from unfit import NoAttackError
from unfit.auditor.report import scan as report
from unfit.auditor.scan.compare import Known, rows_held
from unfit.auditor.scan.data import read_side
from unfit.auditor.scan.findings import FolderRecord, ScanRecord
from unfit.auditor.scan.folder import LINES, Job, scan_folder
from unfit.auditor.scan.known import known_of, row_of
from unfit.auditor.scan.overlap import p_by_samples
from unfit.base.contents import Item
from unfit.base.held import held_by
from unfit.testing import assert_no_samples

X, Y = load_breast_cancer(return_X_y=True)
X, Y = X[:200], Y[:200]
OWN, OTHER = X[::2], X[1::2]
LABELS = Y[::2]
HOLDING: dict[str, Callable[[], Any]] = {
    "svc": SVC,
    "svr": SVR,
    "one class": OneClassSVM,
    "neighbours": KNeighborsClassifier,
    "tree of neighbours": lambda: KNeighborsClassifier(algorithm="kd_tree"),
    "outliers": lambda: LocalOutlierFactor(novelty=True),
    "imputer": KNNImputer,
    "process": GaussianProcessClassifier,
    "kernel ridge": KernelRidge,
    "kernel components": lambda: KernelPCA(2, kernel="rbf"),
    "labels": LabelPropagation,
    "clusters": lambda: DBSCAN(eps=1e4, min_samples=2),
    "nystroem": lambda: Nystroem(n_components=50),
    "density": KernelDensity,
    "centres": AffinityPropagation,
    "behind a scaler": lambda: make_pipeline(StandardScaler(), SVC()),
    "behind a range": lambda: make_pipeline(MinMaxScaler(), KNeighborsClassifier()),
    "behind components": lambda: make_pipeline(StandardScaler(), PCA(6, whiten=True), KNeighborsClassifier()),
    "behind other columns": lambda: make_pipeline(
        ColumnTransformer([("a", StandardScaler(), [7, 3, 1]), ("b", "passthrough", [2, 20])]), SVC()
    ),
}
HOLDING_NONE: dict[str, Callable[[], Any]] = {
    "logistic": lambda: LogisticRegression(max_iter=10),
    "linear": LinearRegression,
    "tree": DecisionTreeClassifier,
    "forest": lambda: RandomForestClassifier(5),
    "boosting": lambda: HistGradientBoostingClassifier(max_iter=5),
    "bayes": GaussianNB,
    "perceptron": lambda: MLPClassifier((8,), max_iter=5, random_state=0),
    "scaled": lambda: make_pipeline(StandardScaler(), LogisticRegression()),
}


def fitted(make: Callable[[], Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about convergence, which is not the question
        return make().fit(OWN, LABELS)


@pytest.mark.parametrize("name", HOLDING)
def test_rows_that_stand_in_an_estimator_are_found(name: str) -> None:
    found = unfit.scan(fitted(HOLDING[name]), OWN, OTHER)
    first = found.findings[0]
    assert (found.exit_code, first.holds, first.basis, first.num_unseen) == (1, "rows", "compared", 0)
    assert first.num > 5 or name == "centres"


@pytest.mark.parametrize("name", HOLDING_NONE)
def test_models_that_hold_no_rows_hold_none(name: str) -> None:
    model = fitted(HOLDING_NONE[name])
    for found in (unfit.scan(model, OWN, OTHER), unfit.scan(model)):
        assert (found.exit_code, [each.path for each in found.findings if each.is_private]) == (0, [])


def test_samples_of_others_are_no_finding_and_no_pass() -> None:
    """The rows are not those that were given: nobody's leak, and nothing was cleared."""
    found = unfit.scan(fitted(SVC), OTHER, OWN)
    assert found.exit_code == 3
    assert "none of those that were given" in found.unread[0]


@pytest.mark.parametrize("kind", ["joblib", "compressed", "pickle", "old pickle", "skops"])
def test_the_same_in_every_file(kind: str, tmp_path: Path) -> None:
    model, path = fitted(HOLDING["behind a scaler"]), tmp_path / f"model.{kind.split()[-1]}"
    if kind == "skops":
        skops.io.dump(model, path)
    elif "pickle" in kind:
        path.write_bytes(pickle.dumps(model, protocol=0 if kind == "old pickle" else 5))
    else:
        path = path.with_suffix(".joblib")
        joblib.dump(model, path, compress=3 if kind == "compressed" else 0)
    found, live = unfit.scan(path, OWN, OTHER), unfit.scan(model, OWN, OTHER)
    assert [(each.path, each.num) for each in found.findings if each.is_private] == [
        (each.path, each.num) for each in live.findings if each.is_private
    ]
    assert found.exit_code == 1


def test_half_precision_and_another_order_of_columns_hide_nothing(tmp_path: Path) -> None:
    order = np.random.default_rng(0).permutation(X.shape[1])
    torch.save({"w": torch.zeros(3, 3), "kept": torch.tensor(OWN[:40][:, order]).half()}, tmp_path / "a.pt")
    first = unfit.scan(tmp_path / "a.pt", OWN, OTHER).findings[0]
    assert (first.path, first.num_unseen, first.num) == ("kept", 0, 40)


def test_values_and_words_of_private_samples_alone() -> None:
    own, other = [[f"v{i}", "red"] for i in range(30)], [[f"w{i}", "red"] for i in range(30)]
    encoder = OneHotEncoder().fit(own)
    found = unfit.scan(encoder, np.array(own, object), np.array(other, object))
    assert (found.exit_code, found.findings[0].holds, found.findings[0].num) == (1, "values", 30)
    assert found.findings[0].example is None
    shared = unfit.scan(OneHotEncoder().fit([["red"]]), np.array(own, object), np.array(other, object))
    assert shared.exit_code == 0

    texts, others = (
        [f"patient name{i} coughs" for i in range(30)],
        [f"patient name{i} coughs" for i in range(30, 60)],
    )
    words = unfit.scan(CountVectorizer().fit(texts), texts, others, examples=True)
    assert (words.exit_code, words.findings[0].holds, words.findings[0].num_unseen) == (1, "words", 0)
    assert str(words.findings[0].example).startswith("name")
    rows = make_pipeline(TfidfVectorizer(), KNeighborsClassifier(1)).fit(texts, np.arange(30) % 2)
    assert [each.num for each in unfit.scan(rows, texts, others).findings if each.holds == "rows"] == [30]


def test_sorted_values_of_columns_are_values_of_samples() -> None:
    found = unfit.scan(QuantileTransformer(n_quantiles=100).fit(OWN), OWN, OTHER)
    assert (found.exit_code, found.findings[0].holds) == (1, "values")


def test_without_data_the_class_decides() -> None:
    found = unfit.scan(fitted(SVC))
    assert (found.exit_code, found.findings[0].basis, found.findings[0].path) == (
        1,
        "by class",
        "support_vectors_",
    )
    assert "linear model" in found.findings[0].remedy
    assert known_of(Item("x", torch.zeros(3), "other.SVC", "support_vectors_")) is None


def test_banks_optimisers_and_code_are_named(tmp_path: Path) -> None:
    net = torch.nn.Linear(4, 2)
    adam = torch.optim.Adam(net.parameters())
    net(torch.rand(3, 4)).sum().backward()
    adam.step()
    state = {"model": net.state_dict(), "optimizer": adam.state_dict(), "queue": torch.rand(100, 4)}
    torch.save(state, tmp_path / "a.pt")
    found = unfit.scan(tmp_path / "a.pt")
    assert {each.holds for each in found.findings} == {"optimiser", "bank"}
    (tmp_path / "b.pkl").write_bytes(pickle.dumps(Hostile(), protocol=4))
    hostile = unfit.scan(tmp_path / "b.pkl")
    assert [each.holds for each in hostile.findings] == ["code"]
    assert "system" in hostile.findings[0].path


class Hostile:
    def __reduce__(self) -> Any:
        import os

        return os.system, ("touch /tmp/unfit-was-run",)


# Every estimator of the installed scikit-learn ----------------------------------------------------------------


def estimators() -> dict[str, Any]:
    from sklearn.utils import all_estimators

    return dict(all_estimators())


def drawn(kind: str, n: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    x = np.abs(rng.normal(size=(n, 5))).round(6)
    y = (x[:, 0] > np.median(x[:, 0])).astype(int)
    texts = [" ".join(f"w{j}" for j in rng.integers(0, 300, 8)) for _ in range(n)]
    return {
        "table": (x, y),
        "targets": (x, np.stack([y, 1 - y], 1)),
        "texts": (texts, y),
        "dicts": ([{"city": f"c{i}"} for i in range(n)], y),
        "labels": ([f"p{i}" for i in range(n)], None),
        "column": (x[:, 0], x[:, 1]),
    }[kind]


def made(name: str, kind: Any) -> Any:
    ridge = LogisticRegression()
    if name in ("StackingClassifier", "StackingRegressor", "VotingClassifier", "VotingRegressor"):
        return kind([("a", ridge if "Classifier" in name else LinearRegression())])
    if name in ("ColumnTransformer", "FeatureUnion", "Pipeline"):
        step = ("a", "passthrough", [0]) if name == "ColumnTransformer" else ("a", StandardScaler())
        return kind([step])
    if "SearchCV" in name:
        return kind(ridge, {"C": [1, 2]}, **({"n_iter": 2} if name == "RandomizedSearchCV" else {}))
    try:
        return kind()
    except TypeError:
        return kind(np.eye(5) if name == "SparseCoder" else ridge)


def held_rows(x: np.ndarray, items: list[Item]) -> set[tuple[str, str]]:
    """The attributes of which several rows equal samples, or that grow to hold one entry for each."""
    found = set()
    known = {tuple(row) for row in x}
    for item in items:
        value = item.value
        if isinstance(value, torch.Tensor) and value.ndim == 2 and value.shape[1] == x.shape[1]:
            rows = [tuple(row) for row in value.double().tolist()]
            if sum(row in known for row in rows) > 1:
                found.add((item.owner, item.name))
    return found


def test_the_table_knows_every_attribute_of_scikit_learn_that_holds_rows_or_words() -> None:
    """Fit each estimator on two sizes; what equals rows, or grows with n, has to be in the table."""
    fitted_ones, unknown = 0, []
    for name, kind in estimators().items():
        for form in ("table", "targets", "texts", "dicts", "labels", "column"):
            sizes: dict[tuple[str, str], list[tuple[int, ...]]] = {}
            rows: set[tuple[str, str]] = set()
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    for n in (24, 48):
                        x, y = drawn(form, n)
                        model = made(name, kind)
                        model.fit(x) if y is None else model.fit(x, y)
                        items = held_by(model).items
                        rows |= held_rows(x, items) if form in ("table", "targets") else set()
                        for item in items:
                            shape = (
                                tuple(item.value.shape)
                                if isinstance(item.value, torch.Tensor)
                                else (len(item.texts),)
                            )
                            sizes.setdefault((item.owner, item.name), []).append(shape)
            except Exception:
                continue  # another form of data may fit
            fitted_ones += 1
            grown = {key for key, each in sizes.items() if (24 in each[0] and 48 in each[-1] and len(each) > 1)}
            for owner, attribute in rows | grown:
                known = known_of(Item("x", torch.zeros(9), owner, attribute))
                if owner.startswith("sklearn.") and row_of(owner, attribute) is None:
                    unknown.append((name, owner.rpartition(".")[2], attribute))
                if (owner, attribute) in rows and known is not None and known[0] not in ("rows", "centres"):
                    unknown.append((name, attribute, known[0]))
            break
    assert fitted_ones > 180
    assert unknown == [], unknown


# Folders, reports, and the tools around -----------------------------------------------------------------------


def test_a_folder_has_a_row_for_each_file_and_resumes(tmp_path: Path) -> None:
    registry = tmp_path / "registry"
    (registry / "deep").mkdir(parents=True)
    joblib.dump(fitted(SVC), registry / "a.joblib")
    joblib.dump(fitted(HOLDING_NONE["linear"]), registry / "deep" / "b.joblib")
    (registry / "c.pkl").write_bytes(b"\x80\x04broken.")
    (registry / "README").write_text("no model")
    parts = tmp_path / "parts"
    found = scan_folder(Job(registry, None, None, False), parts=parts)
    assert ([each.file for each in found.files], list(found.failed)) == (["a.joblib", "deep/b.joblib"], ["c.pkl"])
    lines = (parts / LINES).read_bytes().splitlines(keepends=True)
    (parts / LINES).write_bytes(lines[0] + lines[1] + b'{"name": "cut sh')
    seen = []
    again = scan_folder(
        Job(registry, None, None, False), parts=parts, progress=lambda _, words: seen.append(words)
    )
    assert (seen, [each.file for each in again.files] == ["a.joblib", "deep/b.joblib"], again.exit_code) == (
        ["3 of 3 files"],
        True,
        1,
    )


def test_the_command_writes_all_reports(run: Any, tmp_path: Path) -> None:
    joblib.dump(fitted(SVC), tmp_path / "m.joblib")
    for name, x, y in (("own", OWN, Y[::2]), ("other", OTHER, Y[1::2])):
        np.savetxt(tmp_path / f"{name}.csv", np.column_stack([x, y]), delimiter=",", fmt="%.17g")
    words = ["--data", f"csv:{tmp_path}/own.csv:30", "--unseen", f"csv:{tmp_path}/other.csv:30"]
    outputs = {"--out": "o.json", "--sarif": "o.sarif", "--junit": "o.xml", "--page": "o.html"}
    more = [word for flag, name in outputs.items() for word in (flag, tmp_path / name)]
    code, text, _ = run("scan", tmp_path / "m.joblib", *words, *more)
    assert (code, "support_vectors_" in text) == (1, True)
    record = json.loads((tmp_path / "o.json").read_text())
    assert record.pop("outcome") == "found"
    schema = json.loads((Path(__file__).parents[2] / "docs" / "scan.schema.json").read_text())
    assert schema == ScanRecord.model_json_schema()
    Draft202012Validator(schema).validate(record)
    assert ScanRecord.model_validate(record).exit_code == 1
    log = json.loads((tmp_path / "o.sarif").read_text())
    assert [each["ruleId"] for each in log["runs"][0]["results"]] == ["unfit/scan/rows"]
    assert ElementTree.parse(tmp_path / "o.xml").getroot().get("failures") == "1"
    assert "support_vectors_" in (tmp_path / "o.html").read_text()
    assert run("scan", tmp_path / "nothing")[0] == 2
    assert run("scan", tmp_path / "m.joblib", "--unseen", "npz:x")[0] == 64


def test_names_in_a_file_are_clean_in_every_report() -> None:
    hostile = "<script>\x1b[31m\x00</script>"
    found = unfit.scan(fitted(SVC))
    worse = found.model_copy(update={"file": hostile, "unread": (hostile,)})
    for text in (
        report.page(worse),
        report.page(FolderRecord(folder="x", files=(worse,), failed={hostile: hostile})),
    ):
        assert "<script>" not in text
    ElementTree.fromstring(report.junit(worse))


def test_an_audit_of_an_estimator_is_a_scan(run: Any, tmp_path: Path) -> None:
    with pytest.raises(NoAttackError, match="no attack applies") as error:
        unfit.audit(fitted(SVC), (OWN, LABELS), (OTHER, Y[1::2]))
    assert error.value.scan.exit_code == 1  # type: ignore[attr-defined]
    joblib.dump(fitted(HOLDING_NONE["linear"]), tmp_path / "m.joblib")
    np.savez(tmp_path / "own.npz", x=OWN)
    np.savez(tmp_path / "other.npz", x=OTHER)
    words = ["--data", f"npz:{tmp_path}/own.npz", "--unseen", f"npz:{tmp_path}/other.npz", "--out", tmp_path / "a"]
    code, text, _ = run("audit", tmp_path / "m.joblib", *words)
    assert (code, "no attack applies" in text) == (3, True)
    assert (tmp_path / "a" / "scan.json").is_file()


def test_a_test_suite_can_ask_for_it() -> None:
    assert assert_no_samples(fitted(HOLDING_NONE["linear"]), OWN, OTHER).exit_code == 0
    with pytest.raises(AssertionError, match="support_vectors_"):
        assert_no_samples(fitted(SVC), OWN, OTHER)


def test_tables_may_have_columns_of_text(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("age,town,label\n41,Ulm,a\n52.5,Jena,b\n")
    side = read_side(f"csv:{tmp_path}/t.csv:label")
    assert (side.x.tolist(), sorted(side.cells)) == ([[41.0], [52.5]], ["Jena", "Ulm"])


# What chance puts into a file -----------------------------------------------------------------------------------


def drawn_words(random: np.random.Generator, n: int) -> list[str]:
    """Texts by Zipf's law: any two sets have words of their own."""
    often = 1 / np.arange(1, 3001)
    return [" ".join(f"w{i}" for i in random.choice(3000, 12, p=often / often.sum())) for _ in range(n)]


def drawn_rows(random: np.random.Generator, n: int) -> Any:
    """Rows of a book of 400, some of them frequent: their columns depend on each other."""
    often, book = 1 / np.arange(1, 401), np.random.default_rng(5).normal(size=(400, 20))
    return book[random.choice(400, n, p=often / often.sum())]


STRANGERS: dict[str, tuple[Callable[[np.random.Generator, int], Any], Callable[[], Any]]] = {
    "words": (drawn_words, CountVectorizer),
    "frequent words": (drawn_words, lambda: CountVectorizer(max_features=30)),
    "values": (drawn_rows, OneHotEncoder),
    "quantiles": (drawn_rows, lambda: QuantileTransformer(n_quantiles=50)),
    "rows": (drawn_rows, KNeighborsClassifier),
    "scaled rows": (drawn_rows, lambda: make_pipeline(StandardScaler(), SVC())),
    "small numbers": (lambda random, n: random.integers(0, 6, (n, 3)).astype(float), KNeighborsClassifier),
}


@pytest.mark.parametrize("name", STRANGERS)
def test_a_file_that_saw_neither_set_is_no_leak_by_chance(name: str) -> None:
    draw, make = STRANGERS[name]
    for seed in range(3):
        random, n = np.random.default_rng(seed), (40, 60, 100)[seed]
        x = draw(random, 3 * n)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = make().fit(x[:n], np.arange(n) % 2)
        own, m = x[n : 2 * n], n // (1, 3, 1)[seed]
        assert unfit.scan(model, own, x[2 * n : 2 * n + m]).exit_code != 1, seed
        assert unfit.scan(model, own).exit_code != 1, (seed, "without unseen samples")


def test_words_without_unseen_ones_are_neither_a_leak_nor_cleared() -> None:
    texts = drawn_words(np.random.default_rng(0), 40)
    model = CountVectorizer().fit(texts)
    found = unfit.scan(model, texts)
    assert (found.exit_code, "give `unseen`" in found.unread[0]) == (3, True)
    assert unfit.scan(model, texts, drawn_words(np.random.default_rng(1), 40)).exit_code == 1
    grams = CountVectorizer(analyzer="char", ngram_range=(4, 4)).fit(["ärztin", "zahnarzt"] * 20)
    others = unfit.scan(grams, texts, drawn_words(np.random.default_rng(1), 40))
    assert (others.exit_code, "that no given sample has" in others.unread[0]) == (3, True)


def test_values_that_samples_share_are_counted_once() -> None:
    """One private row in the file has 20 values that nobody else has, and is one sample."""
    pairs = np.stack([np.repeat(np.arange(1), 20), np.arange(20)], 1)
    assert p_by_samples(pairs, 50, 50) == pytest.approx(1.0)
    each = np.stack([np.arange(20), np.arange(20)], 1)
    assert p_by_samples(each, 50, 50) < 1e-5


def test_texts_of_several_columns_belong_to_their_rows(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("name,town\nAda Byron,Ulm\nKurt Klein,\nJo Groß,Jena\n")
    side = read_side(f"csv:{tmp_path}/t.csv")
    assert side.samples[:3] == (0, 1, 2)
    assert len(side.samples) == len(side.texts)
    model = make_pipeline(TfidfVectorizer(), KNeighborsClassifier(1)).fit(side.texts[:3], [0, 1, 0])
    assert unfit.scan(model, side).exit_code == 3


def test_one_row_matches_no_table_by_its_columns() -> None:
    """Coefficients of a model are no sample, though two of them are values of two columns."""
    random = np.random.default_rng(0)
    table = np.stack([random.choice([0.0, 1, 3, 5], 50), random.choice([0.0, 2, 4], 50), random.random(50)], 1)
    assert not rows_held(np.array([[1.0, 2.0, -1.0, -1.0]]), [Known(table)])[0].any()


def test_a_page_says_what_to_do() -> None:
    text = report.page(unfit.scan(fitted(SVC), OWN, OTHER))
    for words in (
        "of 100 private samples (unseen: 0)",
        "Do not publish this file.",
        "width=device-width",
        "UTC with",
    ):
        assert words in text
    other = report.page(unfit.scan(fitted(SVC), OTHER, OWN))
    assert "Treat it as not cleared" in other
    assert "unfit audit" in report.page(unfit.scan(fitted(HOLDING_NONE["linear"]), OWN, OTHER))


def test_a_folder_names_what_it_could_not_read_and_what_may_hold_samples(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    torch.save({"w": torch.zeros(3, 3)}, tmp_path / "pytorch_model.bin")
    (tmp_path / "vocab.txt").write_text("\n".join(f"patient{i}" for i in range(40)))
    (tmp_path / "trainer_state.json").write_text(json.dumps({"best_model_checkpoint": "/home/ada/runs/3"}))
    texts, others = ([f"of patient{i}" for i in range(first, first + 40)] for first in (0, 100))
    found = unfit.scan(tmp_path, texts, others)
    assert (found.exit_code, found.findings[0].path, found.findings[0].num) == (1, "vocab.txt", 40)
    (paths,) = [each for each in found.findings if each.holds == "paths"]
    assert (paths.path, paths.words) == (
        "trainer_state.json: best_model_checkpoint",
        "paths, names or settings of the machine (1 entry)",
    )
    assert unfit.scan(tmp_path).exit_code == 0
    (tmp_path / "train.arrow").write_bytes(b"ARROW1\0\0")
    assert unfit.scan(tmp_path).unread == ("train.arrow is of a kind that is not read",)
    torch.save({"last_batch": torch.rand(16, 9)}, tmp_path / "state.pt")
    bank = unfit.scan(tmp_path / "state.pt")
    assert (bank.exit_code, "may hold samples" in bank.unread[0]) == (3, True)
    assert unfit.scan(tmp_path / "state.pt", np.random.rand(9, 9), np.random.rand(9, 9)).exit_code == 0
