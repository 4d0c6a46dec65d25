"""What sections III-C and IV-C say of the MNIST heatmaps, sentence by sentence, judged by numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deeptaylor.paper.measures import or_nan
from deeptaylor.paper.mnist_numbers import TOLERANCE, is_consistent
from deeptaylor.paper.verdicts import Verdict, judge
from deeptaylor.shown import percent

__all__ = ["each", "means", "shapes", "verdicts"]

Numbers = Mapping[str, Any]

SHALLOW = {"sensitivity": "sensitivity", "taylor": "Taylor", "w2": "w²", "zB": "zB"}
DEEP = {"sensitivity": "sensitivity", "taylor": "Taylor", "min-max": "min-max", "training-free": "training-free"}
OURS, PAPER = "ours", "the paper's"
EVEN = 0.25  # of the mean: scores that are about the same
LITTLE = 0.1  # of the score of a pair with a target; or, negative, of all relevance
NEAR = 0.1  # of the mean score: near-conservative
ALIKE = 0.7  # correlation of maps that look alike
QUALITY = 0.1  # of a share: about the same


def verdicts(found: Numbers) -> list[Verdict]:
    """A verdict on each sentence that says something of heatmaps, in the paper's order."""
    return [*_shallow(found), *_deep(found)]


def means(found: Numbers, network: str, what: str) -> dict[str, float]:
    """The mean of what is measured with an interval, of each method."""
    return {key: or_nan(of[what]["mean"]) for key, of in found["methods"][network].items()}


def shapes(found: Numbers, network: str, what: str) -> dict[str, float]:
    """A number of mnist_compared.py, of each method."""
    return {key: or_nan(of[what]) for key, of in found["compared"]["shape"][network].items()}


def each(values: Mapping[str, float], names: Mapping[str, str], digits: str = "") -> str:
    """Methods' numbers, one after the other: shares as percent, unless a format is given."""
    shown = {key: percent(values[key]) if not digits else f"{values[key]:{digits}}" for key in names}
    return ", ".join(f"{shown[key]} ({name})" for key, name in names.items()).replace("nan", "—")


