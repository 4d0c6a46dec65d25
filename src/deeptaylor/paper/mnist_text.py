"""The MNIST report: its sections, and the sentences between figures and tables, with their numbers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deeptaylor.paper import mnist_tables as tables
from deeptaylor.paper import refits_table, verdicts
from deeptaylor.paper.experiment import as_table
from deeptaylor.shown import number, percent
from deeptaylor.support.report import Heading, Part, Picture, Section, page

__all__ = ["report"]

Numbers = Mapping[str, Any]
Figures = Mapping[str, Path]


def report(found: Numbers, figures: Figures) -> str:
    """The whole page."""
    versions = found["versions"]
    lead = f"""Deep Taylor decomposition (Montavon et al.) of two networks that see whether a digit 0–3 stands beside a
        distractor 4–9: figures 1 to 9 and both tables of the paper, figures S1 to S3 of its supplement, and what the
        paper says of them, measured. {found["settings"]["pairs"]} pairs of held-out digits, the same for every
        method."""
    foot = f"""deeptaylor {versions["deeptaylor"]}, torch {versions["torch"]}, {found["threads"]} thread(s); weights
        {", ".join(found["weights"].values())}. All numbers are in numbers.json, what they were computed from is in
        arrays/."""
    sections = [
        _summary(found),
        _networks(found),
        _overview(figures),
        _one_layer(found, figures),
        _two_layer(found, figures),
        _roots(found, figures),
        _properties(found),
        _shares(found, figures),
        _without(found),
        _min_max(found, figures),
        _lrp(found, figures),
        _differences(found),
    ]
    return page("The paper's MNIST experiments", [lead], sections, foot)


def _summary(found: Numbers) -> Section:
    meaning = """The sentences are those of sections III-C and IV-C of the paper and of section IV of its supplement
        that say something of MNIST; those on photographs are judged in the report on ILSVRC. Networks and relevance
        model are trained anew: the paper's weights are not known."""
    precision = """Maps are computed in float64 and kept in float32, from which all numbers are computed: rounding is
        below 1e-7 of the score. That w², zB and training-free are conservative and positive is checked while this page
        is made; without that it would not be here."""
    own = as_table(found["requirements"])
    return Section(
        "What the paper says, and what holds here",
        [verdicts.as_table(found["verdicts"]), meaning, Heading("Our own checks"), own, precision],
    )


def _networks(found: Numbers) -> Section:
    data = """Images are 28 × 56 pixels, coded from −0.5 (black) to 1.5 (white): a digit 0–3 and a distractor 4–9, left
        and right at random; where there is no target, a distractor stands beside an empty half or beside another
        distractor, as likely. Digits come from the test set of MNIST, where they are; training moves digits of its
        own by up to three pixels."""
    return Section("The networks", [data, tables.quality(found), tables.training(found)])


