"""Verdicts on what the paper and its supplement say of MNIST, sentence by sentence, with criteria and numbers."""

from __future__ import annotations

from deeptaylor.formatting import format_percent, join_lines
from deeptaylor.paper.measures import or_nan
from deeptaylor.paper.mnist_comparisons import BLIND
from deeptaylor.paper.mnist_criteria import (
    ALIGNED,
    ALIKE,
    BOTH,
    CAVEAT,
    LITTLE,
    LRP,
    MORE,
    MUCH,
    NAMES,
    NEAR,
    OWN,
    QUALITY,
    RIGHT,
    SAME,
    SHALLOW,
    UNINFORMED,
    Numbers,
    read_amounts,
    require_complete,
    require_conservative,
    require_level,
    require_likeness,
    require_more,
    require_more_likeness,
    require_positive,
)
from deeptaylor.paper.mnist_numbers import TOLERANCE
from deeptaylor.paper.verdicts import IN_PART, Criterion, Verdict, in_place_of, judge, leave_open, require_differences


def judge_paper(found: Numbers) -> list[Verdict]:
    """Return a verdict on each sentence of the paper that is measured on MNIST, in the paper's order."""
    return [
        *_judge_rules(found), *_judge_shallow(found), *_judge_models(found), *_judge_deep(found),
        *_judge_conclusion(found),
    ]  # fmt: skip


_CONSISTENT = """Consistency alone does not make a good map: f / d on every pixel is consistent, too, as the paper says
    with its Equation 1."""


# --- sections II, III-A and the supplement's algorithms ---------------------------------------------------------------


def _judge_rules(found: Numbers) -> list[Verdict]:
    said = found["statements"]
    layers = said["layers"]
    return [
        judge(
            "II-C, last paragraph",
            "Finally, if all Taylor decompositions of local subfunctions are consistent in the sense of Definition 3, "
            "then, the whole deep Taylor decomposition is also consistent in the same sense.",
            [
                Criterion(
                    f"in every layer and at the pixels the sum misses the score by less than {TOLERANCE:g} of it",
                    False,
                    TOLERANCE,
                    {"the two-layer network": or_nan(layers["gap"])},
                    {"one layer with an ε rule that is not conservative": or_nan(layers["broken_gap"])},
                    ".1g",
                ),
                Criterion(
                    "the least relevance of any neuron or pixel, over the score, is above −1e-9",
                    True,
                    -1e-9,
                    {"the two-layer network": or_nan(layers["lowest"])},
                    {"one layer with an ε rule that is not positive": or_nan(layers["broken_lowest"])},
                    ".1g",
                ),
            ],
            "Sums are lost between layers, although each layer's rule is consistent.",
            "The sentence is a theorem; the numbers show that the layers do what it needs.",
            CAVEAT,
        ),
        judge(
            "III-A, after Proposition 1",
            "The w²-rule resembles the rule by [Garson, Gevrey] for determining the importance of input variables in "
            "neural networks, where absolute values of w_ij are used in place of squared values.",
            [
                Criterion(
                    "maps by w² and by |w| in its place have a correlation of more than 0.8",
                    True,
                    0.8,
                    {"w² and |w|": or_nan(said["garson"]["alike"])},
                    {"|w| of the network before training": or_nan(said["garson"]["untrained"])},
                    ".2f",
                )
            ],
            "Squares and absolute values give different maps in this network.",
            caveat=CAVEAT,
        ),
        judge(
            "III-A, after Proposition 1",
            "It is important to note that the decomposition that we propose here is modulated by the upper layer "
            "data-dependent R_j s, which leads to an individual explanation for each data point.",
            [
                require_level(
                    found,
                    "one-layer",
                    "half",
                    ["w2"],
                    "more than 60 % of the positive relevance lie on the half where the digit of this pair stands, "
                    "left or right at random",
                    above=True,
                    limit=0.6,
                )
            ],
            "Maps follow the digit less than that.",
            f"""Maps of different pairs have a correlation of {or_nan(said["garson"]["others"]):.2f}. Garson's
            importances are the same for every pair, and cannot follow a digit.""",
            CAVEAT,
        ),
        judge(
            "supplement, II",
            "For efficiency, like for the previous rules, the matrices U and V can be precomputed and reused for "
            "multiple heatmaps computations.",
            [
                Criterion(
                    "maps with matrices that were computed once differ from the explainer's by less than 1e-12 of the "
                    "largest pixel",
                    False,
                    1e-12,
                    {"w²": or_nan(said["reuse"]["w2"]["gap"]), "zB": or_nan(said["reuse"]["zB"]["gap"])},
                    {
                        "matrices of the network before training, w²": or_nan(said["reuse"]["w2"]["untrained_gap"]),
                        "zB": or_nan(said["reuse"]["zB"]["untrained_gap"]),
                    },
                    ".1g",
                ),
                Criterion(
                    "a heatmap takes less than 90 % of the processor time that it takes with matrices made anew",
                    False,
                    0.9,
                    {"w²": or_nan(said["reuse"]["w2"]["time"]), "zB": or_nan(said["reuse"]["zB"]["time"])},
                    {
                        f"matrices made anew, timed once more, {title}": or_nan(said["reuse"][rule]["time_again"])
                        for rule, title in (("w2", "w²"), ("zB", "zB"))
                    },
                ),
            ],
            "Making the matrices takes little of the time here.",
            caveat=CAVEAT,
        ),
    ]


