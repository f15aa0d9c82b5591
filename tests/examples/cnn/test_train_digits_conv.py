"""The example ends with the same accuracy both ways."""

import pytest
import torch

from examples.cnn.train_digits_conv import main

pytest.importorskip("sklearn")


def test_both_models_learn_alike() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        plain, replaced = main(epochs=4)
    finally:
        torch.set_num_threads(threads)
    assert plain > 0.9
    assert abs(plain - replaced) <= 0.02