def _overview(figures: Figures) -> Section:
    """Figures 1 to 4 and 7."""
    parts: list[Part] = [
        """The paper sketches its method on cartoons; these are the same drawings of a real pair of digits and of
        neurons of the trained networks, with their numbers: the first pair with a zero that both networks detect.""",
        _picture(
            figures,
            "figure1",
            """Figure 1. The score is decomposed on hidden neurons, then each neuron's share on the pixels. Look for
            the same numbers on both sides: a neuron's relevance is its activation. “The classification decision is
            first decomposed in terms of contributions R₁, R₂, R₃ of respective hidden neurons x₁, x₂, x₃, and then, the
            contribution of each hidden neuron is independently redistributed onto the pixels […].” Shown are the three
            most active neurons of the one-layer network, with the zB rule.""",
            "A pair of digits, weights of three neurons, their activations, the score, and the way back to a heatmap",
        ),
        _picture(
            figures,
            "figure2",
            """Figure 2. Taylor decomposition: the gradient at the root times the difference to it. Look for what the
            root takes away: “a good root point is one that removes the object […], but that minimally deviates from the
            original point”. The distractor stays as it is, of the digit so much is changed that the score falls to a
            tenth.""",
            "A pair of digits, its root, their difference, the gradient, and the heatmap as their product",
        ),
        _picture(
            figures,
            "figure3",
            """Figure 3. A forward pass through the two-layer network and the backward pass, layer by layer; neurons are
            squares, darker where larger. Look for the sums, which are the score in every layer, and for neurons that
            are active but not relevant: “Other neurons of the same layer are perceived as less relevant and do not
            significantly contribute to the heatmap.”""",
            "Activations of the layers in a row, and below them their relevances",
        ),
        _picture(
            figures,
            "figure4",
            """Figure 4. The one-layer network: “The first layer detects features in the input space, the second layer
            pools the detected features into an output score.” Look for parts of a zero in the weights, in the half
            where it stands, and for biases below zero.""",
            "A pair of digits, the weights of six neurons, and their sum",
            760,
        ),
        _picture(
            figures,
            "figure7",
            """Figure 7. The deep network, and both relevance models of its most relevant pooled unit k, which sums four
            detection units. Look for the sum of each: the trained model comes near R_k, the training-free one is R_k.
            The min-max model has weights v of its own and an inhibition a_j that relevance above lifts; the
            training-free one has the network's own weights, the pooling ratio c_k (1 for sums) and the context d_k.""",
            "Three drawings: the network, the min-max model and the training-free model with weights and numbers",
        ),
    ]
    return Section("The method on a real pair (figures 1 to 4 and 7)", parts)


def _picture(figures: Figures, name: str, caption: str, alt: str, width: int | None = None) -> Picture:
    return Picture(figures[name], caption, alt, width)


def _one_layer(found: Numbers, figures: Figures) -> Section:
    of, areas = found["methods"]["one-layer"], found["compared"]["areas"]
    names = {"sensitivity": "sensitivity", "taylor": "Taylor", "w2": "w²", "zB": "zB"}
    places = f"""The border (the outermost four pixels, {percent(areas["border"])} of the area), where there is no
        information, gets {_each(of, names, "on_border")} of the positive relevance. Completeness: of the target digit's
        ink pixels, {_each(of, names, "coverage")} get more than the map's average pixel."""
    hottest = ", ".join(f"{of[key]['largest']:.2g} ({name})" for key, name in names.items())
    consistency = f"""Nearest-root Taylor keeps {percent(of["taylor"]["kept"])} of all scores and dissipates the rest;
        {percent(of["taylor"]["negative_share"])} of its relevance is negative. Sensitivity is scaled by one factor for
        all pairs; over the pairs its sum has a correlation of {number(of["sensitivity"]["correlation_with_score"])}
        with the score. The hottest pixel has {hottest}: the shorter the tail of the histogram, the more pixels share
        the relevance."""
    look = """Look for points on the border in sensitivity's maps, thin strokes in Taylor's, and the whole digit in
        zB's: “The domain-aware zB-rule produces heatmaps that are still blurred, but that are complete and
        well-aligned with the data.”"""
    plots = """Look for points on the diagonal (conservative) and for blue bars (not positive): “The nearest root Taylor
        approach, although producing mostly positive heatmaps, dissipates a large fraction of the relevance.”"""
    return _figures("One-layer", (5, 6), figures, (look, plots), places, consistency)


