"""The MNIST report: its sections, and the sentences between figures and tables, with their numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deeptaylor.formatting import format_number, format_percent
from deeptaylor.methods.relevance_model import DEVIATION
from deeptaylor.paper.digit_pairs import TRAIN_SHIFT
from deeptaylor.paper.experiment import tabulate_claims
from deeptaylor.paper.measures import or_nan
from deeptaylor.paper.mnist_arrays import METHODS, DigitMethod
from deeptaylor.paper.mnist_numbers import is_consistent
from deeptaylor.paper.verdicts import cite, tabulate_verdicts
from deeptaylor.viz.pages import Heading, Part, ReportPicture, Section, Table, render_report

_BEGINS = {"layer": "the network's weights", "random": "random"}
_TRAININGS = {"plain": "paper's", "guided": "guided"}


def tabulate_refits(record: Mapping[str, Any], shipped: str) -> Table:
    """R², the likeness to the training-free maps and the share near the border, of each model.

    shipped   the steps of the model in the figures
    """
    rows: list[list[str | tuple[str, str]]] = [
        [
            f"from {_BEGINS[fit['begin']]}, seed {fit['seed']}",
            f"{or_nan(fit['r_squared']):.3f}",
            f"{or_nan(fit['correlation']):.3f}",
            format_percent(fit["border"]),
            format_percent(fit["gap"]),
        ]
        for fit in record["fits"]
    ]
    rows.append(["training-free", "—", "1", format_percent(record["training_free"]["border"]), "0"])
    return Table(
        f"Min-max models of the {_TRAININGS[record['training']]} training, {record['steps']} steps each, on "
        f"{record['pairs']} held-out pairs{_compare_steps(record, shipped)}. "
        "Correlation: of each map with the training-free one, mean over pairs with "
        "a target. Border: share of the relevance in the outermost four pixels. "
        "Gap: mean |f − Σ R_i| over the mean score.",
        ("model", "R²", "correlation", "border", "gap"),
        rows,
    )


def _compare_steps(record: Mapping[str, Any], shipped: str) -> str:
    """Say so if these models were trained for less long than that of the figures."""
    fewer = shipped.isdigit() and int(record["steps"]) < int(shipped)
    return f"; they are trained for less long than the model of the figures ({shipped} steps)" if fewer else ""


def describe_refit_spread(found: Mapping[str, Any]) -> str:
    """How the spread of the min-max maps over seeds was found."""
    record = found["refits"]["plain"]
    if record is None:
        return f"two models, each trained for {found['settings']['fit_steps']} steps from another start, on other pairs"
    count = sum(fit["begin"] == "random" for fit in record["fits"])
    return f"{count} models, each trained for {record['steps']} steps from another start, on other pairs"


def measure_refit_spread(found: Mapping[str, Any]) -> float:
    """The spread of the min-max maps over seeds, between models that were trained equally long."""
    record = found["refits"]["plain"]
    return or_nan(
        found["unique"]["two-layer"]["min_max_map_spread"] if record is None else record["spread"]["random"]["spread"]
    )


def describe_refits(record: Mapping[str, Any]) -> str:
    """What the start decides, and what the seed."""
    of, pulled = record["spread"], record["training"] == "guided"
    same = " and ".join(f"{or_nan(of[kind]['correlation']):.3f} (from {_BEGINS[kind]})" for kind in ("layer", "random"))
    pull = "Here v_ij is pulled towards the network's weights" if pulled else "Here nothing pulls on the weights"
    return f"""{pull}. Maps of models that begin alike, with other seeds, have a correlation of {same}; of models that
        begin otherwise {or_nan(of["different starts"]["correlation"]):.3f}. Σ |R − R'| over Σ |R| is
        {or_nan(of["different starts"]["spread"]):.2g} between the two starts, {or_nan(of["layer"]["spread"]):.2g}
        between seeds from the network's weights, and {or_nan(of["random"]["spread"]):.2g} between random ones."""


Numbers = Mapping[str, Any]
Figures = Mapping[str, Path]


def write_report(found: Numbers, figures: Figures) -> str:
    """The whole page."""
    versions = found["versions"]
    lead = f"""Deep Taylor decomposition (Montavon et al.) of two networks that detect a digit 0–3 next to a distractor
        4–9. The page has figures 1 to 9 and both tables of the paper, figures S1 to S3 of its supplement, and
        measurements of what the paper states about them. All methods explain the same
        {found["settings"]["pairs"]} pairs of held-out digits."""
    foot = f"""deeptaylor {versions["deeptaylor"]}, torch {versions["torch"]}, {found["threads"]} thread(s); weights
        {", ".join(found["weights"].values())}. All numbers are in numbers.json, what they were computed from is in
        arrays/."""
    sections = [
        _write_summary(found),
        _write_networks(found),
        _write_overview(figures),
        _write_one_layer(found, figures),
        _write_two_layer(found, figures),
        _write_roots(found, figures),
        _write_properties(found),
        _write_shares(found, figures),
        _write_pairs_without_target(found),
        _write_min_max(found, figures),
        _write_lrp(found, figures),
        _write_choices(found),
    ]
    return render_report("The paper's MNIST experiments", [lead], sections, foot)