def _shallow(found: Numbers) -> list[Verdict]:
    heatmaps, plots = "III-C, paragraph 3", "III-C, paragraph 5"
    of, network, areas = found["methods"]["one-layer"], "one-layer", found["compared"]["areas"]
    half, ink, border, covered = (means(found, network, f) for f in ("on_half", "on_ink", "on_border", "coverage"))
    few, smooth, aligned = (shapes(found, network, f) for f in ("few", "neighbours", "aligned"))
    alike, largest = found["compared"]["within"], {key: m["largest"] for key, m in of.items()}
    return [
        _even_scores(found),
        judge(
            heatmaps,
            "In all cases, we observe that the heatmapping procedure correctly assigns most of the relevance to pixels "
            "where the digit to detect is located.",
            [half[key] > 0.5 for key in SHALLOW],
            f"""on the half with the digit (an even map: 50 %): {each(half, SHALLOW)}; on its ink, which is
            {percent(areas["ink"])} of the area: {each(ink, SHALLOW)}""",
            PAPER,
            "a method puts more on the other half",
        ),
        judge(
            heatmaps,
            "Sensitivity analysis produces unbalanced and incomplete heatmaps, with some input points reacting "
            "strongly, and others reacting weakly, and with a considerable amount of relevance associated to the "
            "border of the image, where there is no information.",
            [
                few["sensitivity"] < few["zB"],
                covered["sensitivity"] < min(covered[key] for key in ("w2", "zB")),
                border["sensitivity"] > max(border[key] for key in ("taylor", "w2", "zB")),
            ],
            f"""half of the relevance on {each(few, SHALLOW)} of the pixels; ink covered: {each(covered, SHALLOW)}; on
            the border, which is {percent(areas["border"])} of the area: {each(border, SHALLOW)}""",
            OURS,
            "these networks are trained anew",
        ),
        judge(
            heatmaps,
            "Nearest root Taylor produces selective heatmaps, that are still not fully complete.",
            [few["taylor"] < few["zB"], covered["taylor"] < covered["zB"]],
            f"""half of the relevance on {percent(few["taylor"])} of the pixels (zB: {percent(few["zB"])}); ink covered:
            {percent(covered["taylor"])} (zB: {percent(covered["zB"])})""",
            OURS,
            "these networks are trained anew",
        ),
        judge(
            heatmaps,
            "The heatmaps produced by deep Taylor decomposition with the w²-rule, are similar to nearest root Taylor, "
            "but blurred, and not perfectly aligned with the data.",
            [alike["taylor and w2"] > ALIKE, smooth["w2"] > smooth["taylor"], aligned["w2"] < aligned["zB"]],
            f"""correlation with Taylor's maps {alike["taylor and w2"]:.2f} (zB: {alike["taylor and zB"]:.2f});
            correlation of pixels two apart {smooth["w2"]:.2f} (Taylor: {smooth["taylor"]:.2f}); correlation with the
            picture, in the digit's half, {aligned["w2"]:.2f} (zB: {aligned["zB"]:.2f})""",
            PAPER,
            "what is not so is in the numbers",
        ),
        judge(
            heatmaps,
            "The domain-aware zB-rule produces heatmaps that are still blurred, but that are complete and well-aligned "
            "with the data.",
            [
                smooth["zB"] > smooth["taylor"],
                covered["zB"] >= max(covered[key] for key in SHALLOW),
                aligned["zB"] >= max(aligned[key] for key in SHALLOW),
                ink["zB"] >= max(ink[key] for key in SHALLOW),
            ],
            f"""correlation of pixels two apart: {each(smooth, SHALLOW, ".2f")}; ink covered: {each(covered, SHALLOW)};
            correlation with the picture, in the digit's half: {each(aligned, SHALLOW, ".2f")}; on its ink:
            {each(ink, SHALLOW)}""",
            PAPER,
            """more of the ink is covered than by the other three, and the map follows the picture best, but no larger
            share lies on the ink: blurred relevance lies beside strokes as well""",
        ),
        judge(
            plots,
            "Sensitivity analysis only measures a local effect and therefore does not conceptually redistribute "
            "relevance onto the input.",
            [
                of["sensitivity"]["conservation_gap"]["median"] > LITTLE,
                or_nan(of["sensitivity"]["correlation_with_score"]) < or_nan(of["zB"]["correlation_with_score"]),
            ],
            f"""rescaled by one factor, the sum of a map misses its score by
            {percent(of["sensitivity"]["conservation_gap"]["median"])} at the median; correlation of the sums with the
            scores {or_nan(of["sensitivity"]["correlation_with_score"]):.2f} (zB:
            {or_nan(of["zB"]["correlation_with_score"]):.2f})""",
            OURS,
            "these networks are trained anew",
        ),
        _dissipates(
            of["taylor"],
            plots,
            "The nearest root Taylor approach, although producing mostly positive heatmaps, dissipates a large "
            "fraction of the relevance.",
        ),
        judge(
            plots,
            "The deep Taylor decomposition on the other hand ensure full consistency, as theoretically predicted by "
            "Propositions 1 and 3.",
            [is_consistent(of[key]) for key in ("w2", "zB")],
            _worst(of, ("w2", "zB")),
            OURS,
            "a report with such a gap would not be made",
        ),
        judge(
            plots,
            "The zB-rule spreads relevance onto more pixels than methods based on nearest root, as shown by the "
            "shorter tail of its relevance histogram.",
            [few["zB"] > few[key] and largest["zB"] < largest[key] for key in ("taylor", "w2")],
            f"""half of the relevance on {each(few, SHALLOW)} of the pixels; hottest pixel:
            {each(largest, {key: SHALLOW[key] for key in ("taylor", "w2", "zB")}, ".2g")}""",
            OURS,
            "these networks are trained anew",
        ),
    ]


def _even_scores(found: Numbers) -> Verdict:
    scores = found["compared"]["scores"]
    return judge(
        "III-C, paragraph 1",
        "Treating the supervised task as a regression problem forces the network to assign approximately the same "
        "amount of relevance to all positive examples, and as little relevance as possible to the negative examples.",
        [
            part
            for of in scores.values()
            for part in (of["with_deviation"] < EVEN * of["with"], or_nan(of["without"]) < LITTLE * of["with"])
        ],
        "scores with a target, mean ± standard deviation, and without one, mean: "
        + "; ".join(
            f"{of['with']:.0f} ± {of['with_deviation']:.0f} and {or_nan(of['without']):.1f} ({network})"
            for network, of in scores.items()
        ),
        OURS,
        "held-out pairs: a few are not recognised",
    )


def _dissipates(taylor: Numbers, place: str, quote: str) -> Verdict:
    return judge(
        place,
        quote,
        [taylor["negative_share"] < LITTLE, taylor["kept"] < 1 - 2 * LITTLE],
        f"""{percent(taylor["negative_share"])} of its relevance is negative; its maps hold {percent(taylor["kept"])} of
        all scores""",
        OURS,
        "these networks are trained anew",
    )


def _worst(of: Numbers, keys: Sequence[str]) -> str:
    names = SHALLOW | DEEP
    return "; ".join(
        f"{names[key]}: worst gap {of[key]['conservation_gap']['worst']:.0e} of the score, "
        f"{of[key]['negative_pixels']} negative pixels"
        for key in keys
    )