def _two_layer(found: Numbers, figures: Figures) -> Section:
    of, areas = found["methods"]["two-layer"], found["compared"]["areas"]
    names = {"sensitivity": "sensitivity", "taylor": "Taylor"} | {key: key for key in ("min-max", "training-free")}
    places = f"""Ink pixels of the target digit that get more than the map's average pixel:
        {_each(of, names, "coverage")}. On the border, {percent(areas["border"])} of the area:
        {_each(of, names, "on_border")}."""
    starts = found["settings"]["starts"]
    consistency = f"""Taylor expands at the nearest root that was found from {starts} starts. It keeps
        {percent(of["taylor"]["kept"])} of all scores, and {percent(of["taylor"]["negative_share"])} of its relevance is
        negative. Maps of the min-max model hold
        {percent(of["min-max"]["kept"])} of the scores; a pair's map misses its score by
        {percent(found["min_max"]["mean_gap_over_mean_score"])} of the mean score on average. Training-free is
        conservative to {of["training-free"]["conservation_gap"]["worst"]:.0e}."""
    look = """Look for scattered points in the first two columns and for the same whole digits in the last two: “The
        heatmaps obtained by the trained min-max relevance model and by the training-free method are of similar
        quality.”"""
    plots = """Look for min-max near the diagonal and training-free on it: “The deep Taylor decomposition with the
        min-max relevance model produces near-conservative heatmaps, and the training-free deep Taylor decomposition
        produces heatmaps that are fully conservative.”"""
    return _figures("Two-layer", (8, 9), figures, (look, plots), places, consistency)


def _figures(
    network: str, numbers: tuple[int, int], figures: Figures, look: tuple[str, str], places: str, consistency: str
) -> Section:
    """A network's heatmaps, then its scatter plots and histograms; ``look``: what to look for in each."""
    first, second = numbers
    return Section(
        f"{network} network (figures {first} and {second})",
        [
            Picture(figures[f"figure{first}"], f"Figure {first}. {look[0]} {_SCALE}", _HEATMAPS_ALT),
            places,
            Picture(figures[f"figure{second}"], f"Figure {second}. {look[1]} {_QUANTITIES}", _QUANTITIES_ALT),
            consistency,
        ],
    )


def _roots(found: Numbers, figures: Figures) -> Section:
    roots = found["roots"]
    caption = """Figure S1. “Illustration of root points (empty circles) found for a given data point (full circle) for
        various propagation rules, relevance functions, and input domains.” Look for roots inside the blue domain; w²'s
        may lie anywhere. Functions and data point are ours, the paper does not give them."""
    alt = "Twelve panels with a data point, its root and the segment that was searched"
    outside = percent(roots["w2-in-box"]["outside"])
    text = f"""In the one-layer network, at {roots["w2"]["neurons"]} active neurons of {found["settings"]["roots"]}
        pairs: the w² root is the nearest in ℝᵈ, but {outside} of these roots are no images, pixels leave the box. The
        zB root stays inside, and at the median is {number(roots["zB"].get("median"))} times as far away as the nearest
        root in the box. The z⁺ root of the two-layer network's upper neurons is
        {number(roots["zplus"].get("median"))} times as far away as the nearest one in ℝᵈ₊."""
    return Section("Root points (supplement, figure S1)", [Picture(figures["root_points"], caption, alt), text])


def _properties(found: Numbers) -> Section:
    settings, roots = found["settings"], found["roots"]
    one, two = (found["unique"][name] for name in ("one-layer", "two-layer"))
    better = roots["taylor_over_best_restart_two-layer"]
    first = f"""𝒳 = ℝᵈ: what happens where pixels may have any value; for zB, the pixels of {settings["roots"]} pairs
        are doubled, so that they leave the box. Gap: |Σ R − f| / f over pairs with f > 0. Where f > 50 the worst is
        {_worst(found, "one-layer")} and {_worst(found, "two-layer")}; larger ones in the tables are of smaller scores.
        Nearest root of Taylor: f of this network is convex, so that its tangents prove how near a root can be at all;
        the ratio is to that bound, on {roots["taylor"]["pairs"]} pairs. Smooth (the paper's footnote *): the
        same with t⁻¹ log(0.5 + 0.5 exp(t x)), t = {settings["t"]:g}, in place of max(0, x). Spread: Σ |R −
        R'| over the mean Σ |R| of two maps of a pair, 0 to 2; the search begins at {settings["starts"]}
        places drawn with {one["seeds"]} seeds, on {one["pairs"]} pairs. Roots of the one-layer network are
        equally far to {percent(one["taylor_distance_spread"])}; the maps differ more, because the root lies
        on kinks of f, where the gradient jumps. Time: of the processor, in forward and backward passes of the
        same pairs through the same network, in the same run."""
    second = f"""† up to the fit of the relevance model. ‡ neither problem is convex: the root found from x alone is
        {number(better["mean"])} times as far away as the best found from {settings["starts"]} places with
        {two["seeds"]} seeds, on average (at most {number(better["most"])} times), and between seeds distances differ
        by {percent(two["taylor_distance_spread"])}. Min-max: {refits_table.unique_from(found)}."""
    return Section(
        "Tables 1 and 2, measured",
        [tables.one_layer_properties(found), first, tables.two_layer_properties(found), second],
    )