def _write_summary(found: Numbers) -> Section:
    meaning = """The sentences are the statements about MNIST in sections III-C and IV-C of the paper and in section IV
        of its supplement. The report on ILSVRC tests the statements about photographs. Networks and relevance
        models were trained again, because the paper's weights are not known. Means are over pairs with a target to
        which both networks give a score. Sums against scores, and the negative share of all relevance, are over all
        pairs; on black pixels the share is a mean. Ink is brighter than half. Steps go across or down and stay in the
        digit's half. Rank correlations are of positive relevance on the first 200 pairs, averaged over both
        directions."""
    precision = """Maps are computed in float64 and saved in float32; all numbers come from the saved maps, with
        rounding below 1e-7 of the score. While this page is made, it is checked that w², zB and training-free maps are
        conservative and positive. If the check fails, there is no page."""
    own = tabulate_claims(found["requirements"])
    return Section(
        "What the paper says, and what holds here",
        [tabulate_verdicts(found["verdicts"]), meaning, Heading("Our own checks"), own, precision],
    )


def _write_networks(found: Numbers) -> Section:
    data = """Images are 28 × 56 pixels, coded from −0.5 (black) to 1.5 (white): a digit 0–3 and a distractor 4–9, left
        and right at random; where there is no target, a distractor stands beside an empty half or beside another
        distractor, as likely. Digits come from the test set of MNIST, where they are; training moves digits of its
        own by up to three pixels."""
    silent = "; ".join(
        f"""{network}: {" and ".join(f"{n} of {of}" for of, n in zip(*q["silent"].values(), strict=True))}"""
        for network, q in found["quality"].items()
    )
    count = found["quality"]["one-layer"]["held_out"]["pairs"]
    idle = f"""Detection units that fire for none of {count} held-out pairs, from the lowest layer up: {silent}. They
        have no part in any map."""
    return Section("The networks", [data, tabulate_quality(found), idle, tabulate_training(found)])


def _write_overview(figures: Figures) -> Section:
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
            detection units. Look for the sum of each beside R_k: the trained model predicts it, the training-free one
            is it. The min-max model has weights v of its own and an inhibition a_j that relevance above lifts; the
            training-free one has the network's own weights, the pooling ratio c_k (1 for sums) and the context d_k.""",
            "Three drawings: the network, the min-max model and the training-free model with weights and numbers",
        ),
    ]
    return Section("The method on a real pair (figures 1 to 4 and 7)", parts)


def _picture(figures: Figures, name: str, caption: str, alt: str, width: int | None = None) -> ReportPicture:
    return ReportPicture(figures[name], caption, alt, width)


def _write_one_layer(found: Numbers, figures: Figures) -> Section:
    of, areas = found["methods"]["one-layer"], found["compared"]["areas"]
    names = {"sensitivity": "sensitivity", "taylor": "Taylor", "w2": "w²", "zB": "zB"}
    places = f"""The border (the outermost four pixels, {format_percent(areas["border"])} of the area), where there
        is no information, gets {_format_means(of, names, "on_border")} of the positive relevance. Completeness: of
        the target digit's ink pixels, {_format_means(of, names, "coverage")} get more than the map's average pixel."""
    hottest = ", ".join(f"{of[key]['largest']:.2g} ({name})" for key, name in names.items())
    consistency = f"""Nearest-root Taylor keeps {format_percent(of["taylor"]["kept"])} of all scores and dissipates
        the rest; {format_percent(of["taylor"]["negative_share"])} of its relevance is negative. Sensitivity is
        scaled by one factor for all pairs; over the pairs its sum has a correlation of
        {format_number(of["sensitivity"]["correlation_with_score"])} with the score. The hottest pixel has
        {hottest}: the shorter the tail of the histogram, the more pixels share the relevance."""
    aligned = or_nan(found["compared"]["levels"]["one-layer"]["zB"]["aligned"])
    look = f"""Look for points on the border in sensitivity's maps, thin strokes in Taylor's, and the whole digit in
        zB's: “The domain-aware zB-rule produces heatmaps that are still blurred, but that are complete and
        well-aligned with the data” {cite(found, "III-C", "The domain-aware")}. Their correlation with the picture of
        the digit is {aligned:.2f}."""
    plots = f"""Look for points on the diagonal (conservative) and for blue bars (not positive): “The nearest root
        Taylor approach, although producing mostly positive heatmaps, dissipates a large fraction of the relevance”
        {cite(found, "III-C", "The nearest root Taylor")}."""
    return _write_figures("One-layer", (5, 6), figures, (look, plots), places, consistency)


