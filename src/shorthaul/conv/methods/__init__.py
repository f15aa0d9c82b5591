"""The ways to compute a convolution: one module each, with its header beside it.

`METHODS` has them in order of preference, `GRADIENT_METHODS` those for the gradient of the weights. Nothing
else in the package knows a method: whoever adds an object here has it chosen, planned, estimated, tuned and run.
"""

from shorthaul.conv.methods.base import Method
from shorthaul.conv.methods.depthwise import Depthwise
from shorthaul.conv.methods.gradients.weight import DepthwiseGradient, WindowGradient
from shorthaul.conv.methods.grouped import Grouped
from shorthaul.conv.methods.planar import Planar
from shorthaul.conv.methods.sliding import Sliding
from shorthaul.conv.methods.sweep import Sweep
from shorthaul.conv.methods.tall import Tall
from shorthaul.conv.methods.window import Window
from shorthaul.conv.methods.winograd import Winograd

METHODS: list[Method] = [
    Winograd(4),
    Winograd(2),
    Grouped(),
    Sliding(),
    Tall(),
    Depthwise(),
    Sweep(),
    Planar(),
    Window(),
]
GRADIENT_METHODS: list[Method] = [DepthwiseGradient(), WindowGradient(METHODS)]