def _shares(found: Numbers, figures: Figures) -> Section:
    one, two = found["methods"]["one-layer"], found["methods"]["two-layer"]
    caption = """Share of the positive relevance on the target digit's half and on its ink. Red: trained; grey: the same
        network before its training. Dashed: what an even map has. Look for red right of the dashed line, and of
        grey."""
    alt = "Shares of relevance with intervals, trained and untrained"
    meaning = f"""What this means. In the one-layer network {_compare(one, "zB", "zB")}; in the two-layer network
        {_compare(two, "training-free", "training-free")}. A high share on the half says that a method is selective,
        not that it is complete. The ink tells more: with sensitivity its share is
        {number(one["sensitivity"]["on_ink"]["mean"])} in the one-layer network, and
        {number(one["sensitivity"]["untrained_on_ink"]["mean"])} before training; with zB it is
        {number(one["zB"]["on_ink"]["mean"])} and {number(one["zB"]["untrained_on_ink"]["mean"])}. A digit is
        recognised by its black parts as well, the inside of a zero for one, so that no good map has all of its
        relevance on ink. The distractor gets some relevance from every method: detection neurons see both halves, and
        zB gives a share to every pixel that is not at its least favourable value."""
    return Section(
        "Where the relevance is",
        [Picture(figures["shares"], caption, alt), tables.shares(found), meaning],
    )


def _compare(of: Numbers, key: str, name: str) -> str:
    s, d = of["sensitivity"], of[key]
    word = "more" if (s["on_half"]["mean"] or 0) > (d["on_half"]["mean"] or 0) else "less"
    return f"""sensitivity puts {word} on the target's half than {name} ({number(s["on_half"]["mean"])} and
        {number(d["on_half"]["mean"])}) and covers {percent(s["coverage"]["mean"])} of its ink, {name}
        {percent(d["coverage"]["mean"])}"""


def _without(found: Numbers) -> Section:
    lines = [
        f"""{network}: the mean score is {number(of["mean_score"]["without"])} without a target and
            {number(of["mean_score"]["with_target"])} with one; {percent(of["scores_of_zero"])} of the scores without a
            target are exactly zero."""
        for network, of in found["without_target"].items()
    ]
    meaning = """A conservative method then has as little relevance to show as there is score. Sensitivity, scaled by
        one factor for all pairs, need not follow: it says what would change the score, not what made it."""
    return Section("Pairs without a target digit", [tables.without(found), " ".join([*lines, meaning])])


def _min_max(found: Numbers, figures: Figures) -> Section:
    fit = found["min_max"]
    caption = """Predicted against true relevance of the 100 pooled units, all pairs; darker is more often, on a log
        scale. Look for the distance from the diagonal: “approximately conservative, with an approximation error that is
        determined by how much on average the output of the relevance model R̂_k differs from the true relevance R_k”."""
    text = f"""R̂_k explains {percent(fit["r_squared"])} of the variance of R_k on these held-out pairs, and Σ_k R̂_k
        {percent(fit["r_squared_of_sum"])} of the variance of the score. What it misses is all that maps of the min-max
        model lack in conservation: {percent(fit["mean_gap_over_mean_score"])} of the mean score on average."""
    picture = Picture(figures["min_max_fit"], caption, "Density plot along the diagonal", 560)
    again = found["refits"]
    more = () if again is None else (refits_table.table(again), refits_table.sentence(again))
    return Section("The min-max relevance model", [picture, text, *more])