# --- section III-C ----------------------------------------------------------------------------------------------------


def _judge_shallow(found: Numbers) -> list[Verdict]:
    heatmaps, plots, network = "III-C, paragraph 3", "III-C, paragraph 5", "one-layer"
    of, levels, areas = found["methods"][network], found["compared"]["levels"][network], found["compared"]["areas"]
    similar = found["compared"]["similar"]
    half = {key: or_nan(levels[key]["half"]) for key in SHALLOW}
    smoother = or_nan(levels["taylor"]["neighbours"]) + 0.1
    blurred = f"pixels two apart have a rank correlation of more than {smoother:.2f}, Taylor's and 0.1"
    return [
        _judge_scores(found),
        judge(
            heatmaps,
            "In all cases, we observe that the heatmapping procedure correctly assigns most of the relevance to pixels "
            "where the digit to detect is located.",
            [
                require_level(
                    found, network, "near", list(SHALLOW),
                    "more than half of the positive relevance lies on the digit's ink or at most two steps from it, "
                    f"which is {format_percent(areas['near'])} of the area",
                    above=True, limit=0.5,
                )
            ],
            f"""All methods put most of their relevance on the digit's half of the picture
            ({", ".join(f"{SHALLOW[key]} {format_percent(value)}" for key, value in half.items())}), but not on the
            digit. On the ink alone sensitivity has {format_percent(levels["sensitivity"]["ink"])}, no more than
            its share of the area, {format_percent(areas["ink"])}; zB has {format_percent(levels["zB"]["ink"])}.""",
            caveat=CAVEAT,
        ),
        judge(
            heatmaps,
            "Sensitivity analysis produces unbalanced and incomplete heatmaps, with some input points reacting "
            "strongly, and others reacting weakly, and with a considerable amount of relevance associated to the "
            "border of the image, where there is no information.",
            [
                require_level(
                    found, network, "uneven", ["sensitivity"],
                    "on the digit's ink the standard deviation of the relevance is larger than its mean",
                    above=True, limit=1.0, form=".2f",
                ),
                require_level(
                    found, network, "covered", ["sensitivity"],
                    "less than half of the digit's ink has at least the relevance of the map's average pixel",
                    above=False, limit=0.5,
                ),
                require_level(
                    found, network, "border", ["sensitivity"],
                    "the outermost four pixels have at least a tenth more of the relevance than an even map gives them",
                    above=True, limit=MORE * or_nan(areas["border"]),
                ),
            ],
            f"""Noise is uneven and incomplete, too: that sensitivity is (it covers
            {format_percent(levels["sensitivity"]["covered"])} of the ink, zB
            {format_percent(levels["zB"]["covered"])}) does not tell it from noise. The border does.""",
            caveat=CAVEAT,
        ),
        judge(
            heatmaps,
            "Nearest root Taylor produces selective heatmaps, that are still not fully complete.",
            [
                require_level(
                    found, network, "half", ["taylor"],
                    "more than nine tenths of the positive relevance lie on the half with the digit to detect",
                    above=True, limit=0.9,
                ),
                require_more(
                    found, "zB covers more of the digit's ink, less what it covers of the distractor's, than Taylor",
                    [(network, "complete", "zB", "taylor")],
                ),
            ],
            "Taylor's maps are less selective than nine tenths, or as complete as zB's.",
            f"""Taylor covers {format_percent(levels["taylor"]["covered"])} of the digit's ink, zB
            {format_percent(levels["zB"]["covered"])}.""",
            CAVEAT,
        ),
        judge(
            heatmaps,
            "The heatmaps produced by deep Taylor decomposition with the w²-rule, are similar to nearest root Taylor, "
            "but blurred, and not perfectly aligned with the data.",
            [
                require_likeness(found, {"Taylor, w2": "w²"}, ALIKE, "w² maps and Taylor's maps"),
                require_more_likeness(
                    found, "w² maps are more like Taylor's than zB maps are",
                    {"w² − zB": ("Taylor, w2", "Taylor, zB")},
                ),
                require_level(
                    found, network, "neighbours", ["w2"], blurred,
                    above=True, limit=smoother, form=".2f",
                ),
                require_level(
                    found, network, "aligned", ["w2"],
                    "in the digit's half the correlation with the picture is less than 0.9",
                    above=False, limit=0.9, form=".2f",
                ),
            ],
            f"""Taylor's maps have a correlation of {or_nan(similar["Taylor, w2"]["mean"]):.2f} with w² maps and of
            {or_nan(similar["Taylor, zB"]["mean"]):.2f} with zB maps: likeness to Taylor does not set w²
            apart. Another pair's map is as blurred, and noise as badly aligned: that w² maps are so, says nothing of
            the digit.""",
            caveat=CAVEAT,
        ),
        judge(
            heatmaps,
            "The domain-aware zB-rule produces heatmaps that are still blurred, but that are complete and well-aligned "
            "with the data.",
            [
                require_level(
                    found, network, "neighbours", ["zB"], blurred,
                    above=True, limit=smoother, form=".2f",
                ),
                require_complete(found, network, ["zB"]),
                require_level(
                    found, network, "aligned", ["zB"],
                    f"in the digit's half the correlation with the picture is more than {ALIGNED:g}",
                    above=True, limit=ALIGNED, form=".2f",
                ),
            ],
            """Another pair's map is as blurred, and nothing is aligned with a picture as well as the picture itself:
            only completeness can be judged. Blurred maps that cover a digit need not follow its strokes: the inside
            and the surroundings of a digit, which are black, have much of the relevance.""",
            caveat=CAVEAT,
        ),
        judge(
            plots,
            "Sensitivity analysis only measures a local effect and therefore does not conceptually redistribute "
            "relevance onto the input.",
            [
                Criterion(
                    "the sum of a map, rescaled by one factor, misses its score by more than a tenth, at the median "
                    "of all pairs with a score",
                    True,
                    LITTLE,
                    {"sensitivity": or_nan(of["sensitivity"]["conservation_gap"]["median"])},
                    read_amounts(found, network, "median_gap"),
                ),
                Criterion(
                    "the sums of maps have a correlation of less than 0.9 with the scores of all pairs",
                    False,
                    0.9,
                    {"sensitivity": or_nan(of["sensitivity"]["correlation_with_score"])},
                    read_amounts(found, network, "correlation_with_score"),
                    ".2f",
                ),
            ],
            """Sums miss the scores in every map that was not made to hold them. They show that sensitivity does not
            redistribute the score; that it measures a local effect follows from its definition.""",
            caveat=CAVEAT,
        ),
        _judge_taylor(
            found, network, plots,
            "The nearest root Taylor approach, although producing mostly positive heatmaps, dissipates a large "
            "fraction of the relevance.",
        ),
        judge(
            plots,
            "The deep Taylor decomposition on the other hand ensure full consistency, as theoretically predicted by "
            "Propositions 1 and 3.",
            [
                require_conservative(found, network, ["w2", "zB"]),
                require_positive(found, network, ["w2", "zB"], "nothing is negative", 1e-12),
            ],
            "A map is not consistent; the report is not made then.",
            _CONSISTENT,
            CAVEAT,
            jointly=True,
        ),
        judge(
            plots,
            "The zB-rule spreads relevance onto more pixels than methods based on nearest root, as shown by the "
            "shorter tail of its relevance histogram.",
            [
                require_more(
                    found, "half of the positive relevance lies on a larger share of the pixels in zB maps",
                    [(network, "few", "zB", key) for key in ("taylor", "w2")],
                ),
                require_more(
                    found, "the hottest pixel of a map has more relevance than in zB maps",
                    [(network, "hottest", key, "zB") for key in ("taylor", "w2")], ".2f", praised=1,
                ),
            ],
            """An even map and another pair's map spread their relevance as far: a wide spread alone does not speak for
            a method. The differences are as the paper says where they are larger than chance gives.""",
            caveat=CAVEAT,
        ),
    ]  # fmt: skip


