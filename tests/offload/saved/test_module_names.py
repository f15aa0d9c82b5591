from __future__ import annotations

import sys

from shorthaul.offload.saved.module_names import find_scope


class Inner:
    def forward(self) -> str:
        return find_scope(sys._getframe())


class Outer:
    def forward(self) -> str:
        return Inner().forward()


def test_the_classes_whose_forward_runs_outermost_first():
    assert Outer().forward().endswith("Outer.Inner")


def test_code_outside_of_any_forward_says_so():
    assert find_scope(None) == "code outside any module"
