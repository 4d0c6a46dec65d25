"""`dt.load` of estimators of scikit-learn: the same function, its names kept, and what is refused."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import deeptaylor as dt
from deeptaylor.models.loading.estimators import is_estimator
from loading import PREPARATION

sklearn = pytest.importorskip("sklearn")
from sklearn import linear_model, neural_network, svm  # noqa: E402
from sklearn.compose import ColumnTransformer  # noqa: E402
from sklearn.ensemble import RandomForestClassifier  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import (  # noqa: E402
    MaxAbsScaler,
    MinMaxScaler,
    PolynomialFeatures,
    RobustScaler,
    StandardScaler,
)

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(3, 2, (60, 4))
NUMBER = X @ [1.0, -2.0, 0.5, 0.0] + 1
TWO = np.where(NUMBER > 0, "yes", "no")
THREE = np.digitize(NUMBER, [-1, 2])
BOX = dt.Box(X.min(0), X.max(0))


def perceptron(kind: str, activation: str = "relu") -> Any:
    made = getattr(neural_network, f"MLP{kind}")
    return made(hidden_layer_sizes=(6, 5), activation=activation, max_iter=20, random_state=0)


def said(p: dt.Pretrained) -> np.ndarray[Any, Any]:
    return p.output(torch.from_numpy(X)).numpy()


@pytest.mark.parametrize(
    "made",
    [
        linear_model.LogisticRegression(), svm.LinearSVC(), linear_model.SGDClassifier(random_state=0),
        linear_model.RidgeClassifier(), linear_model.Perceptron(), perceptron("Classifier"),
        perceptron("Classifier", "tanh"),
        perceptron("Classifier", "logistic"),
    ],
    ids=lambda m: type(m).__name__,
)  # fmt: skip
def test_classifiers_are_the_same_function(made: Any) -> None:
    scores = said(dt.load(made.fit(X, THREE), domain=BOX))
    if hasattr(made, "decision_function"):
        wanted = made.decision_function(X)
        assert np.abs(scores - wanted).max() <= 1e-10 * np.abs(wanted).max()
    else:
        softmax = torch.from_numpy(scores).softmax(1).numpy()
        assert np.abs(softmax - made.predict_proba(X)).max() <= 1e-10
    p = dt.load(made.fit(X, TWO), domain=BOX)
    scores = said(p)
    assert p.class_names == ("no", "yes")
    assert [p.class_names[k] for k in scores.argmax(1)] == made.predict(X).tolist()
    if hasattr(made, "decision_function"):
        wanted = made.decision_function(X)
        assert np.abs(scores[:, 1] - scores[:, 0] - wanted).max() <= 1e-10 * np.abs(wanted).max()
        assert np.array_equal(scores[:, 0], -scores[:, 1])
    if type(made).__name__ in ("LogisticRegression", "MLPClassifier"):
        assert np.abs(torch.from_numpy(scores).softmax(1).numpy() - made.predict_proba(X)).max() <= 1e-10


SEVERAL = np.stack([NUMBER > 0, NUMBER > 2, X[:, 0] > 3], 1).astype(int)


@pytest.mark.parametrize("labels", [TWO, THREE, SEVERAL, SEVERAL[:, :2]], ids=["two", "three", "several", "both"])
@pytest.mark.parametrize(
    "made",
    [
        linear_model.LogisticRegression(), linear_model.LogisticRegression(solver="liblinear"),
        linear_model.SGDClassifier(loss="log_loss", alpha=1, random_state=0),
        linear_model.SGDClassifier(loss="modified_huber", alpha=1, random_state=0),
        linear_model.SGDClassifier(random_state=0), svm.LinearSVC(), linear_model.RidgeClassifier(),
        linear_model.Perceptron(), perceptron("Classifier"),
    ],
    ids=lambda m: f"{type(m).__name__}-{getattr(m, 'loss', '')}-{getattr(m, 'solver', '')}",
)  # fmt: skip
def test_a_probability_is_that_of_predict_proba_or_none(made: Any, labels: Any) -> None:
    made = make_pipeline(StandardScaler(), made)
    try:
        made.fit(X, labels)
    except ValueError:  # scikit-learn has no such model
        assert labels.ndim == 2 or "liblinear" in str(made)
        return
    p = dt.load(made)
    rows = p.top(X, 3)
    first = said(p).argmax(1)
    assert [row[0].index for row in rows] == first.tolist()
    told = [[r.probability for r in sorted(row, key=lambda r: r.index)] for row in rows]
    if type(made[-1]).__name__ in ("LogisticRegression", "MLPClassifier") or "log_loss" in str(made):
        assert np.abs(np.array(told, dtype=float) - made.predict_proba(X)).max() <= 1e-10
    else:
        assert {one for row in told for one in row} == {None}


@pytest.mark.parametrize(
    "made",
    [
        linear_model.LinearRegression(), linear_model.LinearRegression(fit_intercept=False), linear_model.Ridge(),
        linear_model.Lasso(), linear_model.SGDRegressor(random_state=0), svm.LinearSVR(),
        perceptron("Regressor"), perceptron("Regressor", "identity"),
    ],
    ids=lambda m: type(m).__name__,
)  # fmt: skip
def test_regressors_are_the_same_function(made: Any) -> None:
    p = dt.load(made.fit(X, NUMBER), domain=BOX)
    wanted = made.predict(X)
    assert said(p).shape == wanted.shape
    assert np.abs(said(p) - wanted).max() <= 1e-10 * np.abs(wanted).max()
    assert p.class_names is None
    row = X[[int(wanted.argmax())]]
    e = p.explainer().explain(row)
    assert float(e.score) == pytest.approx(float(wanted.max()), rel=1e-10)
    assert e.check().accounted


SCALERS = pytest.mark.parametrize(
    "scalers",
    [
        [StandardScaler()], [StandardScaler(with_mean=False)], [StandardScaler(with_std=False)],
        [MinMaxScaler((-1, 2))], [MaxAbsScaler()], [StandardScaler(), MinMaxScaler()],
        [make_pipeline(MinMaxScaler(), StandardScaler())],
        ["passthrough", StandardScaler()],
        [RobustScaler()], [RobustScaler(with_centering=False)], [RobustScaler(with_scaling=False)],
        [RobustScaler(), MaxAbsScaler(), StandardScaler()],
    ],
    ids=str,
)  # fmt: skip


@SCALERS
def test_pipelines_with_scalers(scalers: list[Any]) -> None:
    for made, y in ((linear_model.LogisticRegression(), THREE), (perceptron("Regressor"), NUMBER)):
        pipeline = make_pipeline(*scalers, made).fit(X, y)
        wanted = pipeline.predict(X) if y is NUMBER else pipeline.decision_function(X)
        assert np.abs(said(dt.load(pipeline, domain=BOX)) - wanted).max() <= 1e-10 * np.abs(wanted).max()


class Frame:
    """A data frame, as far as it is read."""

    def __init__(self, columns: list[str], values: np.ndarray[Any, Any]) -> None:
        self.columns, self.values = columns, values

    def __getitem__(self, names: list[str]) -> Frame:
        return Frame(names, self.values[:, [self.columns.index(name) for name in names]])

    def to_numpy(self) -> np.ndarray[Any, Any]:
        return self.values


def test_names_of_columns_and_classes_are_kept() -> None:
    made = make_pipeline(MinMaxScaler(), linear_model.LogisticRegression()).fit(X, TWO)
    made[0].feature_names_in_ = np.array(["age", "debt", "cards", "rent"], dtype=object)
    p = dt.load(made)  # the first scaler has seen the range of the data
    assert (p.domain.high - 1).abs().max() <= 1e-12
    above = make_pipeline(MinMaxScaler((1, 2)), linear_model.Ridge()).fit(X + 100, NUMBER)
    assert torch.equal(dt.load(above).domain.low, torch.zeros(4, dtype=torch.float64))  # the z^B rule needs zero inside
    e = p.explainer().explain(X[:1], "yes")
    assert set(e.bars().names) == {"age", "debt", "cards", "rent"}
    assert e.bars(["a", "b", "c", "d"]).names != e.bars().names
    assert "class yes" not in repr(e)
    assert "yes" in repr(e)
    assert p.explainer().explain(X[:1], "no").titles == (("no",),)
    mixed = Frame(["rent", "other", "age", "debt", "cards"], X[:1][:, [3, 0, 0, 1, 2]])
    assert torch.equal(p.explainer().explain(mixed, "yes").relevance, e.relevance)
    with pytest.raises(dt.InputError, match="no column called rent"):
        p.explainer().explain(Frame(["age", "debt", "cards"], X[:1, :3]))
    assert p.top(mixed, 1) == p.top(X[:1], 1) == p.top(torch.from_numpy(X[:1]), 1)


def test_without_names_columns_are_taken_as_they_lie() -> None:
    plain = dt.load(linear_model.Ridge().fit(X, NUMBER), domain=dt.Real())
    assert plain.feature_names == ("x0", "x1", "x2", "x3")
    explainer = plain.explainer()
    assert set(explainer.explain([[1, 0, 2, 1]]).bars().names) <= {"x0", "x1", "x2", "x3"}
    e = explainer.explain(Frame(["age", "debt", "cards", "rent"], X[:1]))
    assert e.feature_names == ("age", "debt", "cards", "rent")
    assert torch.equal(e.relevance, explainer.explain(X[:1]).relevance)
    with pytest.raises(dt.InputError, match=r"3 columns, and the network, which was fitted without names .* reads 4"):
        explainer.explain(Frame(["age", "debt", "cards"], X[:1, :3]))


def test_what_else_there_is_is_refused_in_a_sentence() -> None:
    for match, made in (
        (
            r"RandomForestClassifier has no layers .* dt.explain\(model, rows, background=X_train\)",
            RandomForestClassifier(2).fit(X, TWO),
        ),
        (
            r"this Pipeline has PolynomialFeatures. Apply the steps yourself: dt.load\(pipeline\[-1\], …\)",
            make_pipeline(PolynomialFeatures(), linear_model.Ridge()).fit(X, NUMBER),
        ),
        (
            r"this Pipeline has ColumnTransformer. .* rows of pipeline\[:-1\].transform\(X\)",
            make_pipeline(ColumnTransformer([("a", StandardScaler(), [1, 0])]), linear_model.Ridge()).fit(X, NUMBER),
        ),
        ("This Ridge has not been fitted yet", linear_model.Ridge()),
        ("cuts values off", make_pipeline(MinMaxScaler(clip=True), linear_model.Ridge()).fit(X, NUMBER)),
    ):
        with pytest.raises(dt.LoadError, match=match):
            dt.load(made, domain=BOX)
    fitted = linear_model.Ridge().fit(X, NUMBER)
    with pytest.raises(dt.LoadError, match=r"make_pipeline\(StandardScaler\(\), …\), or give the range of each") as e:
        dt.load(fitted)
    assert "Real" not in str(e.value)
    with pytest.raises(dt.LoadError, match=r"the scaler shifts them. Give domain=dt.Box"):
        dt.load(make_pipeline(StandardScaler(), linear_model.Ridge()).fit(X, NUMBER), domain=dt.NonNegative())
    with pytest.raises(dt.LoadError, match="A preparation is for photographs"):
        dt.load(fitted, preparation=PREPARATION)
    with pytest.raises(dt.LoadError, match="it must be a name, a file or a torch"):
        dt.load(None)


def test_no_scikit_learn_is_needed() -> None:
    class LogisticRegression(SimpleNamespace):
        def get_params(self) -> dict[str, Any]:
            return {}

        def fit(self) -> None: ...

    made = LogisticRegression(coef_=[[1.0, -2.0]], intercept_=[0.5], classes_=["no", "yes"])
    assert is_estimator(made)
    p = dt.load(made, domain=dt.Box(0, 1))
    assert p.output(torch.tensor([[1.0, 0.0]], dtype=torch.float64)).tolist() == [[-0.75, 0.75]]
    assert not is_estimator(torch.nn.Linear(1, 1))
    assert not is_estimator("squeezenet1_1")


# --- scalers are preprocessing ----------------------------------------------------------------------------------------

UNITS = np.array([1.0, 1e-3, 1e4, 50.0])  # the same table, its columns in other units
TABLE = X * UNITS + [0, 5, -3e4, 1000]


def behind(pipeline: Any) -> tuple[Any, np.ndarray[Any, Any]]:
    """The model behind the scalers, and the scaled table."""
    return pipeline[-1], pipeline[:-1].transform(TABLE)


def near(a: Any, b: Any) -> bool:
    return bool((a - b).abs().max() <= 1e-9 * b.abs().max())


@SCALERS
def test_relevance_is_that_of_the_scaled_columns(scalers: list[Any]) -> None:
    pipeline = make_pipeline(*scalers, perceptron("Classifier")).fit(TABLE, TWO)
    model, scaled = behind(pipeline)
    box = dt.Box(np.minimum(TABLE.min(0), 0), np.maximum(TABLE.max(0), 0))
    ends = pipeline[:-1].transform(np.stack([box.low, box.high]))
    inside, outside = dt.load(pipeline, domain=box), dt.load(model, domain=dt.Box(*ends))
    for rows, wanted in ((TABLE[:9], scaled[:9]), (torch.from_numpy(TABLE[:9]), torch.from_numpy(scaled[:9]))):
        found, expected = inside.explainer().explain(rows, "yes"), outside.explainer().explain(wanted, "yes")
        assert near(found.relevance, expected.relevance)
        assert near(found.score, expected.score)
        found, expected = (
            p.explainer().between(some, some[2:3], "yes") for p, some in ((inside, rows), (outside, wanted))
        )
        assert near(found.relevance, expected.relevance)
    assert near(inside.output(torch.from_numpy(TABLE)), outside.output(torch.from_numpy(scaled)))
    assert inside.top(TABLE[:3]) == inside.top(torch.from_numpy(TABLE[:3]))
    free = dt.load(pipeline)  # no domain is needed behind a scaler
    assert near(free.explainer().explain(TABLE[:9], "yes").relevance,
                dt.Explainer(free.network, None, free.domain).explain(scaled[:9], 1).relevance)  # fmt: skip


def test_relevance_does_not_depend_on_units() -> None:
    maps = [
        dt.load(make_pipeline(StandardScaler(), perceptron("Classifier")).fit(some, TWO)).explainer().explain(some, 1)
        for some in (X, TABLE)
    ]
    assert (maps[0].relevance - maps[1].relevance).abs().max() <= 1e-6 * maps[0].relevance.abs().max()


def test_a_compiled_or_copied_explainer_scales_too() -> None:
    pipeline = make_pipeline(StandardScaler(), perceptron("Classifier")).fit(TABLE, TWO)
    explainer, rows = dt.load(pipeline).explainer(), torch.from_numpy(TABLE[:4])
    wanted = explainer.explain(rows, 1).relevance
    assert near(torch.compile(explainer, backend="eager")(rows, 1)[1], wanted)
    assert near(copy.deepcopy(explainer).explain(rows, 1).relevance, wanted)
    assert near(pickle.loads(pickle.dumps(explainer)).explain(rows, 1).relevance, wanted)
    assert near(explainer.explain(rows, lambda z: z[:, 1] * 2).relevance, 2 * wanted)
    assert near(explainer.explain(rows, lambda z: z[:, 1].relu()).score, explainer.explain(rows, 1).score.relu())


def test_tables_are_compared_with_the_mean_of_given_data() -> None:
    pipeline = make_pipeline(StandardScaler(), perceptron("Classifier")).fit(TABLE, TWO)
    p, (model, scaled) = dt.load(pipeline), behind(pipeline)
    b = dt.explain(p, TABLE[:5], "yes", background=TABLE[10:50])
    assert isinstance(b, dt.Between)
    outside = dt.load(model, domain=dt.Real()).explainer()
    wanted = outside.between(scaled[:5], scaled[10:50].mean(0, keepdims=True), "yes")
    assert near(b.relevance, wanted.relevance)
    assert b.feature_names == ("x0", "x1", "x2", "x3")
    frame = Frame(["age", "debt", "cards", "rent"], TABLE[10:50])
    assert near(dt.explain(p, TABLE[:5], "yes", background=frame).relevance, b.relevance)
    assert near(dt.explain(p, torch.from_numpy(TABLE[:5]), 1, background=TABLE[10:50]).relevance, b.relevance)
    with pytest.raises(dt.InputError, match=r"give background=X_train, the rows"):
        dt.explain(p, TABLE[:5])
    with pytest.raises(dt.InputError, match=r"rows of 4 columns, such as X_train; got shape \(40, 3\)"):
        dt.explain(p, TABLE[:5], background=TABLE[10:50, :3])
    with pytest.raises(dt.InputError, match=r"without domain and rules. .* use method='deep-taylor'"):
        dt.explain(p, TABLE[:5], background=TABLE, first=dt.rules.WSquare())
    plain = dt.explain(torch.nn.Linear(4, 2).double(), TABLE[:5], domain=dt.Real(), background=TABLE)
    assert plain.reason == "Method: secants, because a background was given."
    with pytest.raises(dt.InputError, match="4 columns"):
        p.explainer().explain(TABLE[:5, :3])


COLUMNS = ["age", "debt", "cards", "rent"]


@pytest.mark.parametrize("scaled", [True, False])
def test_a_row_of_a_data_frame_is_a_table_of_one_row(scaled: bool) -> None:
    pd = pytest.importorskip("pandas")
    table = pd.DataFrame(X, columns=COLUMNS)
    made = linear_model.LogisticRegression()
    p = dt.load((make_pipeline(StandardScaler(), made) if scaled else made).fit(table, TWO), domain=dt.Real())
    wanted = dt.explain(p, table[:1], "yes", background=table)
    for row in (table.iloc[0], table[COLUMNS[::-1]].iloc[0]):
        found = dt.explain(p, row, "yes", background=table)
        assert torch.equal(found.relevance, wanted.relevance)
        assert found.feature_names == tuple(COLUMNS)
        assert p.top(row) == p.top(table[:1])
    with pytest.raises(dt.InputError, match="no column called rent"):
        p.top(table[COLUMNS[:3]].iloc[0])


@pytest.mark.parametrize("scaled", [True, False])
def test_values_that_are_no_numbers_are_named_with_their_column(scaled: bool) -> None:
    pd = pytest.importorskip("pandas")
    table = pd.DataFrame(X, columns=COLUMNS)
    made = linear_model.LogisticRegression()
    p = dt.load((make_pipeline(StandardScaler(), made) if scaled else made).fit(table, TWO), domain=dt.Real())
    missing = table.astype("Float64")
    missing.iloc[3, 1] = pd.NA
    bad = {
        r"Column 'debt' .* in row 0: 'red' \(str\)": table.assign(debt="red"),
        r"Column 'debt' .* in row 3: '<NA>' \(NAType\)": missing,
        r"Column 'cards' .* in row 0: '2020-01-01.*\(Timestamp\)": table.assign(cards=pd.Timestamp("2020-01-01")),
        r"Column 'age' .*j\)?' \(complex\)": X * 1j,
        r"lists of 4 real numbers each; got list": [[1.0, 2.0, 3.0, 4.0], [1.0]],
        r"lists of 4 real numbers each; got str": "a row",
    }
    for message, rows in bad.items():
        with pytest.raises(dt.InputError, match=message):
            dt.explain(p, rows, "yes", background=table)
        with pytest.raises(dt.InputError, match=message):
            dt.explain(p, table[:1], "yes", background=rows)
        with pytest.raises(dt.InputError, match=message):
            p.top(rows)
    with pytest.raises(dt.InputError, match=r"background= has values that are missing .* in column 'rent'"):
        dt.explain(p, table[:1], "yes", background=table.assign(rent=np.nan))
    with pytest.raises(dt.InputError):
        dt.explain(p, {"age": 1.0}, "yes", background=table)


def test_evaluate_and_run_know_of_the_scaler(tmp_path: Path) -> None:
    pipeline = make_pipeline(StandardScaler(), perceptron("Classifier")).fit(TABLE, TWO)
    p, (_, scaled) = dt.load(pipeline), behind(pipeline)
    given: list[torch.Tensor] = []

    def method(_network: Any, x: torch.Tensor, _classes: Any) -> torch.Tensor:
        given.append(x)
        return x

    dt.evaluate(p, torch.from_numpy(TABLE[:6]), {"kept": method})
    assert near(given[0], torch.from_numpy(scaled[:6]))
    with pytest.raises(dt.InputError, match="A run takes rows of a table as the network does"):
        dt.explain_dataset(torch.utils.data.TensorDataset(torch.from_numpy(TABLE)), p, tmp_path / "run")
