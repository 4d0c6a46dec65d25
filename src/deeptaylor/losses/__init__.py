"""Losses on relevance, for training; each is one number that a network is trained to make small.

maps   what share of a map lies in a mask, how rough it is, how far it is from another map or another class's

Every loss reads the relevance of a live explainer, dt.Explainer(model, x, live=True), and is differentiable in the
parameters of its network. Unless a target is named, it is about the margin: the class minus its best rival.
"""

from deeptaylor.losses.maps import (
    class_overlap,
    map_distance,
    share_inside,
    share_outside,
    squared_inside,
    total_variation,
)

__all__ = ["class_overlap", "map_distance", "share_inside", "share_outside", "squared_inside", "total_variation"]
