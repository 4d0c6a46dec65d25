"""Ways to explain one decision, by name, to be seen side by side.

registry          METHODS by name, and what `method=` names
taylor            sensitivity analysis, and Taylor decomposition at a root point (section II of the paper)
root_search       the nearest root of a function; root_point: the roots that the rules stand for
relevance_models  min-max relevance models of a layer (section IV)
attnlrp           AttnLRP
copies            the mean over noisy copies of an input
delegates         Shapley values and training examples, by captum
"""

from __future__ import annotations

from deeptaylor.methods.registry import COMMON_METHODS, METHODS, Method, get_method
from deeptaylor.support.statistics import likeness

__all__ = ["COMMON_METHODS", "METHODS", "Method", "get_method", "likeness"]