def _write_two_layer(found: Numbers, figures: Figures) -> Section:
    of, areas = found["methods"]["two-layer"], found["compared"]["areas"]
    names = {"sensitivity": "sensitivity", "taylor": "Taylor"} | {key: key for key in ("min-max", "training-free")}
    places = f"""Ink pixels of the target digit that get more than the map's average pixel:
        {_format_means(of, names, "coverage")}. On the border, {format_percent(areas["border"])} of the area:
        {_format_means(of, names, "on_border")}."""
    of_search, judged = found["settings"], found["roots"]["taylor_over_thorough"]
    consistency = f"""Taylor expands at the nearest root that was found: from {of_search["starts"]} pictures with parts
        blackened a few cheap steps are taken, and the best {of_search["searched"]} and the picture itself are searched
        from fully. For the first {of_search["shown"]} pairs, which the figures show, this is done with
        {of_search["search_seeds"]} seeds, and the nearest root of all is taken. On {judged["pairs"]} pairs a search
        with three times as many random starts, begun at the roots of all seeds as well, found roots nearer than those
        of one seed by {format_percent(1 - 1 / or_nan(judged["mean"]))} on average. That there is none nearer, nothing
        here certifies: no lower bound of the distance is known for this network, as there is for the one-layer one.
        Taylor keeps
        {format_percent(of["taylor"]["kept"])} of all scores, and {format_percent(of["taylor"]["negative_share"])} of
        its relevance is negative. In {of["taylor"]["above_score"]} of {of["taylor"]["explained_pairs"]} pairs Σ R is
        larger than f: this f is not convex, so that its slope at the root can exceed the mean slope on the way from x.
        Of a convex f, as in the one-layer network, Σ R ≤ f always. Maps of the min-max model hold
        {format_percent(of["min-max"]["kept"])} of the scores; a pair's map misses its score by
        {format_percent(found["min_max"]["mean_gap_over_mean_score"])} of the mean score on average. Training-free is
        conservative to {of["training-free"]["conservation_gap"]["worst"]:.0e}."""
    borders = {key: format_percent(of[key]["on_border"]["mean"]) for key in ("min-max", "training-free")}
    look = f"""Look for scattered points in the first two columns of maps, and for digits in the next two. The min-max
        model has a red frame, which the training-free one has not: {borders["min-max"]} of its relevance lie in the
        outermost four pixels, against {borders["training-free"]}, because nothing in the paper's objective holds back
        the weights of pixels that hardly vary. “The heatmaps obtained by the trained min-max relevance model and by
        the training-free method are of similar quality” {cite(found, "IV-C", "The heatmaps obtained")}. The last
        column is the min-max model of our own, guided training, without the frame."""
    plots = f"""Look for min-max near the diagonal and training-free on it: “The deep Taylor decomposition with the
        min-max relevance model produces near-conservative heatmaps, and the training-free deep Taylor decomposition
        produces heatmaps that are fully conservative” {cite(found, "IV-C", "The deep Taylor decomposition with")}."""
    return _write_figures("Two-layer", (8, 9), figures, (look, plots), places, consistency)


def _write_figures(
    network: str, numbers: tuple[int, int], figures: Figures, look: tuple[str, str], places: str, consistency: str
) -> Section:
    """A network's heatmaps, then its scatter plots and histograms; ``look``: what to look for in each."""
    first, second = numbers
    return Section(
        f"{network} network (figures {first} and {second})",
        [
            ReportPicture(figures[f"figure{first}"], f"Figure {first}. {look[0]} {_SCALE}", _HEATMAPS_ALT),
            places,
            ReportPicture(figures[f"figure{second}"], f"Figure {second}. {look[1]} {_QUANTITIES}", _QUANTITIES_ALT),
            consistency,
        ],
    )


def _write_roots(found: Numbers, figures: Figures) -> Section:
    roots = found["roots"]
    caption = """Figure S1. “Illustration of root points (empty circles) found for a given data point (full circle) for
        various propagation rules, relevance functions, and input domains.” Look for roots inside the blue domain; w²'s
        may lie anywhere. Functions and data point are ours, the paper does not give them."""
    alt = "Twelve panels with a data point, its root and the segment that was searched"
    outside = format_percent(roots["w2-in-box"]["outside"])
    below, settled, above = (f"{or_nan(share):.2f}" for share in roots["kinks"]["first"])
    means = ", ".join(f"{or_nan(share):.2f}" for share in roots["kinks"]["mean"])
    least, most = roots["kinks"]["units"]
    kinks = f"""Taylor at kinks. At the nearest root of the one-layer network {least} to {most} detection units lie on
        their kink, where the gradient is not unique. For the first pair Σ R is {below} of f with the gradient just
        beyond the root, {above} with that just before it, and {settled} with the subgradient that satisfies the
        conditions of a nearest root, x − x̃ = λ g; on average over {roots["kinks"]["pairs"]} pairs {means}, in the order
        beyond, subgradient, before. The paper's argument for a positive map is for a differentiable f. At a kink it
        carries over to this subgradient alone, which is therefore taken in all figures and tables; the choice is
        ours."""
    text = f"""In the one-layer network, at {roots["w2"]["neurons"]} active neurons of {found["settings"]["roots"]}
        pairs: the w² root is the nearest in ℝᵈ, but {outside} of these roots are no images, pixels leave the box.
        The zB root stays inside, and at the median is {format_number(roots["zB"].get("median"))} times as far away
        as the nearest root in the box. The z⁺ root of the two-layer network's upper neurons is
        {format_number(roots["zplus"].get("median"))} times as far away as the nearest one in ℝᵈ₊."""
    return Section(
        "Root points (supplement, figure S1)", [ReportPicture(figures["root_points"], caption, alt), text, kinks]
    )


