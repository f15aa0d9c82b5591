"""One step measured: where its bytes go, what to change, and what fits a memory."""

from shorthaul.advice.advice import Advice, Change
from shorthaul.advice.advising import advise
from shorthaul.advice.applying import Applied, apply
from shorthaul.advice.fit import Fit, Need, Needs
from shorthaul.advice.fitting import fit
from shorthaul.advice.watching.batches import split_batch

__all__ = [
    "Advice",
    "Applied",
    "Change",
    "Fit",
    "Need",
    "Needs",
    "advise",
    "apply",
    "fit",
    "split_batch",
]