def _deep(found: Numbers) -> list[Verdict]:
    heatmaps, plots = "IV-C, paragraph 2", "IV-C, paragraph 3"
    of, between, within = found["methods"]["two-layer"], found["compared"]["between"], found["compared"]["within"]
    half, ink, border, covered = (means(found, "two-layer", f) for f in ("on_half", "on_ink", "on_border", "coverage"))
    smooth, before = (shapes(found, network, "neighbours") for network in ("two-layer", "one-layer"))
    covered_before, own = means(found, "one-layer", "coverage"), ("min-max", "training-free")
    gap = or_nan(found["min_max"]["mean_gap_over_mean_score"])
    deep_taylor = [between[f"zB and {key}"] for key in own]
    return [
        judge(
            heatmaps,
            "Sensitivity analysis and standard Taylor decomposition produce noisy and incomplete heatmaps.",
            [
                part
                for key in ("sensitivity", "taylor")
                for part in (smooth[key] < min(smooth[k] for k in own), covered[key] < min(covered[k] for k in own))
            ],
            f"""correlation of pixels two apart: {each(smooth, DEEP, ".2f")}; ink covered: {each(covered, DEEP)}""",
            OURS,
            "these networks are trained anew",
        ),
        judge(
            heatmaps,
            "These two methods do not handle well the increased depth of the network.",
            [
                part
                for key in ("sensitivity", "taylor")
                for part in (smooth[key] < before[key], covered[key] < covered_before[key])
            ],
            "from one layer to two: "
            + "; ".join(
                f"{name}: correlation of pixels two apart {before[key]:.2f} to {smooth[key]:.2f}, ink covered "
                f"{percent(covered_before[key])} to {percent(covered[key])}"
                for key, name in list(DEEP.items())[:2]
            ),
            PAPER,
            "the maps become noisier, but they do not all cover less of the ink",
        ),
        judge(
            heatmaps,
            "The min-max Taylor decomposition and the training-free Taylor decomposition produce relevance maps that "
            "are complete, and qualitatively similar to those obtained by deep Taylor decomposition of the shallow "
            "architecture in Section III.",
            [covered[key] > LITTLE + 0.5 for key in own] + [value > ALIKE for value in deep_taylor],
            f"""ink covered: {each(covered, DEEP)}; correlation with the one-layer network's zB maps:
            {deep_taylor[0]:.2f} (min-max), {deep_taylor[1]:.2f} (training-free)""",
            OURS,
            "the min-max model is trained anew",
        ),
        judge(
            heatmaps,
            "This demonstrates the high level of transparency of deep Taylor methods with respect to the choice of "
            "architecture.",
            [value > between[key] for value in deep_taylor for key in ("sensitivity", "taylor")],
            f"""correlation of the two networks' maps: {deep_taylor[0]:.2f} (zB, min-max), {deep_taylor[1]:.2f} (zB,
            training-free), {between["sensitivity"]:.2f} (sensitivity), {between["taylor"]:.2f} (Taylor)""",
            OURS,
            "the min-max model is trained anew",
        ),
        judge(
            heatmaps,
            "The heatmaps obtained by the trained min-max relevance model and by the training-free method are of "
            "similar quality.",
            [within["min-max and training-free"] > 0.9]
            + [abs(m["min-max"] - m["training-free"]) < QUALITY for m in (half, ink, border, covered)],
            f"""correlation of their maps {within["min-max and training-free"]:.2f}; min-max and training-free: on the
            digit's half {percent(half["min-max"])} and {percent(half["training-free"])}, on its ink
            {percent(ink["min-max"])} and {percent(ink["training-free"])}, on the border {percent(border["min-max"])}
            and {percent(border["training-free"])}, ink covered {percent(covered["min-max"])} and
            {percent(covered["training-free"])}""",
            OURS,
            "the min-max model's maps have more on the border, where pixels hardly vary and nothing holds weights back",
        ),
        _dissipates(of["taylor"], plots, "The standard Taylor decomposition is positive, but dissipates relevance."),
        judge(
            plots,
            "The deep Taylor decomposition with the min-max relevance model produces near-conservative heatmaps, and "
            "the training-free deep Taylor decomposition produces heatmaps that are fully conservative.",
            [gap < NEAR, of["training-free"]["conservation_gap"]["worst"] <= TOLERANCE],
            f"""min-max misses a score by {percent(gap)} of the mean score on average; training-free by at most
            {of["training-free"]["conservation_gap"]["worst"]:.0e} of it""",
            OURS,
            "the min-max model is trained anew",
        ),
        judge(
            plots,
            "Both deep Taylor decomposition variants shown here also ensures positivity, due to the application of the "
            "zB- and z⁺-rule in the respective layers.",
            [not of[key]["negative_pixels"] for key in own],
            "; ".join(f"{key}: {of[key]['negative_pixels']} negative pixels" for key in own),
            OURS,
            "a report with one would not be made",
        ),
    ]