def _lrp(found: Numbers, figures: Figures) -> Section:
    one, two = found["methods"]["one-layer"], found["methods"]["two-layer"]
    how = """LRP applies one rule in every detection layer; sums hand on in proportion. Deep Taylor is zB in the
        one-layer network and min-max in the two-layer network, as in the supplement."""
    text = f"""Negative relevance with α = 2, β = 1: {percent(one["alpha2beta1"]["negative_share"])} and
        {percent(two["alpha2beta1"]["negative_share"])} of all relevance in the two networks; with ε:
        {percent(one["epsilon"]["negative_share"])} and {percent(two["epsilon"]["negative_share"])}. The stabiliser
        takes its share of the score: {percent(one["epsilon"]["kept"])} (ε = 10) and {percent(two["epsilon"]["kept"])}
        (ε = 3) of it reach the pixels."""
    look = """Look for blue, for red on the distractor, and for thinner strokes than deep Taylor's: “Various parameters
        of LRP produce various artefacts such as the presence of residual relevance on the irrelevant MNIST digit, or
        the presence of negative relevance in the black areas of the MNIST images.”"""
    alt = "Pairs of digits and their heatmaps by deep Taylor decomposition and LRP"
    return Section(
        "Comparison with LRP (supplement, figures S2 and S3)",
        [
            how,
            Picture(figures["figureS2"], f"Figure S2, heatmaps of the one-layer network. {look} {_SCALE}", alt),
            Picture(figures["figureS2_numbers"], f"Figure S2, its properties. {_QUANTITIES}", _QUANTITIES_ALT),
            Picture(figures["figureS3"], f"Figure S3, heatmaps of the two-layer network. {look} {_SCALE}", alt),
            Picture(figures["figureS3_numbers"], f"Figure S3, its properties. {_QUANTITIES}", _QUANTITIES_ALT),
            tables.lrp(found),
            text,
        ],
    )


def _differences(found: Numbers) -> Section:
    choices = [
        """Sensitivity is rescaled by one factor for all pairs. One factor a map would make every map sum to its score,
        and the scatter plot a straight line that says nothing.""",
        """The paper does not say what stands in for the missing target. Here it is nothing or a second distractor.""",
        """LRP's ε is applied where there are weights. The paper says “the same rules in both layers”; whether sums
        were stabilised too, it does not say.""",
        f"""The paper's root has f(root) < 0.1 f(x); here f(root) ≤ {found["settings"]["level"]:g} f(x), in the box of
        pixels, by a search for the nearest such point.""",
        """Neither the paper's pairs nor its weights are known, so that heatmaps can be compared in kind only.""",
    ]
    return Section("Choices where the paper leaves one", choices)


def _worst(found: Numbers, network: str) -> str:
    """The worst gaps of a network's detected pairs, for the methods that have one."""
    keys = {"one-layer": ("sensitivity", "taylor"), "two-layer": ("sensitivity", "taylor", "min-max")}[network]
    gaps = [(key, found["methods"][network][key]["conservation_gap"]["worst_detected"]) for key in keys]
    return ", ".join(f"{number(gap)} ({key.replace('taylor', 'Taylor')}, {network})" for key, gap in gaps)


_SCALE = """Red speaks for the decision, blue against it. One colour scale per method, full colour at the 99.5th
    percentile of what is shown. The first ten pairs with a target digit, then the first with an empty half and the
    first with two distractors; none was chosen by hand."""
_QUANTITIES = """Above: the sum of the pixels' relevances against the score; on the diagonal a method is
    conservative. Below: how often a pixel has a relevance, on a log scale, negative ones blue; the same range for all
    methods, pixels of exactly zero left out."""
_QUANTITIES_ALT = "Scatter plots of summed relevance against score, and histograms of pixel relevance"
_HEATMAPS_ALT = "Twelve pairs of digits and their heatmaps by four methods"


def _each(of: Numbers, names: Mapping[str, str], what: str) -> str:
    return ", ".join(f"{percent(of[key][what]['mean'])} ({name})" for key, name in names.items())