def _write_properties(found: Numbers) -> Section:
    settings, roots = found["settings"], found["roots"]
    one, two = (found["unique"][name] for name in ("one-layer", "two-layer"))
    better = roots["taylor_over_best_restart_two-layer"]
    first = f"""𝒳 = ℝᵈ means that pixels may have any value; for zB, the pixels of {settings["roots"]} pairs
        are doubled, so that they leave the box. Gap: |Σ R − f| / f over pairs with f > 0. Where f > 50 the worst is
        {_format_worst_gaps(found, "one-layer")} and {_format_worst_gaps(found, "two-layer")}; larger ones in the tables
        are of smaller scores.
        Nearest root of Taylor: f of this network is convex, so that its tangents prove how near a root can be at all;
        the ratio is to that bound, on {roots["taylor"]["pairs"]} pairs. Smooth (the paper's footnote *): the
        same with t⁻¹ log(0.5 + 0.5 exp(t x)), t = {settings["t"]:g}, in place of max(0, x). Spread: Σ |R −
        R'| over the mean Σ |R| of two maps of a pair, 0 to 2; the search begins at {settings["spread"]}
        places drawn with {one["seeds"]} seeds, on {one["pairs"]} pairs. Roots of the one-layer network are
        equally far to {format_percent(one["taylor_distance_spread"])}. Time: of the processor, in forward and backward
        passes of the same pairs through the same network, in the same run."""
    second = f"""† up to the fit of the relevance model. ‡ neither problem is convex: the root found from x alone is
        {format_number(better["mean"])} times as far away as the best found from {settings["starts"]} places with
        {two["seeds"]} seeds, on average (at most {format_number(better["most"])} times), and between seeds
        distances differ by {format_percent(two["taylor_distance_spread"])}. Min-max:
        {describe_refit_spread(found)}."""
    return Section(
        "Tables 1 and 2, measured",
        [tabulate_one_layer_properties(found), first, tabulate_two_layer_properties(found), second],
    )


def _write_shares(found: Numbers, figures: Figures) -> Section:
    one, two = found["methods"]["one-layer"], found["methods"]["two-layer"]
    caption = """Share of the positive relevance on the target digit's half and on its ink. Red: trained; grey: the same
        network before its training. Dashed: what an even map has. Look for red right of the dashed line, and of
        grey."""
    alt = "Shares of relevance with intervals, trained and untrained"
    meaning = f"""What this means. In the one-layer network {_compare_with_sensitivity(one, "zB")}; in the two-layer
        network {_compare_with_sensitivity(two, "training-free")}. A high share on the half says that a method is
        selective, not that it is complete. The ink tells more: with sensitivity its share is
        {format_number(one["sensitivity"]["on_ink"]["mean"])} in the one-layer network, and
        {format_number(one["sensitivity"]["untrained_on_ink"]["mean"])} before training; with zB it is
        {format_number(one["zB"]["on_ink"]["mean"])} and {format_number(one["zB"]["untrained_on_ink"]["mean"])}. A
        digit is recognised by its black parts as well, the inside of a zero for one, so that no good map has all of
        its relevance on ink. The distractor gets some relevance from every method: detection neurons see both
        halves, and zB gives a share to every pixel that is not at its least favourable value."""
    return Section(
        "Where the relevance is",
        [ReportPicture(figures["shares"], caption, alt), tabulate_shares(found), meaning],
    )


def _compare_with_sensitivity(of: Numbers, key: str) -> str:
    s, d = of["sensitivity"], of[key]
    word = "more" if (s["on_half"]["mean"] or 0) > (d["on_half"]["mean"] or 0) else "less"
    return f"""sensitivity puts {word} on the target's half than {key} ({format_number(s["on_half"]["mean"])} and
        {format_number(d["on_half"]["mean"])}) and covers {format_percent(s["coverage"]["mean"])} of its ink, {key}
        {format_percent(d["coverage"]["mean"])}"""