def _judge_scores(found: Numbers) -> Verdict:
    scores = found["compared"]["scores"]
    return judge(
        "III-C, paragraph 1",
        "Treating the supervised task as a regression problem forces the network to assign approximately the same "
        "amount of relevance to all positive examples, and as little relevance as possible to the negative examples.",
        [
            Criterion(
                "nine of ten held-out pairs with a target have a score from 75 to 125, and nine of ten without one a "
                "score of at most 25; the lesser of both shares",
                True,
                RIGHT,
                {network: or_nan(of["right"]) for network, of in scores.items()},
                {
                    "the mean score for every pair": max(or_nan(of["right_by_mean"]) for of in scores.values()),
                    "100 for every pair": max(or_nan(of["right_by_goal"]) for of in scores.values()),
                    "another pair's score": max(or_nan(of["right_by_other"]) for of in scores.values()),
                },
            )
        ],
        "Scores, mean and standard deviation with a target, and mean without: "
        + "; ".join(
            f"{of['with']:.0f} ± {of['with_deviation']:.0f} and {or_nan(of['without']):.1f} ({network})"
            for network, of in scores.items()
        )
        + ".",
        caveat=CAVEAT,
    )


def _judge_taylor(found: Numbers, network: str, place: str, quote: str) -> Verdict:
    of = found["methods"][network]["taylor"]
    return judge(
        place,
        quote,
        [
            require_positive(found, network, ["taylor"], "less than a tenth of its relevance is negative", LITTLE),
            Criterion(
                "its maps hold less than 80 % of all scores",
                False,
                1 - MUCH,
                {"Taylor": or_nan(of["kept"])},
                read_amounts(found, network, "kept"),
            ),
        ],
        "Taylor's maps hold most of the scores here, or have negative relevance.",
        f"In {of['above_score']} of {of['explained_pairs']} pairs the sum of a map is larger than the score.",
        CAVEAT,
        jointly=True,
    )


