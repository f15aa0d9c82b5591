"""Data that needs no download: made from what is installed, as plain tensors.

>>> from shorthaul import datasets
>>> datasets.python_graph(limit_modules=40).num_classes
7

`python_graph` for relational networks, `python_text` for language models, `digits` for
convolutions. The first two are built from the standard library's own source and cached.
"""

from shorthaul.datasets.digits import Digits, digits
from shorthaul.datasets.graph_assembly import Relation
from shorthaul.datasets.python_graph import PythonGraph, python_graph
from shorthaul.datasets.python_text import PythonText, python_text

__all__ = [
    "Digits",
    "PythonGraph",
    "PythonText",
    "Relation",
    "digits",
    "python_graph",
    "python_text",
]
