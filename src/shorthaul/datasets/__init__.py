"""Data that needs no download: made from what is installed, or by rule.

>>> from shorthaul import datasets
>>> datasets.python_graph(limit_modules=40).num_classes
7

`python_graph` for relational networks, `python_text` for language models, `digits` for
convolutions. The first two are built from the standard library's own source and cached.
`write_power_law_graph` streams a graph of any size to disk.
"""

from shorthaul.datasets.digits import Digits, digits
from shorthaul.datasets.graph_assembly import Relation
from shorthaul.datasets.power_law.power_law_graph import PowerLawGraph, write_power_law_graph
from shorthaul.datasets.python_graph import PythonGraph, python_graph
from shorthaul.datasets.python_text import PythonText, python_text

__all__ = [
    "Digits",
    "PowerLawGraph",
    "PythonGraph",
    "PythonText",
    "Relation",
    "digits",
    "python_graph",
    "python_text",
    "write_power_law_graph",
]