# --- sections IV-A and IV-B -------------------------------------------------------------------------------------------


def _judge_models(found: Numbers) -> list[Verdict]:
    """Judge what relevance models hold constant, by how it changes from x to the roots of single units."""
    of = found["statements"]["context"]
    return [
        judge(
            place,
            join_lines(quote),
            [
                Criterion(
                    f"from x to the zB root of a unit, {text}, at the median",
                    False,
                    LITTLE,
                    {title: or_nan(of[name])},
                    {f"{title}, from x to another pair": or_nan(of[f"{name}_other"])},
                )
            ],
            why,
            caveat=CAVEAT,
        )
        for name, title, place, quote, text, why in (
            (
                "inhibition", "a_j", "IV-A, after the objective",
                """Because the relevance model has exactly the same structure as the one-layer neural network […], in
                particular, because a_j is negative and only weakly dependent on the set of neurons {x_i}, one can
                apply the same set of rules for relevance propagation.""",
                "the inhibition a_j, computed anew there, changes by less than a tenth of the unit's relevance",
                """a_j is never positive, but it moves with x: at the root that the rule means, this share of the unit's
                relevance is still there.""",
            ),
            (
                "context", "d_k", "IV-B, after the factorisation",
                """[…] the pooling ratio c_k > 0 and the top-down term d_k({R_l}) > 0 are only weakly dependent on {x_j}
                and are approximated as constant terms.""",
                "the top-down term d_k, computed anew there, changes by less than a tenth of itself",
                """c_k of a sum is 1 whatever x is. d_k moves with x: by this share the expansion at the root misses the
                relevance that is in fact handed down.""",
            ),
        )
    ]  # fmt: skip


