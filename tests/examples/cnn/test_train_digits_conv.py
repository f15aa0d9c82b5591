"""The example ends with the same accuracy both ways, and says what was gained."""

import re

import pytest
import torch

from examples.cnn.train_digits_conv import main

pytest.importorskip("sklearn")


def test_both_models_learn_alike(capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        plain, replaced = main(epochs=4)
    finally:
        torch.set_num_threads(threads)
    assert plain > 0.9
    assert abs(plain - replaced) <= 0.02
    said = capsys.readouterr().out
    assert re.search(r"training \d+\.\d\d times as fast, inference \d+\.\d\d times\.", said)
    assert "4 convolutions" in said