def _write_pairs_without_target(found: Numbers) -> Section:
    lines = [
        f"""{network}: the mean score is {format_number(of["mean_score"]["without"])} without a target and
            {format_number(of["mean_score"]["with_target"])} with one; {format_percent(of["scores_of_zero"])} of the
            scores without a
            target are exactly zero."""
        for network, of in found["without_target"].items()
    ]
    meaning = """The maps of a conservative method then have little relevance, because the score is small. This need not
        hold for sensitivity, which is scaled by one factor for all pairs: it shows changes of the score, not its
        origin."""
    return Section("Pairs without a target digit", [tabulate_pairs_without_target(found), " ".join([*lines, meaning])])


def _write_min_max(found: Numbers, figures: Figures) -> Section:
    caption = """Predicted against true relevance of the 100 pooled units, all pairs; darker is more often, on a log
        scale. Look for the distance from the diagonal: “approximately conservative, with an approximation error that is
        determined by how much on average the output of the relevance model R̂_k differs from the true relevance R_k”."""
    paper = f"""Min-max is the paper's model with the paper's training: gradient steps on ⟨(R̂_k − R_k)²⟩ from random
        weights, with one learning rate for all parameters, which falls to zero in the last third of the steps.
        {describe_convergence(found["curve"], found["gradient"])} What R̂_k misses
        is all that its maps lack in conservation: {format_percent(found["min_max"]["mean_gap_over_mean_score"])} of
        the mean score on average. Its maps have more relevance on the border than the training-free ones: pixels that
        hardly vary act as a bias of every unit, and nothing holds their weights back."""
    ours = """Our own, guided training begins at the network's weights, pulls v_ij towards them, centres x_i and keeps
        d_j ≤ 0. It needs fewer steps, and its maps are closer to the training-free ones. It is not the paper's."""
    picture = ReportPicture(figures["min_max_fit"], caption, "Density plot along the diagonal", 560)
    shipped = {
        training: found["training"][name].get("steps", "?")
        for training, name in (("plain", "min-max"), ("guided", "min-max-guided"))
    }
    more = [
        part
        for training, record in found["refits"].items()
        if record is not None
        for part in (tabulate_refits(record, shipped[training]), describe_refits(record))
    ]
    return Section(
        "The min-max relevance model: the paper's training and ours",
        [picture, paper, ours, tabulate_min_max(found), *more],
    )


def describe_convergence(curve: Sequence[Numbers], gradient: Numbers) -> str:
    """How far the plain training came, by its loss and its gradient."""
    if not curve:
        return ""
    first, last = curve[0], curve[-1]
    middle = next(line for line in curve if 2 * line["step"] >= last["step"])
    return f"""After {last["step"]:.0f} steps R² on held-out pairs is {last["r_squared"]:.4f}; at half of the steps it
        was {middle["r_squared"]:.4f}, after {first["step"]:.0f} steps {first["r_squared"]:.4f}. The loss fell from
        {first["loss"]:.0f} to {last["loss"]:.1f}. The norm of the gradient over {gradient["pairs"]:.0f} training pairs
        is {gradient["norm"]:.1f}, much of which is chance in the pairs. Two halves of the pairs have
        {gradient["corrected"]:.1f} in common (√(g₁ · g₂)), of weights with a norm of {gradient["weights"]:.0f}. It is
        near a minimum, and not at one."""


def tabulate_min_max(found: Numbers) -> Table:
    """Both trainings of the min-max model beside the training-free model."""
    rows: list[list[Cell]] = []
    for key, title in (("min-max", "paper's training"), ("min-max-guided", "guided training, ours")):
        fit, notes = found[key.replace("-", "_")], found["training"][key]
        rows.append(
            [
                f"min-max, {title}", notes.get("steps", "?"), f"{or_nan(fit['r_squared']):.3f}",
                f"{or_nan(fit['r_squared_of_sum']):.3f}", format_percent(fit["mean_gap_over_mean_score"]),
                f"{or_nan(fit['correlation_with_training_free']):.3f}", *_places(found, key),
            ]
        )  # fmt: skip
    rows.append(["training-free", "0", "1", "1", "0", "1", *_places(found, "training-free")])
    areas = found["compared"]["areas"]
    return Table(
        "Trainings of the min-max model. R²: explained variance of R_k, and of the score. "
        "Gap: mean |f − Σ R_i| over the mean score. "
        f"Correlation: with the training-free maps. An even map has {format_percent(areas['border'])} on the border "
        f"and {format_percent(areas['ink'])} on the ink.",
        ("model", "steps", "R²", "R² of the score", "gap", "correlation", "digit's half", "ink", "border"),
        rows,
    )


def _places(found: Numbers, key: str) -> list[str]:
    of = found["methods"]["two-layer"][key]
    return [format_percent(of[place]["mean"]) for place in ("on_half", "on_ink", "on_border")]