# --- section IV-C -----------------------------------------------------------------------------------------------------


def _judge_deep(found: Numbers) -> list[Verdict]:
    heatmaps, plots, network = "IV-C, paragraph 2", "IV-C, paragraph 3", "two-layer"
    of, compared = found["methods"][network], found["compared"]
    noisy = [
        require_more(
            found, text, [(network, measure, own, key) for own in OWN for key in ("sensitivity", "taylor")], form
        )
        for measure, text, form in (
            ("neighbours", "pixels two apart have a larger rank correlation in deep Taylor maps", ".2f"),
            ("complete", "deep Taylor maps cover more of the digit's ink, less the distractor's", "%"),
        )
    ]
    deeper = compared["depth"]
    depth = [
        require_differences(
            f"maps of the one-layer network have more {text}",
            {NAMES[key]: deeper[key][measure][key] for key in ("sensitivity", "taylor")},
            {
                in_place_of(UNINFORMED[kind], f"the one-layer map by {NAMES[key]}"): deeper[kind][measure][key]
                for key in ("sensitivity", "taylor")
                for kind in BLIND
            },
            form,
        )
        for measure, text, form in (
            ("neighbours", "correlation of pixels two apart than those of the two-layer network", ".2f"),
            ("complete", "of the digit's ink covered, less the distractor's, than those of the two-layer network", "%"),
        )
    ]
    gap = or_nan(found["min_max"]["mean_gap_over_mean_score"])
    before, after = compared["levels"]["one-layer"], compared["levels"]["two-layer"]
    return [
        judge(
            heatmaps,
            "Sensitivity analysis and standard Taylor decomposition produce noisy and incomplete heatmaps.",
            noisy,
            """Noisy: another pair's map is as smooth as deep Taylor's own, so that smoothness does not speak for a map.
            Whether they are incomplete is decided by the second criterion.""",
            caveat=CAVEAT,
        ),
        judge(
            heatmaps,
            "These two methods do not handle well the increased depth of the network.",
            depth,
            "Another pair's map is smooth with any depth. Ink covered with one layer and with two: "
            + ", ".join(
                f"{NAMES[key]} {format_percent(before[key]['covered'])} and {format_percent(after[key]['covered'])}"
                for key in ("sensitivity", "taylor")
            )
            + ".",
            caveat=CAVEAT,
        ),
        judge(
            heatmaps,
            "The min-max Taylor decomposition and the training-free Taylor decomposition produce relevance maps that "
            "are complete, and qualitatively similar to those obtained by deep Taylor decomposition of the shallow "
            "architecture in Section III.",
            [
                require_complete(found, network, OWN),
                require_likeness(found, BOTH, ALIKE, "maps of this network and zB maps of the one-layer network"),
            ],
            _explain_min_max(found),
            caveat=CAVEAT,
        ),
        judge(
            heatmaps,
            "This demonstrates the high level of transparency of deep Taylor methods with respect to the choice of "
            "architecture.",
            [
                require_more_likeness(
                    found, "maps of the two networks are more alike by deep Taylor",
                    {
                        f"{title} − {NAMES[key]}": (name, key)
                        for name, title in BOTH.items()
                        for key in ("sensitivity", "taylor")
                    },
                ),
                require_likeness(found, BOTH, ALIKE, "deep Taylor maps of the two networks"),
                require_complete(found, network, OWN),
            ],
            _explain_min_max(found),
            f"""For comparison, LRP with α = 1, β = 0:
            {or_nan(compared["similar"]["alpha1beta0"]["mean"]):.2f}. Two networks are few to show it on.""",
            CAVEAT,
        ),
        _judge_quality(found),
        _judge_taylor(
            found, network, plots, "The standard Taylor decomposition is positive, but dissipates relevance."
        ),
        judge(
            plots,
            "The deep Taylor decomposition with the min-max relevance model produces near-conservative heatmaps, and "
            "the training-free deep Taylor decomposition produces heatmaps that are fully conservative.",
            [
                Criterion(
                    "min-max maps miss their scores by less than a tenth of the mean score on average",
                    False,
                    NEAR,
                    {"min-max": gap},
                    read_amounts(found, network, "mean_gap_over_mean_score"),
                ),
                require_conservative(found, network, ["training-free"]),
            ],
            f"The min-max model misses the scores by {format_percent(gap)} of the mean score.",
            caveat=CAVEAT,
        ),
        judge(
            plots,
            "Both deep Taylor decomposition variants shown here also ensures positivity, due to the application of the "
            "zB- and z⁺-rule in the respective layers.",
            [require_positive(found, network, OWN, "nothing is negative", 1e-12)],
            f"""{sum(of[key]["negative_pixels"] for key in OWN)} pixels are negative, as the propositions say. But most
            maps without information are positive as well: that a map is positive does not show why.""",
            caveat=CAVEAT,
        ),
    ]  # fmt: skip


