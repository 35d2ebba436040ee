"""Content predicates: the filter language, and the exact algebra of unions of boxes it is normalised to."""

from unisono.model.predicate.box import ANYTHING, Box, Measure, make_box
from unisono.model.predicate.cost import FILTER_COST_MAX, CostError, Steps
from unisono.model.predicate.filter import (
    BOXES_MAX,
    EVERY_EVENT,
    NO_EVENT,
    Filter,
    canonical,
    flatten,
    only,
    spread,
    union_of,
)
from unisono.model.predicate.language import parse, to_text
from unisono.model.predicate.summary import Summary
from unisono.model.predicate.values import EVERYTHING, MISSING, NOTHING, PRESENT, Values

__all__ = [
    "ANYTHING",
    "BOXES_MAX",
    "EVERYTHING",
    "EVERY_EVENT",
    "FILTER_COST_MAX",
    "MISSING",
    "NOTHING",
    "NO_EVENT",
    "PRESENT",
    "Box",
    "CostError",
    "Filter",
    "Measure",
    "Steps",
    "Summary",
    "Values",
    "canonical",
    "flatten",
    "make_box",
    "only",
    "parse",
    "spread",
    "to_text",
    "union_of",
]