def _write_lrp(found: Numbers, figures: Figures) -> Section:
    one, two = found["methods"]["one-layer"], found["methods"]["two-layer"]
    how = """LRP applies one rule in every detection layer; sums hand on in proportion. Deep Taylor is zB in the
        one-layer network and min-max in the two-layer network, as in the supplement."""
    text = f"""Negative relevance with α = 2, β = 1: {format_percent(one["alpha2beta1"]["negative_share"])} and
        {format_percent(two["alpha2beta1"]["negative_share"])} of all relevance in the two networks; with ε:
        {format_percent(one["epsilon"]["negative_share"])} and {format_percent(two["epsilon"]["negative_share"])}.
        The stabiliser takes its share of the score: {format_percent(one["epsilon"]["kept"])} (ε = 10) and
        {format_percent(two["epsilon"]["kept"])} (ε = 3) of it reach the pixels."""
    cited = cite(found, "supplement", "Various parameters", "[…] or the presence")
    look = f"""Look for blue, for red on the distractor, and for thinner strokes than deep Taylor's: “Various parameters
        of LRP produce various artefacts such as the presence of residual relevance on the irrelevant MNIST digit, or
        the presence of negative relevance in the black areas of the MNIST images” {cited}."""
    alt = "Pairs of digits and their heatmaps by deep Taylor decomposition and LRP"
    return Section(
        "Comparison with LRP (supplement, figures S2 and S3)",
        [
            how,
            ReportPicture(figures["figureS2"], f"Figure S2, heatmaps of the one-layer network. {look} {_SCALE}", alt),
            ReportPicture(figures["figureS2_numbers"], f"Figure S2, its properties. {_QUANTITIES}", _QUANTITIES_ALT),
            ReportPicture(figures["figureS3"], f"Figure S3, heatmaps of the two-layer network. {look} {_SCALE}", alt),
            ReportPicture(figures["figureS3_numbers"], f"Figure S3, its properties. {_QUANTITIES}", _QUANTITIES_ALT),
            tabulate_lrp(found),
            text,
        ],
    )