def _explain_min_max(found: Numbers) -> str:
    border = {key: or_nan(found["compared"]["levels"]["two-layer"][key]["border"]) for key in OWN}
    return f"""The min-max model of the paper's plain training has {format_percent(border["min-max"])} of its relevance
        on the border, the training-free one {format_percent(border["training-free"])}: pixels hardly vary there, and
        nothing in the paper's objective holds their weights back."""


def _judge_quality(found: Numbers) -> Verdict:
    levels = found["compared"]["levels"]["two-layer"]
    places = {"half": "digit's half", "ink": "ink", "border": "border", "covered": "ink covered"}

    def apart(key: str) -> float:
        return max(abs(or_nan(levels[key][p]) - or_nan(levels["training-free"][p])) for p in places)

    return judge(
        "IV-C, paragraph 2",
        "The heatmaps obtained by the trained min-max relevance model and by the training-free method are of "
        "similar quality.",
        [
            require_likeness(found, {"min-max, training-free": "min-max"}, SAME, "min-max maps and training-free maps"),
            require_complete(found, "two-layer", OWN),
            Criterion(
                "the shares on the digit's half, on its ink and on the border, and the covered ink, differ from those "
                "of training-free maps by less than 10 points; the largest of the four",
                False,
                QUALITY,
                {"min-max": apart("min-max")},
                {title: apart(name) for name, title in UNINFORMED.items()},
            ),
        ],
        "min-max and training-free: "
        + "; ".join(
            f"{title} {format_percent(levels['min-max'][p])} and {format_percent(levels['training-free'][p])}"
            for p, title in places.items()
        )
        + f". {_explain_min_max(found)}",
        caveat=CAVEAT,
    )


# --- the conclusion ---------------------------------------------------------------------------------------------------


