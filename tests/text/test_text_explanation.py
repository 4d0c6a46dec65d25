"""How the answer shows itself: tokens, words, sentences, files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

import deeptaylor as dt
from deeptaylor.between import BetweenLedger
from deeptaylor.formatting import format_percent
from deeptaylor.text.encoding import encode_texts
from deeptaylor.text.text_explanation import DifferenceAccount, SharedAccount, describe_negative, format_signed
from small_texts import classifier, embedder, llama, tokenizer


@pytest.fixture(scope="module")
def e() -> dt.TextExplanation:
    return classifier().explain(["The films was not bad", ("the film", "a plot")], "positive")


def told(values: list[float], **more: bool) -> dt.TextExplanation:
    """An answer with these numbers for "the films dull"."""
    own = tokenizer(mask=False, pieces=False)
    (line,) = encode_texts(own, "the films dull")
    answer = dt.Explainer(torch.nn.Linear(4, 1, bias=False)).between(torch.tensor([values]), "zeros", 0)
    R = torch.tensor(values)
    return dt.TextExplanation(answer, (R,), (line,), (("'good'",),), "score", "[PAD]", **more)


def test_words_are_the_sums_of_their_tokens(e: dt.TextExplanation) -> None:
    tokens, words = e.tokens(), e.words()
    assert tokens.words == ("[CLS]", "the", "film", "##s", "was", "not", "bad", "[SEP]")
    assert words.words == ("[CLS]", "the", "films", "was", "not", "bad", "[SEP]")
    assert words.values[2] == pytest.approx(tokens.values[2] + tokens.values[3])
    assert sum(words.values) == pytest.approx(sum(tokens.values))
    for shown in (tokens, words):  # what is said below adds up to what is shown
        sums = sum(v for v in shown.values if v > 0), -sum(v for v in shown.values if v < 0)
        said = f"Words for it add {sums[0]:.3g}, and words against it subtract {sums[1]:.3g}: "
        assert said in shown.caption


def test_the_words_as_bars(e: dt.TextExplanation) -> None:
    (ax,) = e.plot(0).axes
    words = e.words()
    largest = max(range(len(words.values)), key=lambda k: abs(words.values[k]))
    assert next(iter(ax.get_yticklabels())).get_text() == words.words[largest]
    assert len(e.plot().axes) == 2
    with pytest.raises(dt.InputError, match="There is no text 7"):
        e.plot(7)


def test_a_note_never_names_two_equal_numbers() -> None:
    account = DifferenceAccount(0.0078401, 0.0078402, 1e-7, 2e-7, None)
    assert "the score is the same to three digits, 0.00784: these words" in account.describe_smallness("Without")
    account = DifferenceAccount(0.0078, 0.0079, 1e-7, 2e-7, None)
    assert "the score is nearly the same, 0.0079 in place of 0.0078: these" in account.describe_smallness(
        "Without words,"
    )


def test_both_texts_of_a_pair_have_a_line(e: dt.TextExplanation) -> None:
    assert e.tokens(1).breaks == (4,)
    assert e.words(1).breaks == (4,)
    assert "[SEP]</span><br><span" in e.tokens(1)._repr_html_()
    assert "\n" in e.tokens(1).coloured()
    assert "\n" not in e.tokens(0).coloured()


def test_the_sentence_is_the_ledger(e: dt.TextExplanation) -> None:
    ledger = e.answer.ledger
    assert isinstance(ledger, BetweenLedger)
    f, f0, raised, lowered = (float(t[0]) for t in (ledger.score, ledger.reference, ledger.in_favour, ledger.against))
    assert e.quantity == "logit"
    chance = e.probabilities[0][0]
    assert e.sentence() == (
        f"The logit of 'positive' is {f:.3g}, a probability of {format_percent(chance, '.3g')}. "
        "On average over 10 copies of the text in which all or half of the words "
        f"are [MASK] or hidden from the others, it is {f0:.3g}. Words for it add {raised:.3g}, and words "
        f"against it subtract {lowered:.3g}: {f0:.3g} + {raised:.3g} − {lowered:.3g} = {f:.3g}."
    )
    assert e.tokens().caption == e.sentence()
    strongest = max(map(abs, e.tokens().values))
    assert e.tokens().legend.endswith(f"the strongest colour stands for {strongest:.3g}.")
    assert e.title() == "Which words speak for 'positive'?"


def test_the_table_has_a_line_for_everything(e: dt.TextExplanation) -> None:
    lines = e.table().splitlines()
    assert len(lines) == 2 + 8 + 2
    assert lines[2].split("  ")[-1] == "special token, unchanged"
    assert lines[-2].split() == ["positions", "0", "unchanged"]
    assert lines[-1].endswith("rounding")


def test_red_and_blue_have_one_scale() -> None:
    tokens = told([1.0, -2.0, 0.0, 0.5]).tokens()
    assert tokens.scale.high == 2
    html = tokens._repr_html_()
    assert html.index('title="1"') < html.index('title="-2"')
    assert told([0.0, 0.0, 0.0, 0.0]).tokens().coloured()  # all white


def test_a_first_token_that_holds_nearly_all_is_said_to_be_a_sink() -> None:
    much, little = [9.0, 0.5, 0.25, 0.25], [1.0, 2.0, 1.0, 1.0]
    assert "the first token, 'the', holds 90.0 % of the relevance, more than any" in told(much, sink=True).notes[-1]
    assert "an attention sink" in str(told(much, sink=True))
    assert told(little, sink=True).notes == ()
    assert told(much).notes == ()  # no language model


def test_where_the_words_explain_little_that_is_said() -> None:
    layer = torch.nn.Linear(4, 1, bias=False)
    layer.weight.data.fill_(1.0)
    answer = dt.Explainer(layer).between(torch.ones(1, 4), torch.full((1, 4), 0.9), 0)
    little = replace(told([0.0] * 4), answer=answer)
    assert "in the place of every word the score is nearly the same, " in little.notes[-1]
    assert "these words explain little of it" in str(little)
    assert told([1.0, 2.0, 0.0, 0.0]).notes == ()


def test_a_continuation_is_in_the_question_and_not_among_the_words() -> None:
    p = llama()
    e = p.explain("the capital of", continuation="france is paris")
    assert e.words().words == ("the", "capital", "of")
    assert "'france is paris' next" in e.title()
    assert "of the question" in e.table()
    held = p.explain("the capital of", continuation="france is paris", method="attnlrp")
    assert held.words().words == ("the", "capital", "of", "france", "is")  # where it holds something


def test_it_shows_itself(e: dt.TextExplanation, tmp_path: Path) -> None:
    f, f0 = (float(t[0]) for t in (e.score, e.answer.reference_score))  # type: ignore[attr-defined]
    assert repr(e) == f"<TextExplanation of 'positive' and 1 more: logit {f:.3g}, without the words {f0:.3g}>"
    html = e._repr_html_()
    assert html.count("Which words speak for &#x27;positive&#x27;?") == 2
    assert "Method: secants." in str(e)
    with pytest.raises(dt.InputError, match=r"A \.png file holds one text, and here are 2: give sample="):
        e.save(tmp_path / "x.png")
    with pytest.raises(dt.InputError, match="There is no text 2"):
        e.save(tmp_path / "x.txt", sample=2)
    e.save(tmp_path / "x.png", sample=0)
    for name in ("x.html", "x.txt"):  # both texts
        assert e.save(tmp_path / name).read_text().count("plot") == 1
        assert "plot" not in e.save(tmp_path / f"one_{name}", sample=0).read_text()
    assert "Red speaks" in (tmp_path / "x.html").read_text()
    assert "Red speaks" not in (tmp_path / "x.txt").read_text()  # there are no colours
    with Image.open(tmp_path / "x.png") as picture:
        assert picture.width == 720
    many = replace(
        e, asked=e.asked * 5, lines=e.lines * 5, relevance=e.relevance * 5, probabilities=e.probabilities * 5
    )
    assert "… and 2 more" in replace(many, answer=_repeated(e))._repr_html_()


def _repeated(e: dt.TextExplanation) -> dt.Explanation:
    ledger = e.answer.ledger
    assert isinstance(ledger, BetweenLedger)
    numbers = [t.repeat(5) for t in (ledger.score, ledger.reference, ledger.in_favour, ledger.against)]
    return replace(e.answer, ledger=type(ledger).from_scores(*numbers))


# --- similarity -------------------------------------------------------------------------------------------------------


def test_similarity_is_shared_out_to_both_texts() -> None:
    p = embedder()
    a, b = "a man plays guitar", "some one performs music at the film"
    e = dt.similarity(p, a, b)

    def cosine(x: str, y: str) -> float:
        with torch.no_grad():
            u, v = (p.network(**p.tokenizer(text, return_tensors="pt"))[0].mean(1) for text in (x, y))
        return float(torch.cosine_similarity(u, v))

    masked = [" ".join(["[MASK]"] * len(text.split())) for text in (a, b)]
    before = (cosine(masked[0], b) + cosine(a, masked[1])) / 2
    assert float(e.score[0]) == pytest.approx(cosine(a, b), abs=1e-5)
    assert float(e.relevance[0].sum()) == pytest.approx(cosine(a, b) - before, abs=1e-5)
    assert e.lines[0].pieces == ("[CLS]", *a.split(), "[SEP]", "[CLS]", *b.split(), "[SEP]")
    assert e.tokens().breaks == (6,)
    assert "in one text at a time" in e.sentence()
    assert e.quantity == "cosine similarity"
    explainer = p.explainer()
    dot = explainer.similarity([a, "the film"], [b, "a plot"], dot=True)
    assert dot.quantity == "dot product"
    assert dot.check().accounted
    with pytest.raises(dt.InputError, match="1 texts on the one side, and 2 on the other"):
        explainer.similarity(a, [a, b])
    with pytest.raises(dt.InputError, match="gives embeddings and no classes"):
        p.explain(a)
    with pytest.raises(dt.InputError, match="has no rule for it"):
        p.explainer("cp-lrp").similarity(a, b)
    with pytest.raises(dt.InputError, match=r"loaded with its tokenizer, dt\.load\(…\); got Linear"):
        dt.similarity(torch.nn.Linear(2, 2), a, b)  # type: ignore[arg-type]


def test_a_class_has_its_probability() -> None:
    p = classifier()
    text = "The films was not bad"
    with torch.no_grad():
        wanted = p.network(**p.tokenizer(text, return_tensors="pt")).logits[0].softmax(0).tolist()
    both = p.explain([text, text], ["negative", "positive"])
    assert both.probabilities == (pytest.approx(wanted, rel=1e-5),) * 2
    top = p.explain(text)
    assert top.probabilities[0][0] == pytest.approx(max(wanted), rel=1e-5)
    by_rules = p.explain(text, 1, method="deep Taylor")
    assert f"a probability of {format_percent(wanted[1], '.3g')}" in by_rules.sentence()
    apart = p.explain(text, "positive", against="negative")
    assert apart.quantity == "difference of logits"
    assert "probability" not in apart.sentence()
    turned = p.explain(text, dt.negative("positive"))
    assert turned.asked == (("the negative of 'positive'",),)
    assert "probability" not in turned.sentence()
    p.network.config.problem_type = "multi_label_classification"
    alone = p.explain(text, "positive")
    with torch.no_grad():
        logit = p.network(**p.tokenizer(text, return_tensors="pt")).logits[0, 1]
    assert alone.probabilities[0][0] == pytest.approx(float(logit.sigmoid()), rel=1e-5)


def test_nothing_is_zero_without_a_sign() -> None:
    assert [format_signed(x) for x in (-0.0, -1.5, 2.0)] == ["0", "−1.5", "2"]


def test_a_log_probability_is_told_as_a_probability() -> None:
    said = DifferenceAccount(-0.258, -13.9, 13.7, 0.0, None).describe(
        "log-probability", "' Paris' next", "With [PAD] everywhere"
    )
    assert said == (
        "The log-probability of ' Paris' next is −0.258, a probability of 77.3 %. With [PAD] everywhere it is −13.9. "
        "Words for it add 13.7, and words against it subtract 0: −13.9 + 13.7 − 0 = −0.258."
    )


def test_a_logit_has_its_name_and_its_probability() -> None:
    said = DifferenceAccount(0.84, -1.0, 2.0, 0.16, None).describe("logit", "'complaint'", "With [MASK]", 0.6987)
    assert said.startswith("The logit of 'complaint' is 0.84, a probability of 69.9 %. With [MASK] it is −1.")
    assert "is 4, a probability of 98.2 %. The words" in SharedAccount(4.0, 4.0, 0, 0, 0).describe(
        "logit", "'a'", 0.982
    )
    assert describe_negative("logit", "'a'", -2.0, 0.12).startswith(
        "The logit of 'a' is −2, a probability of 12 %. This method"
    )


def test_what_does_not_add_up_is_said() -> None:
    said = DifferenceAccount(1.0, 0.0, 0.5, 0.0, 0.5).describe("score", "'good'", "With [MASK]")
    assert said.endswith("= 1. NOT accounted for: 0.5.")


def test_the_account_of_what_is_shared_out() -> None:
    said = SharedAccount(4.13, 0.5, 0.2, 0.26, 3.17).describe("difference of logits", "'a' rather than 'b' next")
    assert said == (
        "The difference of logits, 'a' rather than 'b' next, is 4.13. The words hold 0.5 of it, special tokens 0.2, "
        "and positions, biases and other constants 0.26. The softmax leaves out 3.17, which no token holds."
    )
    assert describe_negative("score", "'good'", -2.0).startswith(
        "The score of 'good' is −2. This method explains what is above"
    )


def test_texts_are_selected_as_from_a_list(e: dt.TextExplanation, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(e) == 2
    assert [one.words().words for one in e] == [e.words(0).words, e.words(1).words]
    assert e[-1].sentence() == e.sentence(1)
    assert e[:1].sentence(words=True) == e.sentence(0, words=True)
    with pytest.raises(IndexError, match="This explanation has 2 texts, from 0 on; got 2"):
        e[2]
    e[1].show()
    shown = capsys.readouterr().out
    assert str(e.words(1)) in shown
    assert str(e.words(0)) not in shown