def _write_choices(found: Numbers) -> Section:
    of = found["training"]
    rates = ", ".join(f"{of[name].get('learning_rate', '?')} ({name})" for name in of)
    choices = [
        f"""The paper trains with “a small learning rate”. Here: {rates}. All of them fall to zero along a straight line
        in the last third of the steps. Those of the networks and of our guided training also rise along one in the
        first hundredth; the plain training has no such rise.""",
        f"""The min-max model of the paper's training took {of["min-max"].get("steps", "?")} steps, the paper's 300000.
        It begins with v_ij and v_lj drawn from a normal distribution with a standard deviation of {DEVIATION:g}
        (seed {of["min-max"].get("seed", "?")}) and d_j = 0; the paper names the deviation for its networks alone.""",
        f"""“Training data is extended with translated versions of MNIST digits.” Here each digit is moved by up to
        {TRAIN_SHIFT} pixels down and across, at random; held-out digits are where MNIST has them.""",
        f"""Our guided training of the min-max model pulls v_ij towards the network's weights, by
        {of["min-max-guided"].get("pull", "?")} of their squared distance. The paper's training has no such term.""",
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


def _format_worst_gaps(found: Numbers, network: str) -> str:
    """The worst gaps of a network's detected pairs, for the methods that have one."""
    keys = {"one-layer": ("sensitivity", "taylor"), "two-layer": ("sensitivity", "taylor", "min-max")}[network]
    gaps = [(key, found["methods"][network][key]["conservation_gap"]["worst_detected"]) for key in keys]
    return ", ".join(f"{format_number(gap)} ({key.replace('taylor', 'Taylor')}, {network})" for key, gap in gaps)


_SCALE = """Red speaks for the decision, blue against it. One colour scale per method, full colour at the 99.5th
    percentile of what is shown. The first ten pairs with a target digit, then the first with an empty half and the
    first with two distractors; none was chosen by hand."""
_QUANTITIES = """Above: the sum of the pixels' relevances against the score; on the diagonal a method is
    conservative. Below: how often a pixel has a relevance, on a log scale, negative ones blue; the same range for all
    methods, pixels of exactly zero left out."""
_QUANTITIES_ALT = "Scatter plots of summed relevance against score, and histograms of pixel relevance"
_HEATMAPS_ALT = "Twelve pairs of digits and their heatmaps by each method"


def _format_means(of: Numbers, names: Mapping[str, str], what: str) -> str:
    return ", ".join(f"{format_percent(of[key][what]['mean'])} ({name})" for key, name in names.items())


Cell = str | tuple[str, str]

NO_CHANCE = "0: no chance in it"


def find_methods(network: str, *keys: str) -> list[DigitMethod]:
    """Methods of a network, in this order."""
    return [next(m for m in METHODS[network] if m.key == key) for key in keys]


def tabulate_quality(found: Numbers) -> Table:
    """Error and accuracy of both networks."""
    rows: list[list[Cell]] = []
    for network, of in found["quality"].items():
        for name, text in (("shown", "the pairs of this report"), ("held_out", "as in MNIST"), ("moved", "moved")):
            q = of[name]
            place = text if name != "moved" else f"moved by up to {q['max_shift']} pixels"
            rows.append(
                [f"{network}, {place}", str(q["pairs"]), f"{q['mse']:.1f}", format_percent(q["accuracy"], ".2f")]
            )
    return Table(
        "Quality on held-out digits. Targets are 0 and 100; accuracy: on the right side of 50.",
        ("network, digits", "pairs", "mean square error", "accuracy"),
        rows,
    )


def tabulate_training(found: Numbers) -> Table:
    """What the headers of the weights say about their training."""
    headers = found["training"]
    keys = sorted({key for header in headers.values() for key in header} - {"network"})
    rows: list[list[Cell]] = [[key.replace("_", " "), *[h.get(key, "—") for h in headers.values()]] for key in keys]
    return Table("Training, as the headers of the weights tell it.", ("", *headers), rows)


def tabulate_one_layer_properties(found: Numbers) -> Table:
    """Table 1 (section III), measured: its eight rows, and how much of the scores the maps hold."""
    keys = ("sensitivity", "taylor", "w2", "zB")
    of, roots = found["methods"]["one-layer"], found["roots"]
    w2, zb, taylor = roots["w2"], roots["zB"], roots["taylor"]
    unique, beyond = found["unique"]["one-layer"], roots["beyond"]
    real, box = ("{} of {} roots found".format(*roots["found"][name]) for name in ("real", "box"))
    leave, leave_positive = (format_percent(or_nan(roots[name]["outside"])) for name in ("w2-in-box", "w2-positive"))
    stay, stay_positive = (format_percent(or_nan(roots[name]["outside"])) for name in ("zB", "zplus"))
    rows: list[list[Cell]] = [
        _beside(
            "𝒳 = ℝᵈ",
            (
                "needs no root",
                real,
                f"{_ratio(w2)} × the nearest",
                f"outside 𝓑 {format_percent(beyond['zB'])} is negative",
            ),
            ("yes", "yes", "yes", "no"),
        ),
        _beside(
            "𝒳 = ℝᵈ₊, 𝓑",
            (
                "needs no root",
                f"in 𝓑 {box}",
                f"{leave_positive} and {leave} of neurons' roots leave ℝᵈ₊ and 𝓑",
                f"{stay_positive} (z⁺) and {stay} (zB) of neurons' roots leave them",
            ),
            ("yes", "yes", "no", "yes"),
        ),
        _beside(
            "nearest root on 𝒳: its distance / the nearest one's, median (most)",
            (
                "needs no root",
                f"{or_nan(taylor['median']):.5f} ({or_nan(taylor['most']):.4f})",
                f"{_ratio(w2)} in ℝᵈ",
                f"{_ratio(zb)} in 𝓑",
            ),
            ("no", "yes", "yes", "no"),
        ),
        *_consistency(found, "one-layer", keys, ("no", "no", "yes", "yes"), ("yes", "yes*", "yes", "yes")),
        _beside(
            "unique solution: spread of maps over seeds",
            (NO_CHANCE, f"{or_nan(unique['taylor_map_spread']):.2g}", NO_CHANCE, NO_CHANCE),
            ("yes", "yes", "yes", "yes"),
        ),
        _beside("fast computation: time in gradients", _times(of, keys), ("yes", "no", "yes", "yes")),
    ]
    caption = "Table 1 (section III), measured on the one-layer network; the paper's number is next to each of ours."
    return _tabulate_properties(caption, "one-layer", keys, rows)


def tabulate_two_layer_properties(found: Numbers) -> Table:
    """Table 2 (section IV), measured: its four rows, the first of them in three."""
    keys = ("sensitivity", "taylor", "min-max", "training-free")
    of, unique = found["methods"]["two-layer"], found["unique"]["two-layer"]
    steps = found["training"]["min-max"].get("steps", "?")
    spreads = [f"{value:.2g}" for value in (or_nan(unique["taylor_map_spread"]), measure_refit_spread(found))]
    rows: list[list[Cell]] = [
        *_consistency(found, "two-layer", keys, ("no", "no", "yes†", "yes"), None),
        _beside(
            "unique solution: spread of maps over seeds", (NO_CHANCE, *spreads, NO_CHANCE), ("yes", "no‡", "no‡", "yes")
        ),
        _beside("training-free: steps of training", ("0", "0", steps, "0"), ("yes", "yes", "no", "yes")),
        _beside("fast computation: time in gradients", _times(of, keys), ("yes", "no", "yes", "yes")),
    ]
    caption = "Table 2 (section IV), measured on the two-layer network; the paper's number is next to each of ours."
    return _tabulate_properties(caption, "two-layer", keys, rows)


def _beside(name: str, measured: Sequence[str], paper: Sequence[str]) -> list[Cell]:
    """A row: what was measured, with what the paper says of it."""
    return [name, *[(text, f"paper: {said}") for text, said in zip(measured, paper, strict=True)]]


def _tabulate_properties(caption: str, network: str, keys: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Table:
    return Table(caption, ("property", *[m.title for m in find_methods(network, *keys)]), rows)


def _consistency(
    found: Numbers, network: str, keys: Sequence[str], consistent: Sequence[str], positive: Sequence[str] | None
) -> list[list[Cell]]:
    """Conservative, positive, consistent; the first two with what the paper says where its table has them."""
    of, smooth = found["methods"][network], format_percent(found["smooth_taylor"][network]["negative_share"])
    gaps = [
        f"{_small(of[key]['conservation_gap']['median'])} ({_small(of[key]['conservation_gap']['worst'])})"
        for key in keys
    ]
    shares = [format_percent(of[key]["negative_share"]) for key in keys]
    negative = [
        f"{share}; smooth {smooth}" if key == "taylor" else share for key, share in zip(keys, shares, strict=True)
    ]
    both = ["yes" if is_consistent(of[key]) else "no" for key in keys]
    first = "conservative: gap, median (worst)"
    rows = (
        [_beside(first, gaps, consistent), _beside("positive: negative share", negative, positive)]
        if positive
        else [
            [first, *gaps],
            ["positive: negative share", *negative],
        ]
    )
    kept: list[Cell] = ["(all relevance / all scores)", *[format_percent(of[key]["kept"]) for key in keys]]
    return [*rows, _beside("consistent", both, consistent), kept]


def _times(of: Numbers, keys: Sequence[str]) -> list[str]:
    return [_small(of[key]["time_in_gradients"]) for key in keys]


def tabulate_shares(found: Numbers) -> Table:
    """Where the positive relevance is, trained beside untrained."""
    rows: list[list[Cell]] = []
    for network, methods in METHODS.items():
        for method in methods:
            of = found["methods"][network][method.key]
            places = [
                _interval(of.get(name)) for name in ("on_half", "untrained_on_half", "on_ink", "untrained_on_ink")
            ]
            rows.append([f"{network}, {method.title}", *places, _interval(of["coverage"]), _interval(of["on_border"])])
    areas = found["compared"]["areas"]
    return Table(
        "Share of the positive relevance, mean over pairs with a target and 95 % bootstrap interval. An even map has "
        f"50 % on the target's half, {format_percent(areas['ink'])} on its ink and {format_percent(areas['border'])} "
        "on the border, "
        "as these have of the area. Ink: pixels of the target digit brighter than half. Covered: ink pixels that get "
        "more than the map's average pixel. Border: the outermost four pixels, where there is next to no ink. The "
        "untrained network is the same one before its training.",
        ("method", "target's half", "untrained", "target's ink", "untrained", "ink covered", "border"),
        rows,
    )


def tabulate_pairs_without_target(found: Numbers) -> Table:
    """Pairs without a target digit."""
    rows: list[list[Cell]] = []
    kinds = ("all", "two_distractors", "empty_half")
    for network, methods in METHODS.items():
        scores = found["without_target"][network]["score_ratio"]
        rows.append([f"{network}, score f", *[format_percent(scores[kind]) for kind in kinds]])
        for method in methods:
            of = found["methods"][network][method.key]["without_target"]
            rows.append([f"{network}, {method.title}", *[format_percent(of[kind]) for kind in kinds]])
    return Table(
        "Score and Σ |R| of pairs without a target digit, over those of pairs with one, on average.",
        ("", "no target", "two distractors", "one distractor, one half empty"),
        rows,
    )


def tabulate_lrp(found: Numbers) -> Table:
    """Deep Taylor beside LRP."""
    rows: list[list[Cell]] = []
    for network, own in (("one-layer", "zB"), ("two-layer", "min-max")):
        for method in find_methods(network, own, "alpha1beta0", "alpha2beta1", "epsilon"):
            of = found["methods"][network][method.key]
            gap = of["conservation_gap"]
            rows.append(
                [
                    f"{network}, {method.title}",
                    f"{_small(gap['median'])} ({_small(gap['worst'])})",
                    format_percent(of["kept"]),
                    format_percent(of["negative_share"]),
                    _interval(of["on_half"]),
                    f"{of['largest']:.2g}",
                ]
            )
    return Table(
        "Deep Taylor decomposition and LRP.",
        ("method", "gap, median (worst)", "all relevance / all scores", "negative", "target's half", "hottest pixel"),
        rows,
    )


# --- numbers as texts -------------------------------------------------------------------------------------------------


def _small(value: float | None) -> str:
    if value is None:
        return "—"
    if 10 <= value < 1e5:
        return f"{value:.0f}"
    return f"{value:.2g}" if value == 0 or 1e-3 <= value < 10 else f"{value:.0e}"


def _ratio(of: Numbers) -> str:
    return f"{or_nan(of.get('median')):.3f} ({or_nan(of.get('most')):.2f})"


def _interval(of: Numbers | None) -> str:
    if of is None or of["mean"] is None:
        return "—"
    return f"{of['mean']:.3f} [{of['low']:.3f}, {of['high']:.3f}]"