def _judge_conclusion(found: Numbers) -> list[Verdict]:
    box = found["statements"]["box"]
    return [
        judge(
            "conclusion, paragraph 3",
            "Our method is stable under different architectures and datasets, and does not require hyperparameter "
            "tuning.",
            [
                require_likeness(found, BOTH, ALIKE, "deep Taylor maps of the one-layer and the two-layer network"),
                require_complete(found, "two-layer", OWN),
            ],
            f"""{_explain_min_max(found)} Datasets: the other one, ILSVRC, is judged in a report of its own, with other
            networks, so that stability between the two is not measured. Tuning: the rules have none but the bounds of
            the box (a tenth wider, maps keep a correlation of
            {" and ".join(f"{or_nan(of['alike']):.3f}" for of in box.values())}); the min-max model needs a learning
            rate and a number of steps.""",
            caveat=CAVEAT,
            at_most=IN_PART,
        ),
        leave_open(
            "conclusion, paragraph 2",
            "Thus, we are now able to compute heatmaps that clearly and intuitively allow to better understand the "
            "role of input pixels when classifying an unseen data point.",
            "Whether people understand more by a heatmap would have to be asked of people; nobody was asked here.",
            CAVEAT,
            [
                require_level(
                    found,
                    "one-layer",
                    "near",
                    ["zB"],
                    "more than half of the positive relevance lies on the digit's ink or at most two steps from it",
                    above=True,
                    limit=0.5,
                )
            ],
        ),
    ]


# --- the supplement's comparison with LRP -----------------------------------------------------------------------------

PLACE = "supplement, IV, paragraph 3"
SHOWN = {"one-layer": "zB", "two-layer": "min-max"}  # deep Taylor in figures S2 and S3


def judge_supplement(found: Numbers) -> list[Verdict]:
    """Return a verdict on each sentence of the supplement that is measured on MNIST, in its order."""
    return [
        _judge_influence(found),
        judge(
            PLACE,
            "Deep Taylor heatmaps look similar in all cases.",
            [
                require_likeness(found, BOTH, ALIKE, "deep Taylor maps of the two networks"),
                require_complete(found, "two-layer", OWN),
            ],
            _explain_min_max(found),
            caveat=CAVEAT,
        ),
        _judge_best(found),
        judge(
            PLACE,
            "For example, the parameters α=2, β=1 […] tend […] to produce a large amount of negative relevance on the "
            "MNIST dataset.",
            [
                Criterion(
                    "more than a fifth of all relevance is negative",
                    True,
                    MUCH,
                    {n: or_nan(found["methods"][n]["alpha2beta1"]["negative_share"]) for n in SHOWN},
                    read_amounts(found, "one-layer", "negative_share"),
                )
            ],
            """Noise of both signs has more: much negative relevance alone says nothing of the rule. That α = 2, β = 1
            has it and α = 1, β = 0 has none, follows from the formula.""",
            caveat=CAVEAT,
        ),
        *_judge_artefacts(found),
        _judge_sharpness(found),
        _judge_irrelevant(found),
    ]  # fmt: skip


def _judge_influence(found: Numbers) -> Verdict:
    similar = found["compared"]["similar"]
    values = ", ".join(f"{or_nan(similar[name]['mean']):.2f} ({title})" for name, title in (BOTH | LRP).items())
    return judge(
        PLACE,
        "It can be observed that the quality of the deep Taylor heatmaps is less influenced by the choice of model and "
        "dataset than LRP with a fixed set of parameters.",
        [
            require_more_likeness(
                found, f"maps of the two networks are more alike by deep Taylor ({title})",
                {f"{title} − LRP with {LRP[key]}": (name, key) for key in LRP},
            )
            for name, title in BOTH.items()
        ],
        f"""Correlations of the two networks' maps, the picture taken out: {values}. LRP with α = 1, β = 0 is nearly the
        z⁺ rule. {_explain_min_max(found)}""",
        "Quality is measured as likeness of maps of the same pair. Another data set is in the report on ILSVRC.",
        CAVEAT,
    )  # fmt: skip


