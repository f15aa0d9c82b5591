"""Activations leave memory for a disk in the forward pass and are back for the backward pass."""

from shorthaul.offload.api import offload_activations
from shorthaul.offload.context import ActivationOffload
from shorthaul.offload.drive.projection import project
from shorthaul.offload.policy.policy import SavedTensor
from shorthaul.offload.policy.regions import region
from shorthaul.offload.report import OffloadReport
from shorthaul.offload.steps import enter_at_calls, plan, retry_step, wrap

__all__ = [
    "ActivationOffload",
    "OffloadReport",
    "SavedTensor",
    "enter_at_calls",
    "offload_activations",
    "plan",
    "project",
    "region",
    "retry_step",
    "wrap",
]