def _judge_best(found: Numbers) -> Verdict:
    """Best: the most on the digit's half less the share that is negative, which counts against a method."""
    quality, best = {}, {}
    for network in SHOWN:
        levels, of = found["compared"]["levels"][network], found["methods"][network]
        quality[network] = {key: or_nan(levels[key]["half"]) - or_nan(of[key]["negative_share"]) for key in LRP}
        best[network] = max(quality[network], key=quality[network].__getitem__)
    one, two = SHOWN
    amounts = found["compared"]["amounts"]
    blind = {
        (name, n): or_nan(found["compared"]["levels"][n][name]["half"]) - or_nan(amounts[n][name]["negative_share"])
        for name in BLIND
        for n in SHOWN
    }
    kinds = {n: max((blind[name, n], name) for name in BLIND)[1] for n in SHOWN}
    return judge(
        PLACE,
        "LRP also produces high-quality heatmaps, but the best parameters differ in each setting.",
        [
            Criterion(
                "with its best parameters LRP has more than 60 % on the digit's half, less the share that is negative",
                True,
                0.6,
                {f"{network}, {LRP[best[network]]}": quality[network][best[network]] for network in SHOWN},
                {title: max(blind[name, n] for n in SHOWN) for name, title in UNINFORMED.items()},
            ),
            Criterion(
                "by the same measure, the parameters that are best in one network lose more than 2 points against the "
                "best in the other",
                True,
                0.02,
                {
                    f"{LRP[best[one]]} in the {two} network": quality[two][best[two]] - quality[two][best[one]],
                    f"{LRP[best[two]]} in the {one} network": quality[one][best[one]] - quality[one][best[two]],
                },
                {
                    f"the best map without information of the other, in the {n} network": blind[kinds[n], n]
                    - blind[kinds[m], n]
                    for n, m in ((two, one), (one, two))
                },
            ),
        ],
        f"""LRP's maps are good, but {LRP[best[one]]} is best in the {one} and {LRP[best[two]]} in the {two} network by
        this measure.""",
        caveat=CAVEAT,
    )


def _judge_artefacts(found: Numbers) -> list[Verdict]:
    return [
        judge(
            PLACE,
            "Various parameters of LRP produce various artefacts such as the presence of residual relevance on the "
            "irrelevant MNIST digit […].",
            [
                require_more(
                    found, "LRP has more relevance on the ink of the other digit than deep Taylor",
                    [(network, "distractor", key, own) for network, own in SHOWN.items() for key in LRP],
                    prefix=True, praised=1,
                )
            ],
            "Some parameters of LRP leave no more there than deep Taylor does.",
            caveat=CAVEAT,
        ),
        judge(
            PLACE,
            "[…] or the presence of negative relevance in the black areas of the MNIST images.",
            [
                require_level(
                    found, network, "dark", ["alpha2beta1", "epsilon"],
                    f"{network}: more than a tenth of all relevance is negative and lies on black pixels",
                    above=True, limit=LITTLE,
                )
                for network in SHOWN
            ],
            """Noise of both signs has as much on black pixels, so that this cannot be told from noise. LRP with α = 1,
            β = 0 and deep Taylor have none, by their formulas.""",
            caveat=CAVEAT,
        ),
    ]  # fmt: skip


def _judge_sharpness(found: Numbers) -> Verdict:
    return judge(
        PLACE,
        "On the other hand, LRP-based heatmaps are sharper than Taylor-based heatmaps […].",
        [
            require_more(
                found, f"{network}: {text} in deep Taylor maps",
                [(network, measure, own, key) for key in LRP], form, praised=1,
            )
            for network, own in SHOWN.items()
            for measure, text, form in (
                ("neighbours", "pixels two apart have a larger rank correlation", ".2f"),
                ("few", "half of the positive relevance lies on a larger share of the pixels", "%"),
            )
        ],
        """Noise and the picture itself are sharper still: sharpness alone does not speak for a map. LRP is sharper than
        deep Taylor where a difference is larger than chance gives.""",
        caveat=CAVEAT,
    )  # fmt: skip


def _judge_irrelevant(found: Numbers) -> Verdict:
    return judge(
        PLACE,
        "They also tend to assign very little evidence to irrelevant parts of the image.",
        [
            require_level(
                found, network, "irrelevant", list(LRP),
                f"{network}: less than a tenth of the positive relevance lies on the half without the digit to detect "
                "or on the border",
                above=False, limit=LITTLE,
            )
            for network in SHOWN
        ],
        "Deep Taylor has there "
        + " and ".join(
            f"{format_percent(found['compared']['levels'][network][own]['irrelevant'])} ({network})"
            for network, own in SHOWN.items()
        )
        + ". The other digit and the border have a share by every method.",
        caveat=CAVEAT,
    )  # fmt: skip
